"""The program under test: starts it, reads its counts and stops it."""

import os
import re
import signal
import subprocess
import threading
import time
import urllib.request

PATIENCE_SECONDS = 15
LISTENING = re.compile(r"(\S+) listening on (\S+)$")
FIELD = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)')
SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)$")


class Failed(Exception):
    """The program violates a requirement that applies to every run."""


class Program:
    """A running `spliceway`. Used as a context manager, it is stopped at the end."""

    def __init__(self, path, words, environment=None):
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SPLICEWAY_")}
        self.lines = []
        self._said = threading.Condition()
        self._child = subprocess.Popen(
            [path, *words, "--metrics", "127.0.0.1:0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**inherited, **(environment or {})},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self._metrics = address(self._listening(lambda name: name == "metrics"))
            self.address = address(self._listening(lambda name: name not in ("metrics", "admin-remote")))
        except Failed:
            self._child.kill()
            self._child.wait()
            raise

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self._child.poll() is None:
            self._child.kill()
        self._child.wait()
        self._reader.join()

    def settled(self):
        """The metrics after at least one session has begun and all have ended."""
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            metrics = self.metrics()
            if metrics.sum("spliceway_connections_total") and not metrics.sum("spliceway_connections_active"):
                return metrics
            if time.monotonic() > until:
                raise Failed(f"sessions do not end: {metrics.text}")
            time.sleep(0.01)

    def metrics(self):
        host, port = self._metrics
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            f"http://{authority(host, port)}/metrics", timeout=PATIENCE_SECONDS
        ) as response:
            return Metrics(response.read().decode())

    def stop(self):
        """Asks the program to stop, and returns its session records."""
        self._child.send_signal(signal.SIGTERM)
        try:
            code = self._child.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise Failed("it does not stop when asked to") from None
        self._reader.join()
        if code != 0:
            raise Failed(f"exit code {code} after SIGTERM")
        return [record for record in map(fields, self.lines) if "end" in record]

    def _read(self):
        for line in self._child.stderr:
            with self._said:
                self.lines.append(line.rstrip("\n"))
                self._said.notify_all()
        with self._said:
            self._said.notify_all()

    def _listening(self, wanted):
        def found():
            matches = filter(None, map(LISTENING.search, self.lines))
            return next((match[2] for match in matches if wanted(match[1])), None)

        with self._said:
            self._said.wait_for(lambda: found() or not self._reader.is_alive(), PATIENCE_SECONDS)
            if address := found():
                return address
            raise Failed("it does not say where it listens:\n" + "\n".join(self.lines))


class Metrics:
    """One response from `/metrics`."""

    def __init__(self, text):
        self.text = text

    def sum(self, name, **labels):
        """Sums the samples of the series that have all of these labels."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        total = 0
        for match in filter(None, map(SAMPLE.match, self.text.splitlines())):
            series, have, value = match.groups(default="")
            if series == name and all(label in have for label in wanted):
                total += float(value)
        return int(total)

    def bytes(self, direction, path=None):
        return self.sum("spliceway_bytes_total", direction=direction, **({"path": path} if path else {}))


def fields(line):
    """The `name=value` pairs in a line."""
    return {name: value.strip('"') for name, value in FIELD.findall(line)}


def address(text):
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def authority(host, port):
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
