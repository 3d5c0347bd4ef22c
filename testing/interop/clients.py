"""The clients in all their modes: the command that fetches through a proxy, and its limits.

Every client gets a target, and an upload on standard input. It writes the received bytes to
standard output.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

import origin
import upstreams
from program import authority
from upstreams import Upstream

HERE = Path(__file__).parent / "clients"

EVERY_FAMILY = ("ipv4", "ipv6", "name")
# SOCKS4 has no room for an IPv6 address.
SOCKS4_FAMILIES = ("ipv4", "name")

# The functions that origins serve with.
STREAM = origin.serve_stream
HTTP = origin.serve_http
HTTP_TO_THE_END = origin.serve_http_to_the_end
HTTP_ON = origin.serve_http_on
HTTP_ON_IN_CHUNKS = origin.serve_http_on_in_chunks


@dataclass(frozen=True)
class Call:
    """The parameters of one fetch."""

    proxy: tuple
    user: str
    password: str
    host: str
    port: int
    # A folder for this call only. Its file `upload` has the bytes to send.
    folder: Path

    def words(self, kind):
        """The arguments of every client in this repository."""
        return [kind, self.proxy[0], str(self.proxy[1]), self.user, self.password, self.host, str(self.port)]


@dataclass(frozen=True)
class Mode:
    """One client with one protocol and one way to use it."""

    client: str
    name: str
    # The protocol that the proxy must speak: `socks4`, `socks5` or `http`.
    protocol: str
    # Maps a call to the command line.
    command: Callable
    # The function that an origin serves with. None means a name server.
    serve: Callable | None = STREAM
    families: tuple = EVERY_FAMILY
    # Whether the program looks names up. Otherwise the client or the upstream proxy does.
    we_look_up: bool = True
    # The program's upstream proxy. If there is one, passwords are for the upstream proxy.
    upstream: Upstream | None = None
    # Whether the program connects to the target.
    dials: bool = True
    # Whether the mode supports fetches without credentials, and fetches with them.
    without_auth: bool = True
    with_password: bool = True
    # The bytes that the client sends.
    upload: bytes = origin.UPLOAD
    # Whether the client sends pieces so small that the program rightly copies them.
    uploads_in_drops: bool = False
    # Whether a body comes in chunks. The program must find its end, so it copies the body.
    in_chunks: bool = False
    # The number of requests, each of which must be a separate session.
    requests: int = 1
    # The number of connections to the origin. None means one for each request.
    connections: int | None = None
    # Whether a client with a password offers no other method. A proxy that does not demand a
    # password must then refuse the client.
    insists: bool = False
    # Whether the client first asks without credentials, and then repeats the request with them.
    asks_twice: bool = False
    # Tools that must be installed. See `install.Tools`.
    needs: tuple = field(default=())

    @property
    def takes_password(self):
        return self.with_password and self.protocol != "socks4"

    @property
    def is_sent_on(self):
        """Whether the program forwards requests, as it does if their URLs are in absolute form."""
        return self.name.startswith("http")


def curl(scheme, *options, requests=1):
    def command(call):
        return [
            "curl",
            "--disable",
            *("--silent", "--show-error", "--fail", "--max-time", "25", "--noproxy", ""),
            *("--proxy", f"{scheme}://{authority(*call.proxy)}"),
            *(("--proxy-user", f"{call.user}:{call.password}") if call.user else ()),
            *options,
            *("--data-binary", f"@{call.folder / 'upload'}", "--header", "Content-Type: application/octet-stream"),
            *[f"http://{authority(call.host, call.port)}/exchange"] * requests,
        ]

    return command


def ncat(kind):
    def command(call):
        return [
            "ncat",
            *("--proxy", authority(*call.proxy), "--proxy-type", kind, "--proxy-dns", "remote"),
            *(("--proxy-auth", f"{call.user}:{call.password}") if call.user else ()),
            call.host,
            str(call.port),
        ]

    return command


def proxychains(kind):
    def command(call):
        settings = call.folder / "proxychains.conf"
        proxy = " ".join([kind, call.proxy[0], str(call.proxy[1]), call.user, call.password]).rstrip()
        patience = "tcp_connect_time_out 20000\ntcp_read_time_out 20000"
        settings.write_text(f"strict_chain\nproxy_dns\n{patience}\n[ProxyList]\n{proxy}\n")
        return ["proxychains4", "-q", "-f", str(settings), "ncat", call.host, str(call.port)]

    return command


def wget(call):
    return [
        "wget",
        *("--no-config", "--quiet", "--output-document=-", "--tries=1", "--timeout=20"),
        *("-e", "use_proxy=yes", "-e", f"http_proxy=http://{authority(*call.proxy)}"),
        *((f"--proxy-user={call.user}", f"--proxy-password={call.password}") if call.user else ()),
        f"--post-file={call.folder / 'upload'}",
        f"http://{authority(call.host, call.port)}/exchange",
    ]


def netcat(kind):
    return lambda call: ["nc.openbsd", "-N", "-X", kind, "-x", authority(*call.proxy), call.host, str(call.port)]


def socat(kind):
    def command(call):
        (proxy, port), host = call.proxy, call.host
        if ":" in host:
            host = f"[{host}]"
        if ":" in proxy:
            proxy = f"[{proxy}]"
        words = {
            "socks4a": f"SOCKS4A:{proxy}:{host}:{call.port},socksport={port}",
            # socat's options end at a comma or a slash, unless these are escaped.
            "connect": f"PROXY:{proxy}:{host}:{call.port},proxyport={port}"
            + (f",proxyauth={call.user}:{escaped(call.password)}" if call.user else ""),
        }
        return ["socat", "-t", "20", "STDIO", words[kind]]

    return command


def escaped(text):
    return "".join(f"\\{letter}" if letter in ":,/@!" else letter for letter in text)


def own(runner, script, kind):
    """A client from the folder `clients`. `runner` is a key in `install.Tools`."""
    return lambda call: [runner, *([str(HERE / script)] if script else []), *call.words(kind)]


def modes():
    for client in (
        curl_modes(),
        ncat_modes(),
        tool_modes(),
        proxychains_modes(),
        python_modes(),
        node_modes(),
        perl_modes(),
        go_modes(),
        rust_modes(),
        at_once_modes(),
        upstream_modes(),
    ):
        yield from client


def curl_modes():
    def mode(name, protocol, command, **more):
        return Mode("curl", name, protocol, command, HTTP, needs=("curl",), **more)

    yield mode("socks4", "socks4", curl("socks4"), families=SOCKS4_FAMILIES, we_look_up=False)
    yield mode("socks4a", "socks4", curl("socks4a"), families=SOCKS4_FAMILIES)
    yield mode("socks5", "socks5", curl("socks5"), we_look_up=False)
    yield mode("socks5h", "socks5", curl("socks5h"))
    yield mode("http", "http", curl("http"))
    # Without `Expect`, curl does not wait between the head and the body: early data.
    yield mode("http-at-once", "http", curl("http", "--header", "Expect:"))
    yield mode("connect", "http", curl("http", "--proxytunnel"))
    anyauth = {"without_auth": False, "asks_twice": True}
    yield mode("http-anyauth", "http", curl("http", "--proxy-anyauth"), **anyauth)
    yield mode("connect-anyauth", "http", curl("http", "--proxytunnel", "--proxy-anyauth"), **anyauth)
    # Both requests use the same connections, and are separate sessions.
    again = {"requests": 2, "connections": 1, "upload": b"once more", "uploads_in_drops": True, "needs": ("curl",)}
    yield Mode("curl", "http-again", "http", curl("http", requests=2), HTTP_ON, **again)
    yield Mode("curl", "http-chunks-again", "http", curl("http", requests=2), HTTP_ON_IN_CHUNKS, in_chunks=True, **again)
    yield Mode("curl", "http-to-the-end", "http", curl("http"), HTTP_TO_THE_END, needs=("curl",))


def ncat_modes():
    def mode(name, protocol, **more):
        return Mode("ncat", name, protocol, ncat(protocol), uploads_in_drops=True, needs=("ncat",), **more)

    yield mode("socks4", "socks4", families=SOCKS4_FAMILIES)
    yield mode("socks5", "socks5")
    yield mode("connect", "http", asks_twice=True)


def tool_modes():
    yield Mode("wget", "http", "http", wget, HTTP, uploads_in_drops=True, needs=("wget",))

    def netcat_mode(name, protocol, kind, families):
        return Mode(
            "netcat",
            name,
            protocol,
            netcat(kind),
            families=families,
            uploads_in_drops=True,
            with_password=False,
            needs=("nc.openbsd",),
        )

    yield netcat_mode("socks4", "socks4", "4", ("ipv4",))
    yield netcat_mode("socks5", "socks5", "5", EVERY_FAMILY)
    yield netcat_mode("connect", "http", "connect", EVERY_FAMILY)

    def socat_mode(name, protocol, families):
        command = socat(name)
        return Mode("socat", name, protocol, command, families=families, uploads_in_drops=True, needs=("socat",))

    yield socat_mode("socks4a", "socks4", SOCKS4_FAMILIES)
    yield socat_mode("connect", "http", EVERY_FAMILY)


def proxychains_modes():
    def mode(name, protocol, families):
        needs = ("proxychains4", "ncat")
        command = proxychains(protocol)
        return Mode("proxychains4", name, protocol, command, families=families, uploads_in_drops=True, needs=needs)

    yield mode("socks4", "socks4", SOCKS4_FAMILIES)
    yield mode("socks5", "socks5", EVERY_FAMILY)
    yield mode("connect", "http", EVERY_FAMILY)


def python_modes():
    def mode(client, name, protocol, script, serve=STREAM, kind=None, **more):
        command = own("{python}", script, kind or protocol)
        return Mode(client, name, protocol, command, serve, needs=("python",), **more)

    for client, script, serve in (
        ("PySocks", "pysocks.py", STREAM),
        ("python-socks", "python-socks.py", STREAM),
        ("aiohttp-socks", "aiohttp-socks.py", HTTP),
    ):
        yield mode(client, "socks4a", "socks4", script, serve, families=SOCKS4_FAMILIES)
        yield mode(client, "socks5", "socks5", script, serve)
        yield mode(client, "connect", "http", script, serve)
    yield mode("aiohttp", "http", "http", "aiohttp-socks.py", HTTP, kind="forward")
    yield mode("PySocks", "associate", "socks5", "pysocks-udp.py", None, dials=False)


def node_modes():
    def mode(name, protocol, script, **more):
        return Mode("npm-socks", name, protocol, own("{node}", script, protocol), needs=("node",), **more)

    yield mode("socks4a", "socks4", "socks.cjs", families=SOCKS4_FAMILIES)
    yield mode("socks5", "socks5", "socks.cjs")
    yield mode("bind4", "socks4", "socks-bind.cjs", families=("ipv4",), dials=False)
    yield mode("bind", "socks5", "socks-bind.cjs", families=("ipv4", "ipv6"), dials=False)
    yield mode("associate", "socks5", "socks-udp.cjs", serve=None, dials=False)


def perl_modes():
    def mode(name, protocol, **more):
        command = own("{perl}", "io-socket-socks.pl", name)
        return Mode("IO::Socket::Socks", name, protocol, command, needs=("perl",), **more)

    yield mode("socks4", "socks4", families=SOCKS4_FAMILIES, we_look_up=False)
    yield mode("socks4a", "socks4", families=SOCKS4_FAMILIES)
    yield mode("socks5", "socks5")


def go_modes():
    yield Mode("x/net/proxy", "socks5", "socks5", own("{go}", None, "socks5"), needs=("go",))
    yield Mode("net/http", "http", "http", own("{go}", None, "http"), HTTP, in_chunks=True, needs=("go",))


def rust_modes():
    def mode(name, protocol, families):
        return Mode("tokio-socks", name, protocol, own("{rust}", None, protocol), families=families, needs=("rust",))

    yield mode("socks4a", "socks4", SOCKS4_FAMILIES)
    yield mode("socks5", "socks5", EVERY_FAMILY)


def at_once_modes():
    """No library sends the handshake and the data in one call, so the repository has a client."""

    def mode(name, protocol, families):
        return Mode("at-once", name, protocol, own("{self}", "at-once.py", protocol), families=families, insists=True)

    yield mode("socks4a", "socks4", SOCKS4_FAMILIES)
    yield mode("socks5", "socks5", EVERY_FAMILY)
    yield mode("connect", "http", EVERY_FAMILY)


def upstream_modes():
    """curl through the program and then through a third-party proxy."""

    def mode(name, tool, upstream):
        we_look_up = upstream.scheme == "socks5"
        needs = ("curl", tool)
        return Mode(
            "curl", name, "socks5", curl("socks5h"), HTTP, we_look_up=we_look_up, upstream=upstream, needs=needs
        )

    yield mode("via-microsocks-here", "microsocks", Upstream("socks5", upstreams.microsocks))
    yield mode("via-microsocks", "microsocks", Upstream("socks5h", upstreams.microsocks))
    yield mode("via-tinyproxy", "tinyproxy", Upstream("http", upstreams.tinyproxy))
    yield mode("via-ncat", "ncat", Upstream("http", upstreams.ncat))
