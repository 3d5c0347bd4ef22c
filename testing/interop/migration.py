"""The page for operators who migrate: runs its blocks, and compares what clients and servers see.

Each case has two network namespaces of its own, so the blocks run as they are printed:

```text
  client ─▶ the original, then the program ─┼─▶ servers
  10.0.0.1                                  │   10.0.0.7, 10.0.0.8
```
"""

import ctypes
import hashlib
import os
import random
import re
import shlex
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.dont_write_bytecode = True

PAGE = Path(__file__).resolve().parents[2] / "docs" / "migration-operators.md"
PATIENCE_SECONDS = 25
OWN = "10.0.0.1"
SERVERS = [(f"10.0.0.{host}", port) for host in (7, 8) for port in (80, 443, 5432, 5433)]
NAMES = "DNS:web.example,DNS:db.example"
# The server that speaks TLS.
TLS_SERVER = ("10.0.0.8", 5433)

# A server knows from the mark that it has the whole upload.
MARK = b"the end of the upload"
UPLOAD = random.Random(1).randbytes(2 << 20) + MARK
DOWNLOAD = random.Random(2).randbytes(2 << 20)
V2 = b"\r\n\r\n\0\r\nQUIT\n"
# The state of a socket that listens, in /proc/net/tcp.
LISTEN = "0A"
# From linux/sched.h.
CLONE_NEWNET = 0x40000000


class Failed(Exception):
    """A block does not do what it must."""


@dataclass(frozen=True)
class Probe:
    """What one client does, and the server that it must reach. `None` is a refusal."""

    port: int
    reaches: tuple | None
    # The name in a ClientHello that is sent before the upload, and that no proxy ends.
    hello: str | None = None
    # The name of the server in TLS that the proxy ends.
    tls: str | None = None
    # The target and the login of a SOCKS5 client.
    socks: tuple | None = None
    login: tuple | None = None


A, B = ("10.0.0.7", 5432), ("10.0.0.8", 5432)
BY_NAME = (
    Probe(443, ("10.0.0.8", 443), hello="b.example"),
    Probe(443, ("10.0.0.7", 443), hello="other.example"),
)


@dataclass(frozen=True)
class Original:
    """A program whose configuration the page has."""

    name: str
    # `None` if it cannot be installed here: only the program's own block runs.
    tool: str | None
    # Maps the block and the folder to command lines.
    words: object
    probes: tuple
    # Whether its PROXY headers have the address that the client reached.
    states_target: bool = True


def haproxy(text, folder):
    return [["haproxy", "-db", "-f", written(folder, text)]]


def nginx(text, folder):
    module = "/usr/lib/nginx/modules/ngx_stream_module.so"
    head = f"load_module {module};\ndaemon off;\npid {folder}/pid;\nerror_log stderr warn;\nuser root;\nevents {{}}\n"
    return [["nginx", "-p", str(folder), "-c", written(folder, head + text), "-e", "stderr"]]


def dante(text, folder):
    head = "logoutput: stderr\nuser.privileged: root\nuser.unprivileged: root\n"
    return [["danted", "-f", written(folder, head + text), "-p", str(folder / "pid")]]


def stunnel(text, folder):
    return [["stunnel4", written(folder, f"foreground = yes\npid =\ndebug = warning\n{text}")]]


def realm(text, folder):
    return [["realm", "-c", written(folder, text)]]


def shell(text, _folder):
    """The command lines of a block of the shell."""
    return [shlex.split(line) for line in text.splitlines()]


def written(folder, text):
    path = folder / "original.toml"
    path.write_text(text)
    return str(path)


ORIGINALS = (
    Original("HAProxy", "haproxy", haproxy, (Probe(5432, A), *BY_NAME)),
    Original("nginx", "nginx", nginx, (Probe(5432, A), *BY_NAME)),
    Original(
        "gost",
        None,
        shell,
        (
            Probe(5432, A),
            Probe(1080, A, socks=A, login=("ann", "secret")),
            Probe(1080, None, socks=A, login=("ann", "wrong")),
        ),
    ),
    Original("realm", "realm", realm, (Probe(5432, A), Probe(5433, B)), states_target=False),
    Original("Dante", "danted", dante, (Probe(1080, A, socks=A), Probe(1080, None, socks=B))),
    Original(
        "stunnel",
        "stunnel4",
        stunnel,
        (Probe(443, ("10.0.0.7", 80), tls="web.example"), Probe(5432, TLS_SERVER)),
    ),
)


