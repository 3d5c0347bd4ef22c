"""Origins: servers on one port of 127.0.0.1 and [::1], which count the bytes that reach them."""

import errno
import hashlib
import random
import socket
import struct
import threading

# Bodies long enough for a relay to splice. They are random bytes from different seeds, so that no
# part of a body is equal to another part of either body.
BODY_BYTES = 8 << 20
UPLOAD = random.Random(1).randbytes(BODY_BYTES)
DOWNLOAD = random.Random(2).randbytes(BODY_BYTES)

PATIENCE_SECONDS = 25
# How long an origin that keeps connections open waits for the next request.
KEPT_SECONDS = 1
LOOPBACKS = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))

# The origins' name, which only the program's name server knows.
NAME = "origin.interop.test"
# The name server's answer for other names, and the text that a client prints from the answer.
ADDRESS = "192.0.2.7"
TEXT = "".join(random.Random(3).choices("abcdefghijklmnopqrstuvwxyz", k=900))
DNS_ANSWERS = f"A {ADDRESS}\nTXT {TEXT}\n".encode()


def answer_to(upload):
    """The digest of the upload, which shows that it arrived complete, and a long body."""
    return with_body(hashlib.sha256(upload))


def with_body(digest):
    return digest.hexdigest().encode() + b"\n" + DOWNLOAD


class Origin:
    """Accepts on both loopback addresses, and serves each connection in its own thread.

    `finish` waits for all threads. After that the counts are final.
    """

    def __init__(self, serve):
        self.connections = self.received = self.sent = 0
        self.faults = []
        self.heads = []
        self._serve = serve
        self._lock = threading.Lock()
        self._listeners = bind_both(socket.SOCK_STREAM)
        self.port = self._listeners[0].getsockname()[1]
        self._threads = []
        for listener in self._listeners:
            listener.listen()
            self._spawn(self._accept, listener)

    def finish(self):
        for listener in self._listeners:
            # Unlike a close, a shutdown wakes the thread that accepts.
            listener.shutdown(socket.SHUT_RDWR)
        # More threads may start while this loop waits for the first.
        for thread in iter(self._take_thread, None):
            thread.join(PATIENCE_SECONDS)
            if thread.is_alive():
                self.faults.append("a connection to the origin does not end")
        for listener in self._listeners:
            listener.close()

    def receive(self, stream):
        part = stream.recv(1 << 18)
        with self._lock:
            self.received += len(part)
        return part

    def send(self, stream, data):
        stream.sendall(data)
        with self._lock:
            self.sent += len(data)

    def _spawn(self, run, *arguments):
        thread = threading.Thread(target=run, args=arguments, daemon=True)
        with self._lock:
            self._threads.append(thread)
        thread.start()

    def _take_thread(self):
        with self._lock:
            return self._threads.pop(0) if self._threads else None

    def _accept(self, listener):
        while True:
            try:
                stream, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                self.connections += 1
            self._spawn(self._connection, stream)

    def _connection(self, stream):
        stream.settimeout(PATIENCE_SECONDS)
        with stream:
            try:
                self._serve(self, stream)
                stream.shutdown(socket.SHUT_WR)
                while self.receive(stream):
                    pass
            except (OSError, ValueError) as error:
                self.faults.append(f"origin: {error!r}")


def serve_stream(origin, stream):
    """Reads to the end of the stream before it answers. Without a half-close it never answers."""
    digest = hashlib.sha256()
    while part := origin.receive(stream):
        digest.update(part)
    origin.send(stream, with_body(digest))


def serve_http(origin, stream):
    """Serves one request. Its body has a length or is chunked. Answers `Expect: 100-continue`."""
    answer_request(origin, Reader(origin, stream), with_length, b"Connection: close\r\n")


def serve_http_to_the_end(origin, stream):
    """Serves one request. The end of the stream is the end of the answer."""
    answer_request(origin, Reader(origin, stream), with_nothing, b"Connection: close\r\n")


def serve_http_on(origin, stream):
    """Serves all requests that arrive, and keeps the connection open for a while."""
    reader = Reader(origin, stream)
    while not reader.at_end():
        answer_request(origin, reader, with_length, b"")


def serve_http_on_in_chunks(origin, stream):
    """Serves all requests that arrive. Each answer has a hint, a head and a chunked body."""
    reader = Reader(origin, stream)
    while not reader.at_end():
        answer_request(origin, reader, in_chunks, b"Keep-Alive: timeout=60\r\n", b"HTTP/1.1 103 Early Hints\r\n\r\n")


