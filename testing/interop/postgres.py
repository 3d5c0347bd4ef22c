"""Cases with PostgreSQL: drivers reach two servers by name through one port of the program.

```text
  driver ─▶ sni --starttls postgres ─▶ the server of the name
```
"""

import os
import subprocess
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cases import Outcome
from install import HERE, postgres_program
from program import Failed, Program
from upstreams import reserved_port

PATIENCE_SECONDS = 30
VALUE_BYTES = 4_000_000
NAMES = ("db1.interop.test", "db2.interop.test")
# A server refuses to run as root.
AS_POSTGRES = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []


@dataclass(frozen=True)
class PostgresCase:
    """What one driver does.

    `word` is one of these:
    - `tls`: the driver checks the name, and passes a value both ways.
    - `binding`: the same, and the driver insists on channel binding.
    - `cancel`: the driver ends a query by a connection of its own.
    - `disable`: the driver does not ask for TLS, and is refused.
    """

    driver: str
    word: str

    demands = False

    def __str__(self):
        return f"postgres {self.driver} {self.word}"

    @property
    def client(self):
        return f"postgres {self.driver}"

    @property
    def needs(self):
        return ("openssl", "initdb", *DRIVERS[self.driver].needs)

    def run(self, program, tools):
        """Returns the outcome of this build of the program."""
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="interop-") as folder:
            attempt = Attempt(self, tools, Path(folder))
            try:
                attempt.run(program)
            except (Failed, OSError, subprocess.SubprocessError) as failed:
                attempt.faults.append(str(failed))
            return Outcome(self, time.monotonic() - started, attempt.faults, "\n".join(attempt.log), None)


def postgres_cases():
    return [PostgresCase(name, word) for name, driver in DRIVERS.items() for word in driver.words]


class Attempt:
    """One run of one case."""

    def __init__(self, case, tools, folder):
        self.case = case
        self.faults = []
        self.log = []
        self._tools = tools
        self._folder = folder

    def run(self, path):
        self._folder.chmod(0o755)
        (self._folder / "hosts").write_text(f"127.0.0.1 {' '.join(NAMES)}\n")
        with ExitStack() as stack:
            ports = {name: stack.enter_context(reserved_port()) for name in NAMES}
            for name, port in ports.items():
                stack.enter_context(server(self._folder, name, port))
            routes = [word for name in NAMES for word in ("--route", f"{name}=127.0.0.1:{ports[name]}")]
            words = ["sni", "--listen", "127.0.0.1:0", "--starttls", "postgres", *routes]
            router = stack.enter_context(Program(path, words))
            for name in NAMES:
                self._ask(name, router.address[1], ports[name])
            # Sessions that have ended, and no session waits for its time limit.
            router.settled()
            records = router.stop()
            self.log += router.lines[-20:]
        self._check(records, ports)

    def _ask(self, name, port, own):
        """Asks the server of a name for its port and for a large value."""
        call = Call(name, port, self._folder, self.case.word, self._tools.pgjdbc)
        words = self._tools.command(DRIVERS[self.case.driver].command(call))
        environment = {**self._tools.environment(), "PGPASSWORD": "secret"}
        said = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            env=environment,
            check=False,
        )
        if self.case.word == "disable":
            if said.returncode == 0:
                self.faults.append(f"{name}: the driver reaches a server without TLS")
        elif (said.returncode, said.stdout.split()) != (0, [str(own), str(VALUE_BYTES)]):
            self.faults.append(f"{name}: exit code {said.returncode}, and it says {said.stdout[-200:]!r}")
            self.log += said.stderr.splitlines()[-20:]

    def _check(self, records, ports):
        if self.case.word == "disable":
            # pgx opens another connection to cancel, and may close it before it says anything.
            ends = {record["end"] for record in records} - {"client_eof"}
            self._expect("records", ends, {"denied:tls_missing"})
            self._expect("targets", [record["target"] for record in records if "target" in record], [])
            return
        # A query is cancelled by a connection of its own.
        each = 2 if self.case.word == "cancel" else 1
        for name, port in ports.items():
            targets = [record.get("target") for record in records if record.get("sni") == name]
            self._expect(f"the targets of {name}", targets, [f"127.0.0.1:{port}"] * each)
        self._expect("records", len(records), each * len(ports))

    def _expect(self, what, have, wanted):
        if have != wanted:
            self.faults.append(f"{what}: {have}, expected {wanted}")