@dataclass(frozen=True)
class MigrationCase:
    """One section of the page."""

    original: Original

    demands = False

    def __str__(self):
        return f"migration {self.original.name}"

    client = property(__str__)

    @property
    def needs(self):
        tool = (self.original.tool,) if self.original.tool else ()
        return ("openssl", "ip", "unshare", *tool)

    def run(self, program):
        """Returns seconds, faults and the log of this build of the program."""
        started = time.monotonic()
        flags = ["--net"] if os.geteuid() == 0 else ["--net", "--user", "--map-root-user"]
        words = ["unshare", *flags, sys.executable, __file__, self.original.name, str(Path(program).resolve())]
        ended = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        faults = ended.stdout.splitlines()
        if ended.returncode != 0 and not faults:
            faults = [f"exit code {ended.returncode}"]
        return time.monotonic() - started, faults, "\n".join(ended.stderr.splitlines()[-20:])


def migration_cases():
    return [MigrationCase(original) for original in ORIGINALS]


def blocks(name):
    """The block of the original and that of the program: (language, text)."""
    section = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.M | re.S)
    found = re.findall(r"^```(\w+)\n(.*?)^```$", section[1], re.M | re.S) if section else []
    if len(found) != 2:
        raise Failed(f"section {name}: expected two blocks, found {len(found)}")
    return found


