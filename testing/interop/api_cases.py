"""Cases with the admin socket: its OpenAPI document, a generator of clients, and a fuzzer.

```text
  client or fuzzer ─▶ program that forwards ─▶ admin socket that needs a token
```
"""

import json
import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cases import Outcome
from install import HERE
from program import Failed, Program

PATIENCE_SECONDS = 300
# An upgrade would hand over to a process that the case does not know.
LEFT_OUT = "/v1/upgrade"


@dataclass(frozen=True)
class ApiCase:
    """What one tool does with the document and a running program."""

    tool: str

    demands = False
    needs = ("python",)

    def __str__(self):
        return f"admin {self.tool}"

    @property
    def client(self):
        return str(self)

    def run(self, program, tools):
        """Returns the outcome of this build of the program."""
        started, faults, log = time.monotonic(), [], ""
        with tempfile.TemporaryDirectory(prefix="interop-") as folder:
            folder = Path(folder)
            document = folder / "openapi.json"
            document.write_text(output([program, "schema", "--openapi"]))
            try:
                with served(program, folder) as (url, tokens, lines):
                    log = TOOLS[self.tool](tools, folder, document, url, tokens)
                    faults += undocumented(lines)
            except (Failed, OSError) as failed:
                faults.append(str(failed))
        return Outcome(self, time.monotonic() - started, faults, log, None)


def api_cases():
    return [ApiCase(tool) for tool in TOOLS]


@contextmanager
def served(path, folder):
    """Starts a program with tokens, and one that leads to its socket."""
    file, socket = folder / "tokens", f"unix:{folder}/remote.sock"
    tokens = {
        name: output([path, "token", "add", str(file), name, "--scope", scopes]).strip()
        for name, scopes in (("all", "read,sessions,drain,write"), ("reader", "read"))
    }
    words = ["--admin-remote", socket, "--admin-tokens", str(file)]
    with Program(path, ["forward", "-l", "127.0.0.1:0", "-r", "127.0.0.1:9", *words]) as program:
        with Program(path, ["forward", "-l", "127.0.0.1:0", "-r", socket]) as relay:
            yield f"http://127.0.0.1:{relay.address[1]}", tokens, program.lines
        program.stop()


def undocumented(lines):
    """What the log must not have after requests of any form."""
    return [line for line in lines if "panicked" in line or "spliceway_" in line]


def fuzz(tools, folder, document, url, tokens):
    words = ["-m", "schemathesis.cli", "--config-file", str(HERE / "clients" / "schemathesis.toml"), "run"]
    words += [str(document), "--url", url, "--header", f"Authorization: Bearer {tokens['all']}"]
    words += ["--exclude-path", LEFT_OUT, "--generation-deterministic", "--max-examples", "30", "--no-color"]
    return ran(tools, folder, words)


def use_client(tools, folder, document, url, tokens):
    words = ["-m", "openapi_python_client", "generate", "--path", str(document), "--meta", "none"]
    log = ran(tools, folder, [*words, "--output-path", str(folder / "spliceway_client"), "--fail-on-warning"])
    script = str(HERE / "clients" / "admin-client.py")
    return log + ran(tools, folder, [script, url, json.dumps(tokens)])


TOOLS = {"schemathesis": fuzz, "openapi-python-client": use_client}


def ran(tools, folder, words):
    """Runs a script or a module of the virtual environment, and returns its output."""
    python = tools.command(["{python}"])[0]
    environment = tools.environment()
    # The generator formats its code with a tool that is installed beside it.
    environment["PATH"] = f"{Path(python).parent}:{environment['PATH']}"
    environment["PYTHONPATH"] = str(folder)
    done = subprocess.run(
        [python, *words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    if done.returncode:
        raise Failed(f"exit code {done.returncode}:\n{done.stdout[-8000:]}{done.stderr[-2000:]}")
    return done.stdout


def output(words):
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout
