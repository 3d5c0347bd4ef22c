"""Sends standard input through a proxy with PySocks, and writes the reply to standard output."""

import socket
import sys

import socks

kind, proxy_host, proxy_port, user, password, host, port = sys.argv[1:]
stream = socks.create_connection(
    (host, int(port)),
    timeout=20,
    proxy_type=socks.PROXY_TYPES[kind.upper()],
    proxy_addr=proxy_host,
    proxy_port=int(proxy_port),
    proxy_username=user or None,
    proxy_password=password or None,
)
with stream:
    stream.sendall(sys.stdin.buffer.read())
    stream.shutdown(socket.SHUT_WR)
    while received := stream.recv(1 << 18):
        sys.stdout.buffer.write(received)
