"""Real tools in a network whose only way out is the program, with the files of contrib/egress.

```text
  sandbox: a tool ─▶ gateway: nft rules, the program ─▶ outside: servers and a name server
  192.168.0.2        192.168.0.1, 10.0.0.1              10.0.0.10 …
```

Each case does something that the rules allow, and something that they do not. The second one must
fail, reach no server, and leave a record that names the rule to add.
"""

import ctypes
import os
import shlex
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.dont_write_bytecode = True

import egress_files as files  # noqa: E402
from migration import CLONE_NEWNET, Failed, run  # noqa: E402

CONTRIB = Path(__file__).resolve().parents[2] / "contrib" / "egress"
PATIENCE_SECONDS = 60
RESOLVER, WEB, OTHER, SSH = "10.0.0.53", "10.0.0.10", "10.0.0.20", "10.0.0.30"
# What the rules of the program allow. Everything else below `test` is at OTHER.
ALLOWED = {
    **dict.fromkeys(("web.test", "apt.test", "pypi.test", "files.test", "npm.test", "crates.test"), WEB),
    **dict.fromkeys(("dl.test", "goproxy.test", "git.test"), WEB),
    "ssh.test": SSH,
}
RULES = [f"{name}:80,443" for name in ALLOWED if name != "ssh.test"] + ["ssh.test:22", f"{SSH}:22"]


@dataclass(frozen=True)
class EgressCase:
    """What one tool does in the sandbox."""

    tool: str

    demands = False

    def __str__(self):
        return f"egress {self.tool}"

    client = property(__str__)

    @property
    def needs(self):
        return ("openssl", "ip", "nft", "unshare", *TOOLS[self.tool][0])

    def run(self, program):
        """Returns seconds, faults and the log of this build of the program."""
        started = time.monotonic()
        flags = ["--net", "--mount"] if os.geteuid() == 0 else ["--net", "--mount", "--user", "--map-root-user"]
        words = ["unshare", *flags, sys.executable, __file__, self.tool, str(Path(program).resolve())]
        ended = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        faults = ended.stdout.splitlines()
        if ended.returncode != 0 and not faults:
            faults = [f"exit code {ended.returncode}"]
        return time.monotonic() - started, faults, "\n".join(ended.stderr.splitlines()[-40:])


def egress_cases():
    return [EgressCase(tool) for tool in TOOLS]


class Outside:
    """Servers in this namespace: HTTP and HTTPS for all names, and a name server."""

    def __init__(self, folder):
        self.folder = folder
        # The names for which clients have asked a server of HTTP.
        self.hosts = []
        run(["ip", "link", "set", "lo", "up"])
        for address in (RESOLVER, WEB, OTHER, SSH):
            run(["ip", "address", "add", f"{address}/32", "dev", "lo"])
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(folder / "web.pem", folder / "web.key")
        for address in (WEB, OTHER):
            for port, context in ((80, None), (443, tls)):
                server = ThreadingHTTPServer((address, port), self._handler())
                if context:
                    # A handshake must not block the thread that accepts.
                    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
                start(server.serve_forever)
        names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        names.bind((RESOLVER, 53))
        # Names this namespace.
        self.thread = start(self._answer, names).native_id

    def _answer(self, names):
        while True:
            query, client = names.recvfrom(4096)
            names.sendto(answer(query), client)

    def _handler(outside):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = PATIENCE_SECONDS

            def do_GET(self):
                host = self.headers.get("Host", "").split(":")[0]
                outside.hosts.append(host)
                path = self.path.partition("?")[0].lstrip("/")
                if host == "git.test":
                    return self._git(path)
                file = outside.folder / "www" / host / path
                file = file / "index.html" if file.is_dir() else file
                if not file.is_file():
                    return self._send(404, b"not here\n", "text/plain")
                kind = {".json": "application/json", ".html": "text/html"}.get(file.suffix, "application/octet-stream")
                return self._send(200, file.read_bytes(), kind)

            do_HEAD = do_POST = do_GET

            def _git(self, path):
                """Runs git http-backend (CGI)."""
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                environment = {
                    **os.environ,
                    "GIT_PROJECT_ROOT": str(outside.folder),
                    "GIT_HTTP_EXPORT_ALL": "1",
                    "PATH_INFO": f"/{path}",
                    "QUERY_STRING": self.path.partition("?")[2],
                    "REQUEST_METHOD": self.command,
                    "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                    "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                    "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                }
                done = subprocess.run(
                    ["git", "http-backend"], input=body, env=environment, capture_output=True, check=False
                )
                head, _, content = done.stdout.partition(b"\r\n\r\n")
                fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
                status = int(fields.get("Status", "200").split()[0])
                self._send(status, content, fields.get("Content-Type", "text/plain"))

            def _send(self, status, body, kind):
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, *_):
                pass

        return Handler


