"""Third-party programs that speak TLS on one side: clear text in and TLS out, or the reverse."""

import os
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from install import NGINX_STREAM
from program import Failed
from upstreams import PATIENCE_SECONDS, reserved_port

NAME = "a.interop.test"
VERSIONS = ("1.2", "1.3")
# The state of a socket that listens, in /proc/net/tcp.
LISTEN = "0A"


@dataclass(frozen=True)
class Pair:
    """The files of a certificate for `NAME`, which signs itself, and of its key."""

    certificate: Path
    key: Path
    # Both in one file.
    both: Path

    @classmethod
    def made(cls, folder):
        pair = cls(folder / "certificate.pem", folder / "key.pem", folder / "both.pem")
        words = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        words += ["-days", "2", "-subj", "/CN=interop", "-addext", f"subjectAltName=DNS:{NAME}"]
        words += ["-keyout", str(pair.key), "-out", str(pair.certificate)]
        subprocess.run(words, check=True, capture_output=True)
        pair.key.chmod(0o600)
        pair.both.touch(mode=0o600)
        pair.both.write_bytes(pair.certificate.read_bytes() + pair.key.read_bytes())
        return pair


@dataclass(frozen=True)
class Side:
    """What a peer is started with."""

    port: int
    # The port to which it connects.
    to: int
    pair: Pair
    version: str
    folder: Path

    def write(self, text):
        settings = self.folder / "peer.conf"
        settings.write_text(text)
        return str(settings)


@dataclass(frozen=True)
class Peer:
    """A program, with a function for each side on which it speaks TLS: `Side` → command line."""

    name: str
    tool: str
    originates: Callable | None
    terminates: Callable | None = None
    # Whether it announces its end (`close_notify`) before it closes its side.
    announces: bool = True
    # Whether it still sends everything to a client that has ended its side, where it terminates.
    serves_half_closes: bool = True
    # The versions to which it can be restricted.
    versions: tuple = VERSIONS

    @contextmanager
    def running(self, start, to, pair, version, folder):
        """Runs one side of the peer until the end. Yields its port."""
        said = folder / "peer.log"
        with reserved_port() as port, said.open("wb") as log:
            words = start(Side(port, to, pair, version, folder))
            child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder)
            try:
                await_port(child, port, said)
                yield port
            finally:
                child.terminate()
                child.wait()


def await_port(child, port, said):
    """Waits until the peer listens, without a connection, which the peer would pass on."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not listens(port):
        if child.poll() is not None or time.monotonic() > until:
            raise Failed(f"{child.args[0]} does not listen: {said.read_text(errors='replace')}")
        time.sleep(0.01)


def listens(port):
    """Whether a socket listens on this port (proc_pid_net(5))."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return any(words[1].endswith(f":{port:04X}") and words[3] == LISTEN for words in map(str.split, lines))


def stunnel(side, role):
    version = f"TLSv{side.version}"
    service = f"[a]\naccept = 127.0.0.1:{side.port}\nconnect = 127.0.0.1:{side.to}\n"
    versions = f"sslVersionMin = {version}\nsslVersionMax = {version}\n"
    return ["stunnel4", side.write(f"foreground = yes\npid =\ndebug = warning\n{service}{versions}{role}")]


def stunnel_originates(side):
    checks = f"verifyChain = yes\nCAfile = {side.pair.certificate}\ncheckHost = {NAME}\n"
    return stunnel(side, f"client = yes\nsni = {NAME}\n{checks}")


def stunnel_terminates(side):
    return stunnel(side, f"cert = {side.pair.certificate}\nkey = {side.pair.key}\n")


def haproxy(side, bind, server):
    times = "".join(f" timeout {what} 30s\n" for what in ("connect", "client", "server"))
    listen = f"listen a\n bind 127.0.0.1:{side.port}{bind}\n server b 127.0.0.1:{side.to}{server}\n"
    return ["haproxy", "-db", "-f", side.write(f"defaults\n mode tcp\n{times}{listen}")]


