"""The cases of each mode, and the checks after each case."""

import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import origin
from clients import EVERY_FAMILY, Call, Mode
from program import Failed, Program

CASE_SECONDS = 30
# If a client has its own core, 0.96 to 0.99 of 8 MiB is spliced. A client that is delayed for a
# moment writes small pieces, which the program copies. With two clients per core, the lowest
# observed fraction was 0.945.
SPLICED_MIN = 0.9
# With an upstream proxy that copies, the answer arrives in pieces of that proxy's size.
SPLICED_MIN_BEHIND_COPIES = 0.5

HOSTS = {"ipv4": "127.0.0.1", "ipv6": "::1", "name": origin.NAME}
# A name that every client can look up.
LOCAL_NAME = "localhost"

USER = "ann"
# Characters that confuse a client that splits or escapes credentials. (There is no percent sign,
# because curl decodes it, and does so twice with --proxy-anyauth.)
SECRET = "a:b+c/@?"
WRONG_SECRET = "a:b+c/@!"

# The most bytes by which the program may lengthen or shorten the heads of one answer.
HEADS_MAX_BYTES = 200

RELAYED = {"client_eof", "upstream_eof", "answered"}


@dataclass(frozen=True)
class Case:
    """One fetch by one client.

    `auth` is one of these:
    - `open`: the proxy does not demand a password.
    - `unneeded`: the proxy does not demand a password, but the client has one.
    - `right`, `wrong` or `missing`: the proxy demands a password.
    - `closed`: the proxy does not demand a password, and nothing listens at the target.
    """

    mode: Mode
    family: str
    auth: str
    # The program's command: `mixed`, or the command for this protocol only.
    service: str

    def __str__(self):
        return f"{self.mode.client} {self.mode.name} {self.family} {self.auth} {self.service}"

    @property
    def client(self):
        return self.mode.client

    @property
    def needs(self):
        return self.mode.needs

    @property
    def succeeds(self):
        return self.auth in ("open", "unneeded", "right")

    @property
    def demands(self):
        """Whether the program demands a password."""
        return self.auth in ("right", "wrong", "missing") and not self.mode.upstream

    @property
    def host(self):
        return LOCAL_NAME if self.family == "name" and not self.mode.we_look_up else HOSTS[self.family]

    @property
    def credentials(self):
        if self.auth in ("open", "missing", "closed") or self.mode.upstream:
            return "", ""
        return USER, WRONG_SECRET if self.auth == "wrong" else SECRET


def cases(modes):
    """Yields both services with and without a password, each with every address family."""
    for mode in modes:
        alone = mode.protocol if mode.protocol != "socks4" else "mixed"
        services = {"open": (alone, "mixed", alone), "right": ("mixed", alone, "mixed")}
        for auth, order in services.items():
            if auth == "open" and not mode.without_auth or auth == "right" and not mode.takes_password:
                continue
            for family, service in zip(EVERY_FAMILY, order):
                if family in mode.families:
                    yield Case(mode, family, auth, service)
        if mode.takes_password:
            yield Case(mode, "ipv4", "wrong", alone)
        if mode.takes_password and mode.without_auth and not mode.insists:
            yield Case(mode, "ipv4", "unneeded", alone)
        if mode.without_auth:
            yield Case(mode, "ipv4", "missing", "mixed")
        if mode.without_auth and mode.dials:
            yield Case(mode, "ipv4", "closed", alone)


@dataclass
class Outcome:
    """The outcome of a case. The case passed if there are no faults."""

    case: Case
    seconds: float
    faults: list
    # The text to show with the faults.
    log: str
    # The fraction of the bytes that was spliced, if the case checks this fraction.
    spliced: float | None


