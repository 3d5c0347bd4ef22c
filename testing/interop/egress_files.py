"""What the servers of the egress cases have: a certificate, and a package for each tool."""

import base64
import hashlib
import io
import json
import os
import subprocess
import tarfile
import zipfile

from migration import run

TEXT = "what the server has\n"
# Some clients do not accept `*.test`.
HOSTS = "web apt pypi files evil-files npm crates dl goproxy git evil".split()
NAMES = ",".join(f"DNS:{host}.test" for host in HOSTS) + ",DNS:*.evil.test,IP:10.0.0.10,IP:10.0.0.20"


def make_all(folder):
    """Makes the certificate, the packages and the repository. Each of them takes a moment."""
    words = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-days", "2"]
    words += ["-subj", "/CN=egress", "-addext", f"subjectAltName={NAMES}"]
    run([*words, "-keyout", str(folder / "web.key"), "-out", str(folder / "web.pem")])
    for name in ("web.test", "evil.test"):
        write(folder, name, "file", TEXT)
        write(folder, name, "index.html", f"<p>{TEXT}</p>")
    for make in (make_python, make_node, make_rust, make_go, make_git, make_debian):
        make(folder)


def write(folder, host, path, content):
    file = folder / "www" / host / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def archive(names):
    """A .tar.gz with these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in names.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content.encode()))
    return buffer.getvalue()


def zipped(names):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in names.items():
            file.writestr(name, content)
    return buffer.getvalue()


def make_python(folder):
    """Wheels, and an index (PEP 503). One wheel is at a host that no rule allows."""
    for name, host in (("tiny", "files.test"), ("elsewhere", "evil-files.test")):
        info = f"{name}-1.0.dist-info"
        wheel = zipped(
            {
                f"{name}.py": "",
                f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
                f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
                f"{info}/RECORD": "",
            }
        )
        file = f"{name}-1.0-py3-none-any.whl"
        write(folder, host, file, wheel)
        write(folder, "pypi.test", f"simple/{name}/index.html", f'<a href="https://{host}/{file}">{file}</a>')


def make_node(folder):
    package = archive({"package/package.json": json.dumps({"name": "tiny", "version": "1.0.0"})})
    write(folder, "npm.test", "tiny/-/tiny-1.0.0.tgz", package)
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(package).digest()).decode()
    dist = {"tarball": "https://npm.test/tiny/-/tiny-1.0.0.tgz", "integrity": integrity}
    version = {"name": "tiny", "version": "1.0.0", "dist": dist}
    document = {"name": "tiny", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    write(folder, "npm.test", "tiny/index.html", json.dumps(document))


def make_rust(folder):
    """A sparse registry, whose crates are at another host."""
    manifest = '[package]\nname = "tiny"\nversion = "1.0.0"\nedition = "2021"\n'
    crate = archive({"tiny-1.0.0/Cargo.toml": manifest, "tiny-1.0.0/src/lib.rs": ""})
    write(folder, "dl.test", "tiny-1.0.0.crate", crate)
    write(folder, "crates.test", "index/config.json", json.dumps({"dl": "https://dl.test/{crate}-{version}.crate"}))
    entry = {"name": "tiny", "vers": "1.0.0", "deps": [], "features": {}, "yanked": False}
    entry["cksum"] = hashlib.sha256(crate).hexdigest()
    write(folder, "crates.test", "index/ti/ny/tiny", json.dumps(entry) + "\n")


def cargo_project(folder, dependency):
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "lib.rs").touch()
    manifest = folder / "Cargo.toml"
    lines = '[package]\nname = "user"\nversion = "1.0.0"\nedition = "2021"\n[dependencies]\n'
    manifest.write_text(f'{lines}{dependency} = {{ version = "1", registry = "own" }}\n')
    return manifest


def make_go(folder):
    """The files that a module proxy has."""
    module, version = "example.test/tiny", "v1.0.0"
    mod = f"module {module}\n"
    base = f"{module}/@v/{version}"
    write(folder, "goproxy.test", f"{base}.info", json.dumps({"Version": version}))
    write(folder, "goproxy.test", f"{base}.mod", mod)
    content = {f"{module}@{version}/go.mod": mod, f"{module}@{version}/tiny.go": "package tiny\n"}
    write(folder, "goproxy.test", f"{base}.zip", zipped(content))


def make_git(folder):
    """A bare repository with one file."""
    work = folder / "work"
    work.mkdir()
    (work / "file").write_text(TEXT)
    words = ["git", "-c", "user.name=test", "-c", "user.email=test@test", "-C", str(work)]
    environment = {**os.environ, "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(folder)}
    for command in (["init", "-q"], ["add", "file"], ["commit", "-q", "-m", "a file"]):
        subprocess.run([*words, *command], check=True, capture_output=True, env=environment)
    run(["git", "clone", "-q", "--bare", str(work), str(folder / "repo.git")])


def make_debian(folder):
    """A repository of two packages without signatures."""
    own = folder / "www" / "apt.test"
    own.mkdir(parents=True)
    for name in ("tiny", "small"):
        control = folder / name / "DEBIAN" / "control"
        control.parent.mkdir(parents=True)
        fields = f"Package: {name}\nVersion: 1.0\nArchitecture: all\nMaintainer: test <test@test>\nDescription: test\n"
        control.write_text(fields)
        run(["dpkg-deb", "--build", "--root-owner-group", str(folder / name), str(own / f"{name}_1.0_all.deb")])
    scanned = subprocess.run(["dpkg-scanpackages", "-m", "."], cwd=own, check=True, capture_output=True)
    (own / "Packages").write_bytes(scanned.stdout)


def apt_options(folder, source):
    """Options for apt-get with folders of its own, and one source."""
    own = folder / "apt"
    for path in ("state/lists/partial", "cache/archives/partial", "etc/preferences.d"):
        (own / path).mkdir(parents=True, exist_ok=True)
    (own / "sources").write_text(source + "\n")
    (own / "status").touch()
    pairs = {
        "Dir::State": own / "state",
        "Dir::State::status": own / "status",
        "Dir::Cache": own / "cache",
        "Dir::Etc": own / "etc",
        "Dir::Etc::sourcelist": own / "sources",
        "APT::Sandbox::User": "root",
        "Acquire::https::CaInfo": folder / "web.pem",
        "Acquire::Languages": "none",
        "Acquire::Retries": "0",
        "APT::Update::Error-Mode": "any",
    }
    return [word for key, value in pairs.items() for word in ("-o", f"{key}={value}")]
