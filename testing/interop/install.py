"""The clients on this machine: where they are, which are missing, and how to install them."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
# Lock files. While they do not change, installed packages are kept.
REQUIREMENTS = HERE / "clients" / "requirements.txt"
NODE_MANIFESTS = (HERE / "clients" / "package.json", HERE / "clients" / "package-lock.json")
# The clients in Go.
GO_CLIENTS = ("x-net-proxy", "pgx")
# The driver of PostgreSQL for Java.
PGJDBC = "org.postgresql:postgresql:42.7.7"

# The module of nginx that relays streams, in Debian.
NGINX_STREAM = "/usr/lib/nginx/modules/ngx_stream_module.so"

# A program that is on no path of a user.
SSHD = "/usr/sbin/sshd"


def postgres_program(name):
    """A program of the newest server of PostgreSQL. Debian has its servers on no path."""
    paths = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(paths[-1]) if paths else name


# The check for each tool (a program on the path, or a command that succeeds), and its Debian
# package.
PACKAGES = (
    (["curl"], "curl"),
    (["ncat"], "ncat"),
    (["proxychains4"], "proxychains4"),
    (["wget"], "wget"),
    (["nc.openbsd"], "netcat-openbsd"),
    (["socat"], "socat"),
    (["microsocks"], "microsocks"),
    (["tinyproxy"], "tinyproxy"),
    (["openssl"], "openssl"),
    (["stunnel4"], "stunnel4"),
    (["haproxy"], "haproxy"),
    (["nginx"], "nginx-light"),
    (["test", "-e", NGINX_STREAM], "libnginx-mod-stream"),
    (["hitch"], "hitch"),
    (["danted"], "dante-server"),
    (["ip"], "iproute2"),
    (["nft"], "nftables"),
    (["psql"], "postgresql-client"),
    ([postgres_program("initdb"), "--version"], "postgresql"),
    (["git"], "git"),
    (["ssh"], "openssh-client"),
    (["test", "-e", SSHD], "openssh-server"),
    (["dpkg-scanpackages"], "dpkg-dev"),
    (["pip3"], "python3-pip"),
    (["chromium"], "chromium"),
    (["perl", "-MIO::Socket::Socks", "-e", "1"], "libio-socket-socks-perl"),
    (["node"], "nodejs"),
    (["npm"], "npm"),
    (["go"], "golang-go"),
    ([sys.executable, "-c", "import ensurepip, venv"], "python3-venv"),
)

# Tools that Debian does not have, and how to get them. `--install` skips them.
UNPACKAGED = {
    "ghostunnel": "`go install github.com/ghostunnel/ghostunnel@latest` installs it",
    "realm": "there is no package; build it from its source",
    "pgjdbc": "`--install` gets it if there are `javac` and `mvn`",
}


class Failed(Exception):
    """A tool cannot be installed."""


class Tools:
    """The clients on this machine: files below `folder`, and the workspace's client in `built`."""

    def __init__(self, folder, built):
        self._folder = folder
        self._missing = {}
        self._runners = {
            "{self}": [sys.executable],
            "{python}": [str(folder / "venv/bin/python")],
            "{node}": ["node"],
            "{perl}": ["perl"],
            "{go}": [str(folder / "x-net-proxy")],
            "{pgx}": [str(folder / "pgx")],
            "{rust}": [str(built / "examples/tokio-socks-client")],
        }

    @property
    def pgjdbc(self):
        return self._folder / f"postgresql-{PGJDBC.rpartition(':')[2]}.jar"

    def command(self, words):
        """The command line, with the runner's key replaced."""
        return [*self._runners.get(words[0], words[:1]), *words[1:]]

    def environment(self):
        """A client's environment: no proxy except the one in its arguments, and Node's packages."""
        kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        return {**kept, "NODE_PATH": str(self._folder / "node_modules"), "PYTHONDONTWRITEBYTECODE": "1"}

    def missing(self, tool):
        """The reason why this tool cannot run, or None."""
        if tool not in self._missing:
            self._missing[tool] = self._look_for(tool)
        return self._missing[tool]

    def versions(self):
        """Yields a line for each tool that is installed."""
        for tool, words in self._version_commands().items():
            if not self.missing(tool):
                lines = output(words, self.environment()).strip().splitlines()
                yield f"{tool}: {lines[0] if lines else 'unknown version'}"

    def install(self):
        """Installs only the missing tools."""
        packages = [package for words, package in PACKAGES if not answers(words)]
        if packages:
            apt_get(packages)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._once("venv", [REQUIREMENTS], self._install_python)
        self._once("node_modules", NODE_MANIFESTS, self._install_node)
        for client in GO_CLIENTS:
            run(["go", "build", "-o", str(self._folder / client), "."], folder=HERE / "clients" / client)
        if shutil.which("javac") and shutil.which("mvn") and not self.pgjdbc.exists():
            words = ["mvn", "--batch-mode", "--quiet", "dependency:copy", f"-Dartifact={PGJDBC}"]
            run([*words, f"-DoutputDirectory={self._folder}"])
        self._missing.clear()

    def _look_for(self, tool):
        proofs = {
            "python": [*self._runners["{python}"], "-c", "import aiohttp_socks, asyncpg, dns.message, openapi_python_client, python_socks, schemathesis, socks"],
            "node": ["node", "-e", "require('socks'); require('dns-packet')"],
            "perl": ["perl", "-MIO::Socket::Socks", "-e", "1"],
            SSHD: ["test", "-e", SSHD],
            "go-tool": ["go", "version"],
            "initdb": [postgres_program("initdb"), "--version"],
            "pgx": ["test", "-e", *self._runners["{pgx}"]],
            "pgjdbc": ["sh", "-c", f"command -v javac && test -e {self.pgjdbc}"],
            "nginx": ["sh", "-c", f"command -v nginx && test -e {NGINX_STREAM}"],
        }
        proof = proofs.get(tool) or self._runners.get(f"{{{tool}}}", [tool])
        if answers(proof, self.environment()):
            return None
        remedies = {"rust": "cargo builds it", **UNPACKAGED}
        return remedies.get(tool, "`--install` installs it")

    def _version_commands(self):
        distributions = (
            "'aiohttp', 'aiohttp-socks', 'asyncpg', 'dnspython', 'openapi-python-client', 'PySocks', 'python-socks', 'schemathesis'"
        )
        python = (
            f"import importlib.metadata as m; print(*(f'{{d}} {{m.version(d)}}' for d in ({distributions})), sep=', ')"
        )
        node = (
            "const v = (n) => JSON.parse(require('fs').readFileSync(`${process.env.NODE_PATH}/${n}/package.json`)).version;"
            "console.log(`node ${process.version}, socks ${v('socks')}, dns-packet ${v('dns-packet')}`)"
        )
        return {
            "curl": ["curl", "--version"],
            "ncat": ["ncat", "--version"],
            "proxychains4": ["dpkg-query", "--show", "proxychains4"],
            "wget": ["wget", "--version"],
            "nc.openbsd": ["dpkg-query", "--show", "netcat-openbsd"],
            "socat": ["dpkg-query", "--show", "socat"],
            "microsocks": ["dpkg-query", "--show", "microsocks"],
            "tinyproxy": ["tinyproxy", "-v"],
            **{tool: ["dpkg-query", "--show", tool] for tool in ("stunnel4", "haproxy", "hitch", "openssl")},
            "ghostunnel": ["ghostunnel", "--version"],
            "danted": ["dpkg-query", "--show", "dante-server"],
            # There are several packages of nginx itself.
            "nginx": ["dpkg-query", "--show", "libnginx-mod-stream"],
            "python": [*self._runners["{python}"], "-c", python],
            "node": ["node", "-e", node],
            "perl": [
                "perl",
                "-MIO::Socket::Socks",
                "-e",
                "print qq(IO::Socket::Socks $IO::Socket::Socks::VERSION, perl $^V)",
            ],
            "go": ["go", "version", "-m", *self._runners["{go}"]],
            "initdb": [postgres_program("initdb"), "--version"],
            "psql": ["psql", "--version"],
            "pgx": ["sh", "-c", f"go version -m {self._runners['{pgx}'][0]} | grep pgx/v5 | tr '\\t' ' '"],
            "pgjdbc": ["basename", str(self.pgjdbc)],
        }

    def _once(self, name, locks, install):
        stamp = self._folder / f"{name}.installed"
        wanted = hashlib.sha256(b"".join(lock.read_bytes() for lock in locks)).hexdigest()
        if not stamp.exists() or stamp.read_text() != wanted:
            install()
            stamp.write_text(wanted)

    def _install_python(self):
        run([sys.executable, "-m", "venv", "--clear", str(self._folder / "venv")])
        pip = [*self._runners["{python}"], "-m", "pip", "--disable-pip-version-check"]
        run([*pip, "install", "--quiet", "--requirement", str(REQUIREMENTS)])

    def _install_node(self):
        for manifest in NODE_MANIFESTS:
            shutil.copy(manifest, self._folder)
        run(["npm", "ci", "--prefix", str(self._folder), "--ignore-scripts", "--no-audit", "--no-fund"])


def apt_get(packages):
    if not shutil.which("apt-get") or os.geteuid() != 0:
        raise Failed(f"please install {' '.join(packages)}: this needs root on a Debian-like machine")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-qq"], environment)
    run(["apt-get", "install", "-qq", "--yes", "--no-install-recommends", *packages], environment)


def run(words, environment=None, folder=None):
    print("$", *words, flush=True)
    ended = subprocess.run(words, env=environment, cwd=folder, stdin=subprocess.DEVNULL, check=False)
    if ended.returncode != 0:
        raise Failed(f"`{' '.join(words)}` failed")


def answers(words, environment=None):
    """Whether this program exists and, if there are arguments, succeeds with them."""
    if not shutil.which(words[0]):
        return False
    if len(words) == 1:
        return True
    return (
        subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode
        == 0
    )


def output(words, environment):
    if not shutil.which(words[0]):
        return ""
    said = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    return said.stdout or said.stderr