class Runner:
    """Runs cases. Each has its own program, origin and folder."""

    def __init__(self, program, password_file, tools):
        self._program = program
        self._password_file = password_file
        self._tools = tools
        self._names = origin.NameServer()

    def run(self, case):
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="interop-") as folder:
            attempt = Attempt(case, self._tools, Path(folder))
            try:
                with self._upstream(case, Path(folder)) as environment:
                    attempt.run(self._start(case, environment))
            except (Failed, OSError) as failed:
                attempt.faults.append(str(failed))
        return Outcome(case, time.monotonic() - started, attempt.faults, attempt.log(), attempt.spliced)

    @contextmanager
    def _upstream(self, case, folder):
        """Runs the upstream proxy, if the case has one, and yields its environment."""
        if not case.mode.upstream:
            yield {}
            return
        with case.mode.upstream.running(case.auth, folder) as url:
            yield {"SPLICEWAY_UPSTREAM_PROXY": url}

    def _start(self, case, environment):
        # IPv6 on both sides, except for datagrams: PySocks reaches a proxy for them only over IPv4.
        listen = "[::1]:0" if case.family == "ipv6" and case.mode.serve else "127.0.0.1:0"
        words = [case.service, "--listen", listen, "--dns", f"127.0.0.1:{self._names.port}"]
        if case.demands and case.service == "mixed":
            environment["SPLICEWAY_AUTH"] = f"{USER}:{SECRET}"
        elif case.demands:
            words += ["--auth-file", str(self._password_file)]
        return Program(self._program, words, environment)


