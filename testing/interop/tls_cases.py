"""Cases with TLS: the program at one end, and a third-party program at the other.

```text
  terminate   client ─▶ peer ═ TLS ═▶ program ─▶ origin
  originate   client ─▶ program ═ TLS ═▶ peer ─▶ origin
```
"""

import socket
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import origin
from cases import Outcome
from program import Failed, Program
from tls_peers import NAME, PEERS, Pair, Peer

PATIENCE_SECONDS = 25

# How a fetch ends. After `half-close`, the answer follows the client's end. After `answer`, the
# origin ends first, and the client ends when it has the answer.
ENDS = ("half-close", "answer")


@dataclass(frozen=True)
class TlsCase:
    """One fetch through the program and a peer."""

    peer: Peer
    # What the program does: `terminate` or `originate`.
    role: str
    version: str
    end: str

    demands = False

    def __str__(self):
        return f"tls {self.peer.name} {self.role} {self.version} {self.end}"

    @property
    def client(self):
        return f"tls {self.peer.name}"

    @property
    def needs(self):
        return ("openssl", self.peer.tool)

    def run(self, program):
        """Returns the outcome of this build of the program."""
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="interop-") as folder:
            attempt = Attempt(self, Path(folder))
            try:
                attempt.run(program)
            except (Failed, OSError) as failed:
                attempt.faults.append(str(failed))
            return Outcome(self, time.monotonic() - started, attempt.faults, attempt.log(), None)


def tls_cases():
    for peer in PEERS:
        for role, start in (("terminate", peer.originates), ("originate", peer.terminates)):
            ends = ENDS if role == "terminate" or peer.serves_half_closes else ENDS[1:]
            for version in peer.versions if start else ():
                for end in ends:
                    yield TlsCase(peer, role, version, end)


class Attempt:
    """One run of one case, from the start of the servers to the verdict."""

    def __init__(self, case, folder):
        self.case = case
        self.faults = []
        self._folder = folder
        self._program = None

    def run(self, path):
        pair = Pair.made(self._folder)
        server = origin.Origin(serve_after_end if self.case.end == "half-close" else serve_after_length)
        with self._chain(path, pair, server.port) as (program, port):
            answer = self._fetch(port)
            server.finish()
            metrics = program.settled()
            records = program.stop()
        self.faults += server.faults
        self._expect("the answer", Digest(answer), Digest(origin.answer_to(origin.UPLOAD)))
        relayed = [record for record in records if int(record["bytes_up"])]
        self._expect("sessions that were relayed", len(relayed), 1)
        for record in relayed:
            self._check(record, server, metrics)

    def log(self):
        """The output of the peer and the program."""
        said = self._folder / "peer.log"
        lines = said.read_text(errors="replace").splitlines()[-20:] if said.exists() else []
        if self._program:
            lines += ["program:", *self._program.lines[-20:]]
        return "\n".join(f"    {line}" for line in lines)

    @contextmanager
    def _chain(self, path, pair, port):
        """Starts the program and the peer. Yields the program, and the port for clients."""
        peer, version = self.case.peer, self.case.version
        if self.case.role == "terminate":
            words = ["--tls-cert", str(pair.certificate), "--tls-key", str(pair.key)]
            with self._start(path, f"127.0.0.1:{port}", words) as program:
                with peer.running(peer.originates, program.address[1], pair, version, self._folder) as own:
                    yield program, own
        else:
            with peer.running(peer.terminates, port, pair, version, self._folder) as own:
                words = ["--target-tls-ca", str(pair.certificate), "--target-tls-name", NAME]
                with self._start(path, f"tls://127.0.0.1:{own}", words) as program:
                    yield program, program.address[1]

    def _start(self, path, to, words):
        self._program = Program(path, ["forward", "--listen", "127.0.0.1:0", "--remote", to, *words])
        return self._program

    def _fetch(self, port):
        """Sends the upload and receives the answer at the same time."""
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) as stream:
            sender = threading.Thread(target=self._send, args=[stream])
            sender.start()
            parts = []
            while part := stream.recv(1 << 18):
                parts.append(part)
            sender.join()
        return b"".join(parts)

    def _send(self, stream):
        try:
            stream.sendall(origin.UPLOAD)
            if self.case.end == "half-close":
                stream.shutdown(socket.SHUT_WR)
        except OSError as error:
            self.faults.append(f"the client cannot send: {error}")

    def _expect(self, what, have, wanted):
        if have != wanted:
            self.faults.append(f"{what}: {have}, expected {wanted}")

    def _check(self, record, server, metrics):
        for direction, seen in (("up", server.received), ("down", server.sent)):
            self._expect(f"bytes {direction} in the record", int(record[f"bytes_{direction}"]), seen)
            self._expect(f"bytes {direction} in the metrics", metrics.bytes(direction), seen)
        prefix = "target_" if self.case.role == "originate" else ""
        self._expect("the version in the record", record.get(f"{prefix}tls"), self.case.version)
        if self.case.role == "terminate":
            self._expect("the name in the record", record.get("sni"), NAME)
        end = "client_eof" if self.case.end == "half-close" else "upstream_eof"
        self._expect("the end", record["end"], end)
        truncated = None if self.case.peer.announces else "yes"
        self._expect("an end that TLS did not announce", record.get(f"{prefix}truncated"), truncated)


class Digest:
    """Bytes that a message shows by their length."""

    def __init__(self, data):
        self._data = data

    def __eq__(self, other):
        return self._data == other._data

    def __repr__(self):
        return f"{len(self._data)} bytes from {self._data[:16]!r}"


def serve_after_end(own, stream):
    origin.serve_stream(own, stream)


def serve_after_length(own, stream):
    """Answers once it has the whole upload, and ends first."""
    reader = origin.Reader(own, stream)
    reader.exactly(len(origin.UPLOAD))
    own.send(stream, origin.answer_to(origin.UPLOAD))
