"""Sends the handshake and standard input in one call, before the proxy has sent a byte.

Then removes the proxy's answers from the bytes that it receives.
"""

import base64
import socket
import struct
import sys

kind, proxy_host, proxy_port, user, password, host, port = sys.argv[1:]
name, secret, address = user.encode(), password.encode(), host.encode()
reached = struct.pack(">H", int(port))


def counted(text):
    return bytes([len(text)]) + text


def exactly(count):
    received = stream.recv(count, socket.MSG_WAITALL)
    if len(received) < count:
        sys.exit(f"the proxy closes after {received!r}")
    return received


def expect(answer, wanted):
    if answer != wanted:
        sys.exit(f"the proxy answers {answer!r}, not {wanted!r}")


with socket.create_connection((proxy_host, int(proxy_port)), timeout=20) as stream:
    if kind == "socks4":
        handshake = b"\x04\x01" + reached + b"\0\0\0\1" + name + b"\0" + address + b"\0"
    elif kind == "socks5":
        login = b"\x01" + counted(name) + counted(secret) if user else b""
        handshake = (
            b"\x05\x01" + (b"\x02" if user else b"\x00") + login + b"\x05\x01\x00\x03" + counted(address) + reached
        )
    else:
        authority = (f"[{host}]" if ":" in host else host) + f":{port}"
        login = f"Proxy-Authorization: Basic {base64.b64encode(name + b':' + secret).decode()}\r\n" if user else ""
        handshake = f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{login}\r\n".encode()
    stream.sendall(handshake + sys.stdin.buffer.read())
    stream.shutdown(socket.SHUT_WR)
    if kind == "socks4":
        expect(exactly(8)[:2], b"\0\x5a")
    elif kind == "socks5":
        expect(exactly(2), b"\x05\x02" if user else b"\x05\x00")
        if user:
            expect(exactly(2), b"\x01\x00")
        answer = exactly(4)
        expect(answer[:2], b"\x05\x00")
        exactly({1: 4, 4: 16}[answer[3]] + 2)
    else:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += exactly(1)
        expect(head.split()[1], b"200")
    while received := stream.recv(1 << 18):
        sys.stdout.buffer.write(received)