def answer(query):
    """The address of every name below `test`, and no other records."""
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode().lower())
        at += 1 + query[at]
    name, is_a = ".".join(labels), query[at + 1 : at + 3] == b"\0\x01"
    address = ALLOWED.get(name, OTHER) if name.endswith(".test") else None
    record = b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04" + socket.inet_aton(address) if is_a and address else b""
    code = 0 if address else 3
    head = query[:2] + bytes([0x81, 0x80 | code, 0, 1, 0, bool(record), 0, 0, 0, 0])
    return head + query[12 : at + 5] + record


class Sandbox:
    """A namespace with a tool, whose only link leads to the gateway."""

    def __init__(self, folder, outside, pid, log):
        self.folder, self.outside, self.log = folder, outside, log
        self._enter = ["nsenter", "--target", str(pid), "--net", "--mount"]
        ca = str(folder / "web.pem")
        foreign = ("PIP_", "NPM_", "CARGO_", "GO", "GIT_")
        kept = {name: value for name, value in os.environ.items() if not name.upper().startswith(foreign)}
        kept = {name: value for name, value in kept.items() if not name.lower().endswith("_proxy")}
        self.environment = {
            # The toolchains of rustup are in the usual place.
            "RUSTUP_HOME": str(Path.home() / ".rustup"),
            **kept,
            "HOME": str(folder / "home"),
            **dict.fromkeys(("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT"), ca),
            **dict.fromkeys(("NODE_EXTRA_CA_CERTS", "CARGO_HTTP_CAINFO", "GIT_SSL_CAINFO"), ca),
            "PIP_CONFIG_FILE": os.devnull,
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_CONFIG_NOSYSTEM": "1",
        }

    def run(self, words, **environment):
        """Runs a tool in the sandbox, and returns its exit code and what it prints."""
        words = shlex.split(words) if isinstance(words, str) else words
        done = subprocess.run(
            # nsenter(1) begins in the root of the namespace.
            [*self._enter, "sh", "-c", 'cd "$0" && exec "$@"', str(self.folder / "home"), *words],
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        print("$", shlex.join(words), f"-> {done.returncode}", done.stdout[-400:], done.stderr[-800:], file=sys.stderr)
        return done.returncode, done.stdout + done.stderr

    def works(self, words, expected="", **environment):
        """Does what the rules allow."""
        code, text = self.run(words, **environment)
        if code != 0 or expected not in text:
            raise Failed(f"`{show(words)}` does not work (exit code {code}): {text[-300:]}")

    def is_refused(self, words, cause, may_succeed=False, **environment):
        """Does what no rule allows. A record must have the cause."""
        before, started = len(self.outside.hosts), time.monotonic()
        code, text = self.run(words, **environment)
        if code == 0 and not may_succeed:
            raise Failed(f"`{show(words)}` is not refused: {text[-300:]}")
        seconds = time.monotonic() - started
        if not may_succeed and seconds > 30:
            raise Failed(f"`{show(words)}` fails only after {seconds:.0f} s")
        reached = [host for host in self.outside.hosts[before:] if host not in ALLOWED]
        if reached:
            raise Failed(f"`{show(words)}` has reached {reached}")
        # The client may end before its record is written.
        until = time.monotonic() + 10
        while f"no rule allows {cause}" not in self.log.read_text():
            if time.monotonic() > until:
                raise Failed(f"`{show(words)}`: no record says that no rule allows {cause}")
            time.sleep(0.01)


def show(words):
    return words if isinstance(words, str) else shlex.join(words)


def curl(sandbox):
    sandbox.works("curl -sSf https://web.test/file", files.TEXT)
    sandbox.works("curl -sSf http://web.test/file http://web.test/file", files.TEXT)
    sandbox.works("curl -sSf --http1.0 http://web.test/file", files.TEXT)
    # A name that leads elsewhere still reaches its own server.
    sandbox.works(f"curl -sSf --resolve web.test:443:{OTHER} https://web.test/file", files.TEXT)
    sandbox.is_refused("curl -sSf https://evil.test/file", "evil.test")
    sandbox.is_refused(f"curl -sSf --resolve evil.test:443:{WEB} https://evil.test/file", "evil.test:443")
    sandbox.is_refused(f"curl -sSf --resolve evil.test:80:{WEB} http://evil.test/file", "evil.test:80")
    sandbox.is_refused(f"curl -sSfk https://{OTHER}/file", f"{OTHER}:443")
    sandbox.is_refused("curl -sSf -m 5 --resolve web.test:8443:10.0.0.10 https://web.test:8443/file", "web.test:8443")


def apt(sandbox):
    for scheme in ("http", "https"):
        options = files.apt_options(sandbox.folder, f"deb [trusted=yes] {scheme}://apt.test/ ./")
        sandbox.works(["apt-get", *options, "update"])
        sandbox.works(["apt-get", *options, "download", "tiny", "small"])
        for name in ("tiny", "small"):
            if not list((sandbox.folder / "home").glob(f"{name}_*.deb")):
                raise Failed(f"apt has not fetched {name}")
    options = files.apt_options(sandbox.folder, "deb [trusted=yes] http://evil.test/ ./")
    sandbox.is_refused(["apt-get", *options, "update"], "evil.test")


def pip(sandbox):
    words = f"{sys.executable} -m pip --disable-pip-version-check --no-cache-dir --retries 0 download --no-deps"
    sandbox.works(f"{words} --index-url https://pypi.test/simple/ tiny", "Successfully downloaded tiny")
    sandbox.is_refused(f"{words} --index-url https://evil.test/simple/ tiny", "evil.test")
    # The index is allowed, but the host of the file is not.
    sandbox.is_refused(f"{words} --index-url https://pypi.test/simple/ elsewhere", "evil-files.test")


def npm(sandbox):
    words = "npm install --no-audit --no-fund --no-update-notifier --fetch-retries=0 --cache cache --prefix project"
    sandbox.works(f"{words} --registry https://npm.test/ tiny", "added 1 package")
    sandbox.is_refused(f"{words} --registry https://evil.test/ small", "evil.test")


def cargo(sandbox):
    manifest = files.cargo_project(sandbox.folder / "home" / "crate", "tiny")
    config = {"CARGO_HOME": str(sandbox.folder / "cargo"), "CARGO_NET_RETRY": "0"}
    index = {"CARGO_REGISTRIES_OWN_INDEX": "sparse+https://crates.test/index/"}
    words = f"cargo fetch --manifest-path {manifest}"
    sandbox.works(words, "Downloaded tiny", **config, **index)
    index = {"CARGO_REGISTRIES_OWN_INDEX": "sparse+https://evil.test/index/"}
    manifest = files.cargo_project(sandbox.folder / "home" / "other", "small")
    sandbox.is_refused(f"cargo fetch --manifest-path {manifest}", "evil.test", **config, **index)


def go(sandbox):
    own = {
        "GOPROXY": "https://goproxy.test",
        "GONOSUMDB": "*",
        "GOFLAGS": "-mod=mod",
        "GOTOOLCHAIN": "local",
        "GOPATH": str(sandbox.folder / "go"),
        "GOCACHE": str(sandbox.folder / "gocache"),
    }
    words = "go mod download -json example.test/tiny@v1.0.0"
    for resolver in ("go", "cgo"):
        own["GODEBUG"] = f"netdns={resolver}"
        own["GOMODCACHE"] = str(sandbox.folder / f"mod-{resolver}")
        sandbox.works(words, '"Version": "v1.0.0"', **own)
        own["GOMODCACHE"] += "-other"
        sandbox.is_refused(words, f"{resolver}.evil.test", **{**own, "GOPROXY": f"https://{resolver}.evil.test"})


def git_https(sandbox):
    sandbox.works("git clone https://git.test/repo.git cloned")
    if (sandbox.folder / "home/cloned/file").read_text() != files.TEXT:
        raise Failed("the clone has another file")
    sandbox.works("git -C cloned fetch")
    sandbox.is_refused("git clone https://evil.test/repo.git other", "evil.test")


def git_ssh(sandbox):
    key = sandbox.folder / "ssh" / "client"
    options = "-F none -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectTimeout=20"
    ssh = {"GIT_SSH_COMMAND": f"ssh {options} -i {key}"}
    sandbox.works(f"git clone ssh://root@ssh.test{sandbox.folder}/repo.git cloned", **ssh)
    if (sandbox.folder / "home/cloned/file").read_text() != files.TEXT:
        raise Failed("the clone has another file")
    sandbox.is_refused(f"git clone ssh://root@evil.test{sandbox.folder}/repo.git other", "evil.test", **ssh)
    sandbox.is_refused(f"git clone ssh://root@{OTHER}{sandbox.folder}/repo.git other", f"{OTHER}:22", **ssh)


def browser(sandbox):
    words = "chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --ignore-certificate-errors"
    words += " --no-first-run --disable-background-networking --virtual-time-budget=10000 --timeout=20000"
    words += f" --user-data-dir={sandbox.folder}/home/profile"
    sandbox.works(f"{words} --dump-dom https://web.test/", files.TEXT.strip())
    # It prints the page of its error.
    sandbox.is_refused(f"{words} --dump-dom https://evil.test/", "evil.test", may_succeed=True)
    mapped = f"{words} --host-resolver-rules='MAP mapped.evil.test {OTHER}'"
    sandbox.is_refused(f"{mapped} --dump-dom https://mapped.evil.test/", "mapped.evil.test:443", may_succeed=True)


# What each tool needs, and what it does.
TOOLS = {
    "curl": (("curl",), curl),
    "apt": (("apt-get", "dpkg-deb", "dpkg-scanpackages"), apt),
    "pip": (("pip3",), pip),
    "npm": (("npm",), npm),
    "cargo": (("cargo",), cargo),
    "go": (("go-tool",), go),
    "git-https": (("git",), git_https),
    "git-ssh": (("git", "ssh", "/usr/sbin/sshd"), git_ssh),
    "chromium": (("chromium",), browser),
}


def start(function, *arguments):
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


def start_sshd(folder, stack):
    """Starts a server of SSH in this namespace. Its only client has a key."""
    own = folder / "ssh"
    own.mkdir()
    for name in ("host", "client"):
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(own / name)])
    (own / "authorized").write_text((own / "client.pub").read_text())
    run(["mount", "-t", "tmpfs", "tmpfs", "/run"])
    Path("/run/sshd").mkdir(mode=0o755)
    options = f"ListenAddress {SSH}\nHostKey {own}/host\nAuthorizedKeysFile {own}/authorized\nStrictModes no\n"
    options += "PidFile none\nUsePAM no\nPermitRootLogin prohibit-password\n"
    (own / "config").write_text(options)
    spawn(stack, ["/usr/sbin/sshd", "-D", "-e", "-f", str(own / "config")])