class Attempt:
    """One run of one case, from the start of the servers to the verdict."""

    def __init__(self, case, tools, folder):
        self.case = case
        self.faults = []
        self.spliced = None
        self._tools = tools
        self._folder = folder
        self._client = None
        self._program = None

    def run(self, program):
        self._program = program
        server = self._server()
        with program:
            finished = self._fetch(program, server.port)
            server.finish()
            metrics = program.settled()
            records = program.stop()
        self.faults += server.faults
        if any(secret in line for line in program.lines for secret in (SECRET, WRONG_SECRET)):
            self.faults.append("the program's log has the password")
        if self.case.succeeds:
            self._check_answer(finished)
            if self.case.mode.serve:
                self._check_relayed(server, metrics, records)
            else:
                self._check_datagrams(server, metrics, records)
        else:
            self._check_refused(finished, server, metrics, records)

    def log(self):
        """The output of the client and the program."""
        lines = []
        if self._client:
            lines += [f"client: {self._client.args}, exit code {self._client.returncode}"]
            lines += (self._client.stderr or b"").decode(errors="replace").splitlines()[-20:]
        if self._program:
            lines += ["program:", *self._program.lines[-20:]]
        return "\n".join(f"    {line}" for line in lines)

    def _server(self):
        if self.case.auth == "closed":
            return origin.Closed()
        return origin.Origin(self.case.mode.serve) if self.case.mode.serve else origin.NameServer()

    def _fetch(self, program, port):
        upload = self._folder / "upload"
        upload.write_bytes(self.case.mode.upload)
        call = Call(program.address, *self.case.credentials, self.case.host, port, self._folder)
        words = self._tools.command(self.case.mode.command(call))
        try:
            with upload.open("rb") as stdin:
                self._client = subprocess.run(
                    words,
                    stdin=stdin,
                    capture_output=True,
                    timeout=CASE_SECONDS,
                    env=self._tools.environment(),
                    check=False,
                )
        except subprocess.TimeoutExpired as slow:
            self._client = subprocess.CompletedProcess(words, None, slow.stdout or b"", slow.stderr or b"")
            self.faults.append(f"the client takes longer than {CASE_SECONDS} s")
        return self._client

    def _expect(self, what, have, wanted):
        if have != wanted:
            self.faults.append(f"{what}: {have}, expected {wanted}")

    def _check_answer(self, finished):
        mode = self.case.mode
        expected = origin.answer_to(mode.upload) * mode.requests if mode.serve else origin.DNS_ANSWERS
        self._expect("the client's exit code", finished.returncode, 0)
        if finished.stdout != expected:
            same = next((at for at, (a, b) in enumerate(zip(finished.stdout, expected)) if a != b), None)
            self.faults.append(
                f"{len(finished.stdout)} bytes arrived of {len(expected)}, and the first wrong one is at {same}"
            )

    def _check_relayed(self, server, metrics, records):
        """Checks that each request had one session, with the byte counts that the origin saw."""
        requests = self.case.mode.requests
        self._expect("connections to the origin", server.connections, self.case.mode.connections or requests)
        relayed = [record for record in records if record["end"] in RELAYED]
        others = [record["end"] for record in records if record["end"] not in RELAYED]
        first = ["denied:"] if self.case.mode.asks_twice and self.case.demands else []
        self._expect("sessions that were not relayed", [end.partition(":")[0] + ":" for end in others], first)
        self._expect("sessions that were relayed", len(relayed), requests)
        self._check_counts(server, metrics, relayed)
        for record in relayed:
            self._check_target(record, server)
        self._check_users(relayed)
        self._check_path(metrics)
        for head in server.heads:
            self._check_head(head)

    def _check_counts(self, server, metrics, relayed):
        for direction, seen in (("up", server.received), ("down", server.sent)):
            counted = metrics.bytes(direction)
            # The program rewrites the answer heads for requests that it forwards.
            written = (
                HEADS_MAX_BYTES * self.case.mode.requests if direction == "down" and self.case.mode.is_sent_on else 0
            )
            if abs(counted - seen) > written:
                self.faults.append(f"bytes {direction} in the metrics: {counted}, and the origin saw {seen}")
            recorded = sum(int(record.get(f"bytes_{direction}", 0)) for record in relayed)
            self._expect(f"bytes {direction} in the records", recorded, counted)

    def _check_target(self, record, server):
        if self.case.family == "name" and self.case.mode.we_look_up:
            self._expect("the record's target", record.get("target"), f"{self.case.host}:{server.port}")

    def _check_users(self, records):
        if self.case.demands:
            self._expect("users in the records", {record.get("user") for record in records}, {USER})

    def _check_datagrams(self, server, metrics, records):
        """Checks that the program relayed two queries and their answers, and no stream."""
        self._expect("queries that reached the name server", server.connections, 2)
        self._expect("datagrams up in the metrics", metrics.sum("spliceway_datagrams_total", direction="up"), 2)
        self._expect("datagrams down in the metrics", metrics.sum("spliceway_datagrams_total", direction="down"), 2)
        self._expect("datagrams in the records", [record.get("datagrams_down") for record in records], ["2"])
        self._expect("ends of the records", [record["end"] for record in records], ["client_eof"])
        self._check_users(records)

    def _check_path(self, metrics):
        if self.case.mode.in_chunks:
            return
        # The program reads the bodies of requests that it forwards, to find the ends of the bodies.
        copies_up = self.case.mode.uploads_in_drops or self.case.mode.is_sent_on
        directions = ["down"] if copies_up else ["up", "down"]
        parts = [metrics.bytes(direction, "splice") / max(metrics.bytes(direction), 1) for direction in directions]
        self.spliced = min(parts)
        least = SPLICED_MIN_BEHIND_COPIES if self.case.mode.upstream else SPLICED_MIN
        if self.spliced < least:
            self.faults.append(f"spliced fractions of {directions}: {parts}, expected at least {least}")

    def _check_head(self, head):
        """Checks that the program does not forward fields for the proxy to the origin."""
        request, *lines = head.decode("latin-1").lower().split("\r\n")
        self._expect("the request's target", request.split()[1], "/exchange")
        for line in lines:
            if line.startswith("proxy-"):
                self.faults.append(f"the origin was told {line!r}")

    def _check_refused(self, finished, server, metrics, records):
        """Checks that the client reports its failure, and that nothing reached the origin."""
        if finished.returncode == 0:
            self.faults.append("the client takes it for a success")
        self._expect("connections to the origin", server.connections, 0)
        self._expect("bytes relayed", metrics.bytes("up") + metrics.bytes("down"), 0)
        if self.case.mode.upstream:
            wanted = "connect_failed:"
        else:
            wanted = "connect_failed:ECONNREFUSED" if self.case.auth == "closed" else "denied:"
        wrong = [record["end"] for record in records if not record["end"].startswith(wanted)]
        self._expect(f"ends other than {wanted}", wrong, [])
        if self.case.demands and not metrics.sum("spliceway_refused_total"):
            self.faults.append("spliceway_refused_total counts no client")