def haproxy_originates(side):
    version = f"force-tlsv{side.version.replace('.', '')}"
    checks = f"verify required ca-file {side.pair.certificate} verifyhost {NAME}"
    return haproxy(side, "", f" ssl {version} {checks} sni str({NAME})")


def haproxy_terminates(side):
    return haproxy(side, f" ssl crt {side.pair.both} force-tlsv{side.version.replace('.', '')}", "")


def nginx(side, ends, listen=""):
    # The prefix of relative paths is the folder of the case.
    settings = (
        f"load_module {NGINX_STREAM};\n"
        f"daemon off;\nmaster_process off;\npid {side.folder}/nginx.pid;\nerror_log stderr warn;\nevents {{}}\n"
        f"stream {{\n server {{\n listen 127.0.0.1:{side.port}{listen};\n proxy_pass 127.0.0.1:{side.to};\n"
        f" proxy_half_close on;\n{ends} }}\n}}\n"
    )
    return ["nginx", "-p", str(side.folder), "-c", side.write(settings), "-e", "stderr"]


def nginx_originates(side):
    checks = f" proxy_ssl_verify on;\n proxy_ssl_trusted_certificate {side.pair.certificate};\n"
    name = f" proxy_ssl_name {NAME};\n proxy_ssl_server_name on;\n"
    return nginx(side, f" proxy_ssl on;\n proxy_ssl_protocols TLSv{side.version};\n{name}{checks}")


def nginx_terminates(side):
    files = f" ssl_certificate {side.pair.certificate};\n ssl_certificate_key {side.pair.key};\n"
    return nginx(side, f"{files} ssl_protocols TLSv{side.version};\n", " ssl")


def socat_versions(side):
    return f"openssl-min-proto-version=TLS{side.version},openssl-max-proto-version=TLS{side.version}"


def socat_originates(side):
    checks = f"cafile={side.pair.certificate},commonname={NAME},snihost={NAME}"
    to = f"OPENSSL:127.0.0.1:{side.to},{socat_versions(side)},{checks}"
    return ["socat", "-t", "30", f"TCP-LISTEN:{side.port},bind=127.0.0.1,reuseaddr,fork", to]


def socat_terminates(side):
    listen = f"OPENSSL-LISTEN:{side.port},bind=127.0.0.1,reuseaddr,fork,verify=0"
    listen += f",cert={side.pair.both},{socat_versions(side)}"
    return ["socat", "-t", "30", listen, f"TCP:127.0.0.1:{side.to}"]


def hitch_terminates(side):
    # It refuses to serve as root.
    user = 'user = "nobody"\n' if os.geteuid() == 0 else ""
    settings = (
        f'frontend = "[127.0.0.1]:{side.port}"\nbackend = "[127.0.0.1]:{side.to}"\npem-file = "{side.pair.both}"\n'
        f'tls-protos = TLSv{side.version}\nworkers = 1\ndaemon = off\nsyslog = off\nquiet = on\n{user}'
    )
    return ["hitch", f"--config={side.write(settings)}"]


def ghostunnel(side, role, *words):
    ends = ["--listen", f"127.0.0.1:{side.port}", "--target", f"127.0.0.1:{side.to}"]
    return ["ghostunnel", role, *ends, "--disable-authentication", *words]


def ghostunnel_originates(side):
    return ghostunnel(side, "client", "--cacert", str(side.pair.certificate), "--override-server-name", NAME)


def ghostunnel_terminates(side):
    return ghostunnel(side, "server", "--cert", str(side.pair.certificate), "--key", str(side.pair.key))


PEERS = (
    Peer("stunnel", "stunnel4", stunnel_originates, stunnel_terminates, serves_half_closes=False),
    Peer("HAProxy", "haproxy", haproxy_originates, haproxy_terminates),
    Peer("nginx", "nginx", nginx_originates, nginx_terminates, announces=False),
    Peer("socat", "socat", socat_originates, socat_terminates),
    Peer("hitch", "hitch", None, hitch_terminates, serves_half_closes=False),
    # It has no option for the newest version.
    Peer("ghostunnel", "ghostunnel", ghostunnel_originates, ghostunnel_terminates, versions=VERSIONS[1:]),
)