@dataclass(frozen=True)
class Call:
    """What a driver is asked to do."""

    name: str
    port: int
    folder: Path
    word: str
    pgjdbc: Path

    @property
    def authority(self):
        return str(self.folder / f"{self.name}.pem")

    def arguments(self):
        return [self.name, str(self.port), self.authority, self.word, str(VALUE_BYTES)]


@dataclass(frozen=True)
class Driver:
    needs: tuple
    words: tuple
    command: object


def psql(call):
    mode = "disable" if call.word == "disable" else "verify-full"
    binding = "require" if call.word == "binding" else "prefer"
    target = (
        f"host={call.name} hostaddr=127.0.0.1 port={call.port} user=app dbname=postgres "
        f"sslmode={mode} sslrootcert={call.authority} channel_binding={binding}"
    )
    value = call.folder / "value.sql"
    value.write_text(f"select current_setting('port');\nselect length('{'x' * VALUE_BYTES}');\n")
    return ["psql", target, "-XAtq", "-v", "ON_ERROR_STOP=1", "-f", str(value)]


def pgjdbc(call):
    # Java takes names from this file.
    hosts = f"-Djdk.net.hosts.file={call.folder / 'hosts'}"
    return ["java", hosts, "-cp", str(call.pgjdbc), str(HERE / "clients" / "Pgjdbc.java"), *call.arguments()]


DRIVERS = {
    "psql": Driver(("psql",), ("tls", "binding", "disable"), psql),
    "asyncpg": Driver(
        ("python",),
        ("tls", "cancel", "disable"),
        lambda call: ["{python}", str(HERE / "clients" / "postgres-asyncpg.py"), *call.arguments()],
    ),
    "pgx": Driver(("pgx",), ("tls", "disable"), lambda call: ["{pgx}", *call.arguments()]),
    "pgjdbc": Driver(("pgjdbc",), ("tls", "binding", "disable"), pgjdbc),
}


@contextmanager
def server(folder, name, port):
    """Runs a server with a certificate for its name."""
    home, data = folder / name, folder / name / "data"
    home.mkdir()
    (home / "password").write_text("secret")
    if AS_POSTGRES:
        subprocess.run(["chown", "-R", "postgres", home], check=True)
    words = ["-U", "app", "-A", "scram-sha-256", "--no-sync", "--pwfile", home / "password"]
    quiet(*AS_POSTGRES, postgres_program("initdb"), "-D", data, *words)
    authority = folder / f"{name}.pem"
    words = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    words += ["-days", "2", "-subj", "/CN=interop", "-addext", f"subjectAltName=DNS:{name}"]
    quiet(*words, "-keyout", data / "server.key", "-out", authority)
    (data / "server.crt").write_bytes(authority.read_bytes())
    if AS_POSTGRES:
        subprocess.run(["chown", "postgres", data / "server.key", data / "server.crt"], check=True)
    words = ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "ssl=on", "-c", f"port={port}"]
    quiet(*AS_POSTGRES, postgres_program("pg_ctl"), "start", "-w", "-D", data, "-l", home / "log", "-o", " ".join(words))
    try:
        yield
    finally:
        quiet(*AS_POSTGRES, postgres_program("pg_ctl"), "stop", "-w", "-m", "immediate", "-D", data)


def quiet(*words):
    ended = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if ended.returncode != 0:
        raise Failed(f"`{words[0]}` failed: {ended.stdout.decode(errors='replace')[-2000:]}")
