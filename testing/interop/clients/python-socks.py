"""Sends standard input through a proxy with python-socks, and writes the reply to stdout."""

import socket
import sys

from python_socks import ProxyType
from python_socks.sync import Proxy

kind, proxy_host, proxy_port, user, password, host, port = sys.argv[1:]
proxy = Proxy(
    proxy_type=ProxyType[kind.upper()],
    host=proxy_host,
    port=int(proxy_port),
    username=user or None,
    password=password or None,
    rdns=True,
)
with proxy.connect(dest_host=host, dest_port=int(port), timeout=20) as stream:
    stream.sendall(sys.stdin.buffer.read())
    stream.shutdown(socket.SHUT_WR)
    while received := stream.recv(1 << 18):
        sys.stdout.buffer.write(received)
