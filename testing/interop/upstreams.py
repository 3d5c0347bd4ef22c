"""Third-party proxies that the program uses as its upstream proxy."""

import socket
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Callable

from program import Failed

PATIENCE_SECONDS = 10

USER = "joe"
# Letters and digits only, because tinyproxy does not accept other characters.
SECRET = "through2"
WRONG_SECRET = "through3"


@dataclass(frozen=True)
class Upstream:
    """A proxy that is started for each case, and the URL scheme for reaching it."""

    scheme: str
    # Maps three values to the command line: a port, whether a password is demanded, and a folder.
    command: Callable

    @contextmanager
    def running(self, auth, folder):
        """Serves on its own port until the end. Yields the URL for a case with this `auth`."""
        demands = auth in ("right", "wrong", "missing")
        said = folder / "upstream.log"
        with reserved_port() as port, said.open("wb") as log:
            child = subprocess.Popen(
                self.command(port, demands, folder), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log
            )
            try:
                await_listener(child, port, said)
                secrets = {"right": SECRET, "wrong": WRONG_SECRET, "unneeded": SECRET}
                login = f"{USER}:{secrets[auth]}@" if auth in secrets else ""
                yield f"{self.scheme}://{login}127.0.0.1:{port}"
            finally:
                child.terminate()
                child.wait()


def microsocks(port, demands, _folder):
    login = ["-u", USER, "-P", SECRET] if demands else []
    return ["microsocks", "-i", "127.0.0.1", "-p", str(port), *login]


def tinyproxy(port, demands, folder):
    settings = folder / "tinyproxy.conf"
    login = f"BasicAuth {USER} {SECRET}\n" if demands else ""
    settings.write_text(f"Port {port}\nListen 127.0.0.1\nMaxClients 10\nTimeout 30\nLogLevel Error\n{login}")
    return ["tinyproxy", "-d", "-c", str(settings)]


def ncat(port, demands, _folder):
    login = ["--proxy-auth", f"{USER}:{SECRET}"] if demands else []
    return ["ncat", "--listen", "127.0.0.1", str(port), "--proxy-type", "http", *login]


@contextmanager
def reserved_port():
    """Reserves a port, because none of these proxies accepts port 0 and reports its actual port.

    The port stays reserved while it is used. The kernel could give a free port to any program, for
    example as the source port of the next connection. A server still gets the reserved port by
    requesting the number with SO_REUSEADDR, because nothing listens here. The port is reserved on
    every address of both families, because ncat listens on all of them despite its arguments.
    """
    with socket.socket(socket.AF_INET6) as held:
        held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("::", 0))
        yield held.getsockname()[1]


def await_listener(child, port, said):
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError as refused:
            if child.poll() is not None or time.monotonic() > until:
                ended = "runs" if child.poll() is None else f"has ended with {child.returncode}"
                raise Failed(f"{child.args[0]} {ended}: {refused}, {said.read_text(errors='replace')}") from None
            time.sleep(0.01)
