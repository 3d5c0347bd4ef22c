#!/usr/bin/env python3
"""Compares what clients see of a backend that fails, behind spliceway, HAProxy and nginx.

    bench/failover/compare.py PATH/TO/spliceway [--seconds 12] [--rate 500] [FAULT ...]

Three backends serve. One of them fails after a quarter of the time, and recovers after three
quarters. The table has the share of the client connections that failed. It needs the Debian
packages haproxy, nginx-light and libnginx-mod-stream. See README.md.
"""

import argparse
import asyncio
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
BACKENDS = 3
REQUEST = b"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
# A client that has no answer after this time has failed.
PATIENCE = 2.0
FAULTS = ["none", "killed", "frozen", "refusing", "resetting", "slow", "flapping"]


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Backend:
    def __init__(self, port):
        self.port = port
        self.process = None
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [sys.executable, HERE / "backend.py", str(self.port)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        self.process.stdout.readline()

    def say(self, word):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def stop(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()

    async def fail(self, fault, seconds):
        """Fails for this time, and then serves again."""
        loop = asyncio.get_running_loop()
        if fault == "none":
            await asyncio.sleep(seconds)
        elif fault == "killed":
            self.stop()
            await asyncio.sleep(seconds)
            await loop.run_in_executor(None, self.start)
        elif fault == "frozen":
            self.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(seconds)
            self.process.send_signal(signal.SIGCONT)
        elif fault == "flapping":
            for _ in range(int(seconds)):
                self.say("refuse")
                await asyncio.sleep(0.5)
                self.say("ok")
                await asyncio.sleep(0.5)
        else:
            self.say({"refusing": "refuse", "resetting": "reset", "slow": "slow"}[fault])
            await asyncio.sleep(seconds)
            self.say("ok")


def spliceway(program, port, backends, folder, checks):
    command = [program, "forward", "-l", f"127.0.0.1:{port}", "--balance", "round-robin", "--connect-timeout", "1s"]
    command += ["--log-level", "warn", "--slow-start", "0"]
    for backend in backends:
        command += ["-r", f"127.0.0.1:{backend.port}"]
    if checks:
        command += ["--check", "http:/up", "--check-interval", "1s", "--check-rise", "2", "--check-fall", "2"]
    return command


def haproxy(_, port, backends, folder, checks):
    check = " check inter 1s rise 2 fall 2" if checks else ""
    servers = "\n".join(f"  server s{one.port} 127.0.0.1:{one.port}{check}" for one in backends)
    config = folder / "haproxy.cfg"
    config.write_text(
        "global\n  maxconn 4000\ndefaults\n  mode tcp\n  timeout connect 1s\n  timeout client 1m\n"
        "  timeout server 1m\n  retries 3\n  option redispatch 1\n"
        f"listen test\n  bind 127.0.0.1:{port}\n  balance roundrobin\n"
        + ("  option httpchk GET /up\n  timeout check 1s\n" if checks else "")
        + servers + "\n"
    )
    return [shutil.which("haproxy", path=os.environ["PATH"] + ":/usr/sbin"), "-db", "-f", config]


def nginx(_, port, backends, folder, _checks):
    servers = "\n".join(f"    server 127.0.0.1:{one.port} max_fails=3 fail_timeout=5s;" for one in backends)
    config = folder / "nginx.conf"
    config.write_text(
        "load_module /usr/lib/nginx/modules/ngx_stream_module.so;\ndaemon off;\nworker_processes 1;\n"
        f"error_log {folder}/error.log crit;\npid {folder}/nginx.pid;\nevents {{ worker_connections 9000; }}\n"
        f"stream {{\n  upstream test {{\n{servers}\n  }}\n"
        f"  server {{ listen 127.0.0.1:{port}; proxy_pass test; proxy_connect_timeout 1s; proxy_timeout 1m; }}\n}}\n"
    )
    return [shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin"), "-c", config, "-p", folder]


# A name, the function that makes the command, and whether backends are checked. The free nginx has
# no checks.
RELAYS = [
    ("spliceway", spliceway, False),
    ("HAProxy", haproxy, False),
    ("nginx", nginx, False),
    ("spliceway, checks", spliceway, True),
    ("HAProxy, checks", haproxy, True),
]


async def client(port):
    writer = None
    try:
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(REQUEST)
            return (await reader.read()).endswith(b"ok")
    except (OSError, TimeoutError):
        return False
    finally:
        if writer:
            writer.close()


async def load(port, rate, seconds):
    """Returns the number of clients, and of those that failed."""
    loop, clients = asyncio.get_running_loop(), []
    start = loop.time()
    for index in range(int(rate * seconds)):
        # Clients come at random times, with this rate on average.
        due = start + index / rate + random.uniform(0, 1 / rate)
        await asyncio.sleep(max(0, due - loop.time()))
        clients.append(asyncio.create_task(client(port)))
    answers = await asyncio.gather(*clients)
    return len(answers), answers.count(False)


async def measure(program, relay, fault, rate, seconds):
    _, command, checks = relay
    backends = [Backend(free_port()) for _ in range(BACKENDS)]
    port = free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        os.chmod(folder, 0o755)
        process = subprocess.Popen(command(program, port, backends, folder, checks), stderr=subprocess.DEVNULL)
        try:
            while not await client(port):
                await asyncio.sleep(0.05)
            running = asyncio.create_task(load(port, rate, seconds))
            await asyncio.sleep(seconds / 4)
            await backends[0].fail(fault, seconds / 2)
            return await running
        finally:
            process.terminate()
            process.wait()
            for backend in backends:
                backend.stop()


async def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spliceway")
    parser.add_argument("faults", nargs="*", default=FAULTS)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--rate", type=float, default=500)
    options = parser.parse_args()
    print("| fault | " + " | ".join(name for name, _, _ in RELAYS) + " |")
    print("|---|" + "---|" * len(RELAYS))
    for fault in options.faults or FAULTS:
        cells = []
        for relay in RELAYS:
            count, failed = await measure(options.spliceway, relay, fault, options.rate, options.seconds)
            cells.append(f"{100 * failed / count:.2f} % ({failed})")
        print(f"| {fault} | " + " | ".join(cells) + " |", flush=True)


asyncio.run(main())