def spawn(stack, words, **options):
    child = subprocess.Popen(words, stdin=options.pop("stdin", subprocess.DEVNULL), stdout=2, **options)
    stack.callback(child.wait)
    stack.callback(child.kill)
    return child


def unshare():
    """Moves this thread to a network namespace of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        raise Failed(f"no namespace: {os.strerror(ctypes.get_errno())}")


def join(device, address, there, their_device, *their_commands):
    """Links this namespace with another one, which a process or a thread names."""
    run(["ip", "link", "add", device, "type", "veth", "peer", "name", their_device, "netns", str(there)])
    run(["ip", "address", "add", address, "dev", device])
    run(["ip", "link", "set", device, "up"])
    for words in (f"link set {their_device} up", *their_commands):
        run(["nsenter", "--target", str(there), "--net", "ip", *words.split()])


def start_sandbox(folder, stack):
    """Starts a process that names a namespace, whose name server answers nobody."""
    (folder / "resolv.conf").write_text("nameserver 203.0.113.53\n")
    (folder / "hosts").write_text("127.0.0.1 localhost\n")
    script = "mount --bind $0/resolv.conf /etc/resolv.conf && mount --bind $0/hosts /etc/hosts && "
    script += "ip link set lo up && echo ready && exec sleep infinity"
    words = ["unshare", "--net", "--mount", "sh", "-c", script, str(folder)]
    child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    stack.callback(child.wait)
    stack.callback(child.kill)
    if child.stdout.readline() != "ready\n":
        raise Failed("the sandbox does not start")
    return child.pid


def start_gateway(program, folder, stack):
    """Starts the program with the files of contrib/egress, but other rules."""
    config = (CONTRIB / "spliceway.toml").read_text()
    head, _, rest = config.partition("to_allow = [")
    rules = ", ".join(f'"{rule}"' for rule in RULES)
    config = f"{head}to_allow = [{rules}]{rest.partition(']')[2]}"
    config += f'allow_private = "10.0.0.0/24"\ndns = "{RESOLVER}"\n'
    path, log = folder / "spliceway.toml", folder / "log"
    path.write_text(config)
    with log.open("w") as out:
        child = spawn(stack, [program, "run", "-c", str(path)], stderr=out)
    until = time.monotonic() + PATIENCE_SECONDS
    while "answering DNS on" not in log.read_text():
        if child.poll() is not None or time.monotonic() > until:
            raise Failed(f"the program does not start: {log.read_text()}")
        time.sleep(0.01)
    rules = folder / "egress.nft"
    rules.write_text((CONTRIB / "egress.nft").read_text().replace('"lan"', '"sandbox"'))
    run(["nft", "-f", str(rules)])
    return log


def check(tool, program, folder, stack):
    (folder / "home").mkdir()
    files.make_all(folder)
    outside = Outside(folder)
    if tool == "git-ssh":
        start_sshd(folder, stack)
    unshare()
    run(["ip", "link", "set", "lo", "up"])
    join("outside", "10.0.0.1/24", outside.thread, "gateway", "route add 10.0.0.1 dev gateway")
    pid = start_sandbox(folder, stack)
    theirs = ("address add 192.168.0.2/24 dev gateway", "route add default via 192.168.0.1")
    join("sandbox", "192.168.0.1/24", pid, "gateway", *theirs)
    log = start_gateway(program, folder, stack)
    try:
        TOOLS[tool][1](Sandbox(folder, outside, pid, log))
    finally:
        print(log.read_text(), file=sys.stderr)


def main():
    tool, program = sys.argv[1:]
    faults = []
    with tempfile.TemporaryDirectory(prefix="interop-") as folder, ExitStack() as stack:
        try:
            check(tool, program, Path(folder), stack)
        except subprocess.CalledProcessError as failed:
            faults.append(f"{failed}: {failed.stderr}")
        except (Failed, OSError, subprocess.TimeoutExpired) as failed:
            faults.append(str(failed))
    print(*(fault.replace("\n", " ") for fault in faults), sep="\n", end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