class Servers:
    """Servers on all addresses of the page, which record what they receive."""

    def __init__(self, folder):
        self.seen = []
        self._arrived = threading.Condition()
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(folder / "web.pem", folder / "web.key")
        for address in SERVERS:
            listener = socket.create_server(address)
            context = tls if address == TLS_SERVER else None
            thread = threading.Thread(target=self._accept, args=(listener, address, context), daemon=True)
            thread.start()
        # Names the namespace of the servers.
        self.thread = thread.native_id

    def next(self):
        """What the next server has seen."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: self.seen, PATIENCE_SECONDS):
                raise Failed("no server has got the upload")
            return self.seen.pop()

    def _accept(self, listener, address, context):
        while True:
            stream, _ = listener.accept()
            threading.Thread(target=self._serve, args=(stream, address, context), daemon=True).start()

    def _serve(self, stream, address, context):
        # A check connects, and ends without a byte.
        try:
            with stream:
                header, stream = read_header(stream), context.wrap_socket(stream, server_side=True) if context else stream
                received = b""
                while not received.endswith(MARK):
                    part = stream.recv(1 << 18)
                    if not part:
                        return
                    received += part
                digest = hashlib.sha256(received).hexdigest()
                with self._arrived:
                    self.seen.append((address, header, len(received), digest))
                    self._arrived.notify_all()
                stream.sendall(digest.encode() + DOWNLOAD)
                if context:
                    stream.unwrap()
        except OSError:
            return


def read_header(stream):
    """The PROXY header without the port of the client, or None."""
    start = stream.recv(16, socket.MSG_PEEK | socket.MSG_WAITALL)
    if start.startswith(V2):
        head = exactly(stream, 16)
        rest = exactly(stream, int.from_bytes(head[14:16], "big"))
        source, target, port = rest[:4], rest[4:8], int.from_bytes(rest[10:12], "big")
        return ("v2", head[12:14].hex(), socket.inet_ntoa(source), socket.inet_ntoa(target), port)
    if start.startswith(b"PROXY "):
        line = b""
        while not line.endswith(b"\r\n"):
            line += exactly(stream, 1)
        words = line.decode().split()
        return ("v1", *words[1:4], words[5])
    return None


def exactly(stream, length):
    data = b""
    while len(data) < length:
        part = stream.recv(length - len(data))
        if not part:
            raise ConnectionResetError("it has ended")
        data += part
    return data


def ask(original, probe, servers, folder):
    """What a client and a server see: the server, the PROXY header, and digests of the bytes."""
    with socket.create_connection((OWN, probe.port), timeout=PATIENCE_SECONDS) as stream:
        if probe.socks and not connect_by_socks(stream, probe):
            return None
        if probe.tls:
            context = ssl.create_default_context(cafile=folder / "ca.pem")
            stream = context.wrap_socket(stream, server_hostname=probe.tls)
        data = (client_hello(probe.hello) if probe.hello else b"") + UPLOAD
        stream.sendall(data)
        answer = b""
        while part := stream.recv(1 << 18):
            answer += part
        seen = servers.next()
        if answer != hashlib.sha256(data).hexdigest().encode() + DOWNLOAD:
            raise Failed(f"{probe}: the answer has {len(answer)} bytes, which differ from what the server sent")
        if seen[2] != len(data):
            raise Failed(f"{probe}: the server received {seen[2]} bytes, expected {len(data)}")
        address, header, length, digest = seen
        if header and not original.states_target:
            header = header[:3]
        # A ClientHello has random bytes, so its digest is not the same for another client.
        return (address, header, length, None if probe.hello else digest)


def connect_by_socks(stream, probe):
    """Whether the proxy connects to the target of a SOCKS5 client."""
    stream.sendall(b"\x05\x01\x02" if probe.login else b"\x05\x01\x00")
    exactly(stream, 2)
    if probe.login:
        name, secret = (part.encode() for part in probe.login)
        stream.sendall(bytes([1, len(name)]) + name + bytes([len(secret)]) + secret)
        if exactly(stream, 2)[1] != 0:
            return False
    host, port = probe.socks
    stream.sendall(b"\x05\x01\x00\x01" + socket.inet_aton(host) + port.to_bytes(2, "big"))
    return exactly(stream, 10)[1] == 0


def client_hello(name):
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    try:
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()


@contextmanager
def running(lines, probes, folder):
    """Runs these command lines until the end, once the ports of the probes are open."""
    with ExitStack() as stack:
        children = []
        for line in lines:
            line = list(line)
            environment = dict(os.environ)
            while "=" in line[0]:
                name, _, value = line.pop(0).partition("=")
                environment[name] = value
            child = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=2, cwd=folder, env=environment)
            children.append(child)
            stack.callback(child.wait)
            stack.callback(child.terminate)
        until = time.monotonic() + PATIENCE_SECONDS
        while not all(listens(probe.port) for probe in probes):
            ended = [child.args[0] for child in children if child.poll() is not None]
            if ended or time.monotonic() > until:
                raise Failed(f"{lines[0][0]} does not listen; ended: {ended}")
            time.sleep(0.01)
        yield


def listens(port):
    """Whether a socket of this namespace listens on this port (proc_pid_net(5))."""
    lines = [line for table in ("tcp", "tcp6") for line in Path(f"/proc/self/net/{table}").read_text().splitlines()]
    return any(words[1].endswith(f":{port:04X}") and words[3] == LISTEN for words in map(str.split, lines[1:]))


def make_certificate(folder):
    """Makes a certificate that signs itself."""
    words = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-days", "2"]
    words += ["-subj", "/CN=migration", "-addext", f"subjectAltName={NAMES}"]
    run([*words, "-keyout", str(folder / "web.key"), "-out", str(folder / "web.pem")])
    (folder / "web.key").chmod(0o600)
    (folder / "ca.pem").write_bytes((folder / "web.pem").read_bytes())


def start_servers(folder):
    """Starts the servers here, and moves this thread to a namespace with a link to them."""
    run(["ip", "link", "set", "lo", "up"])
    for host in {host for host, _ in SERVERS}:
        run(["ip", "address", "add", f"{host}/32", "dev", "lo"])
    servers = Servers(folder)
    # Python has this call since 3.12.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        raise Failed(f"no namespace: {os.strerror(ctypes.get_errno())}")
    there = str(servers.thread)
    run(["ip", "link", "set", "lo", "up"])
    run(["ip", "link", "add", "servers", "type", "veth", "peer", "name", "clients", "netns", there])
    run(["ip", "address", "add", f"{OWN}/24", "dev", "servers"])
    run(["ip", "link", "set", "servers", "up"])
    inside = ["nsenter", "--target", there, "--net", "ip"]
    run([*inside, "link", "set", "clients", "up"])
    run([*inside, "route", "add", OWN, "dev", "clients"])
    return servers


def run(words):
    subprocess.run(words, check=True, capture_output=True)


def program_lines(language, text, program, folder):
    if language == "toml":
        path = folder / "spliceway.toml"
        path.write_text(text)
        return [[program, "run", "-c", str(path)]]
    return [[program if word == "spliceway" else word for word in line] for line in shell(text, folder)]


def compare(original, program, folder):
    """Yields the faults of a section."""
    (_, theirs), (language, ours) = blocks(original.name)
    make_certificate(folder)
    servers = start_servers(folder)
    sides = [("spliceway", program_lines(language, ours, program, folder))]
    if original.tool:
        sides.insert(0, (original.name, original.words(theirs, folder)))
    results = []
    for name, lines in sides:
        with running(lines, original.probes, folder):
            seen = [ask(original, probe, servers, folder) for probe in original.probes]
        for probe, what in zip(original.probes, seen):
            print(f"{name}: port {probe.port}: {what}", file=sys.stderr)
            if (what and what[0]) != probe.reaches:
                yield f"{name}: port {probe.port}: reached {what and what[0]}, expected {probe.reaches}"
        results.append(seen)
    if results[0] != results[-1]:
        yield f"{original.name}: {results[0]}, spliceway: {results[-1]}"


def main():
    name, program = sys.argv[1:]
    original = next(original for original in ORIGINALS if original.name == name)
    with tempfile.TemporaryDirectory(prefix="interop-") as folder:
        try:
            faults = list(compare(original, program, Path(folder)))
        except (Failed, OSError, subprocess.CalledProcessError) as failed:
            faults = [str(failed)]
    print(*faults, sep="\n", end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