def answer_request(origin, reader, framed, fields, before=b""):
    head = reader.until(b"\r\n\r\n")
    origin.heads.append(head)
    lines = head.decode("latin-1").split("\r\n")
    asked = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    if asked.get("expect", "").lower() == "100-continue":
        origin.send(reader.stream, b"HTTP/1.1 100 Continue\r\n\r\n")
    digest = hashlib.sha256()
    if asked.get("transfer-encoding", "").lower() == "chunked":
        while length := int(reader.until(b"\r\n"), 16):
            digest.update(reader.exactly(length))
            reader.exactly(2)
        reader.until(b"\r\n")
    else:
        digest.update(reader.exactly(int(asked.get("content-length", 0))))
    origin.send(reader.stream, before + b"HTTP/1.1 200 OK\r\n" + fields + framed(with_body(digest)))


def with_length(body):
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def with_nothing(body):
    return b"\r\n" + body


def in_chunks(body):
    parts = [body[at : at + (1 << 20)] for at in range(0, len(body), 1 << 20)]
    chunks = [b"%x\r\n%b\r\n" % (len(part), part) for part in [*parts, b""]]
    return b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(chunks)


class Reader:
    """Splits a stream into its parts."""

    def __init__(self, origin, stream):
        self.stream = stream
        self._origin, self._buffer = origin, bytearray()

    def at_end(self):
        """Whether the stream has ended, or no bytes have arrived for a while."""
        self.stream.settimeout(KEPT_SECONDS)
        try:
            return not (self._buffer or self._receive())
        except TimeoutError:
            return True
        finally:
            self.stream.settimeout(PATIENCE_SECONDS)

    def until(self, mark):
        while mark not in self._buffer:
            self._more()
        return self._take(self._buffer.index(mark) + len(mark))

    def exactly(self, length):
        while len(self._buffer) < length:
            self._more()
        return self._take(length)

    def _more(self):
        if not self._receive():
            raise ValueError(f"the request ends early, after {bytes(self._buffer[-80:])!r}")

    def _receive(self):
        part = self._origin.receive(self.stream)
        self._buffer += part
        return part

    def _take(self, length):
        taken = bytes(self._buffer[:length])
        del self._buffer[:length]
        return taken


class NameServer:
    """Answers over UDP, and counts the queries.

    `NAME` has both loopback addresses. Every other name has an address and a text.
    """

    def __init__(self):
        self.connections = 0
        self.faults = []
        self._sockets = bind_both(socket.SOCK_DGRAM)
        self.port = self._sockets[0].getsockname()[1]
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._serve, args=[own], daemon=True) for own in self._sockets]
        for own, thread in zip(self._sockets, self._threads):
            own.settimeout(0.1)
            thread.start()

    def finish(self):
        self._stop.set()
        for own, thread in zip(self._sockets, self._threads):
            thread.join(PATIENCE_SECONDS)
            own.close()

    def _serve(self, own):
        while not self._stop.is_set():
            try:
                query, asker = own.recvfrom(4096)
            except TimeoutError:
                continue
            self.connections += 1
            try:
                own.sendto(response_to(query), asker)
            except (IndexError, struct.error) as error:
                self.faults.append(f"name server: {error!r} in {query!r}")


A, TXT, AAAA = 1, 16, 28


def response_to(query):
    labels, end = [], 12
    while length := query[end]:
        labels.append(query[end + 1 : end + 1 + length].decode())
        end += 1 + length
    question = query[12 : end + 5]
    kind = struct.unpack(">H", question[-4:-2])[0]
    if ".".join(labels) == NAME:
        records = {A: socket.inet_pton(socket.AF_INET, "127.0.0.1"), AAAA: socket.inet_pton(socket.AF_INET6, "::1")}
    else:
        texts = [TEXT[at : at + 250].encode() for at in range(0, len(TEXT), 250)]
        records = {A: socket.inet_aton(ADDRESS), TXT: b"".join(bytes([len(text)]) + text for text in texts)}
    data = records.get(kind)
    # A response to one question, with recursion desired and available. If there is an answer, it
    # has the question's name.
    head = query[:2] + struct.pack(">5H", 0x8180, 1, 1 if data else 0, 0, 0)
    answer = struct.pack(">HHHIH", 0xC00C, kind, 1, 60, len(data)) + data if data else b""
    return head + question + answer


def bind_both(kind):
    """Returns a socket of each family on one port. Tries again if the port is in use."""
    while True:
        first, second = (socket.socket(family, kind) for family, _ in LOOPBACKS)
        first.bind((LOOPBACKS[0][1], 0))
        try:
            second.bind((LOOPBACKS[1][1], first.getsockname()[1]))
            return first, second
        except OSError as error:
            first.close()
            second.close()
            if error.errno != errno.EADDRINUSE:
                raise


class Closed:
    """A port in both families on which nothing listens while this object exists."""

    def __init__(self):
        self.connections = 0
        self.faults = []
        self._sockets = bind_both(socket.SOCK_STREAM)
        self.port = self._sockets[0].getsockname()[1]

    def finish(self):
        for own in self._sockets:
            own.close()
