"""A backend that fails in the way that its stdin says: one word in each line."""

import asyncio
import socket
import struct
import sys

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
# The client and the checks wait for less than this.
SLOW_SECONDS = 5


class Backend:
    def __init__(self, port):
        self.port = port
        self.mode = "ok"
        self.server = None

    async def serve(self, reader, writer):
        try:
            if self.mode == "reset":
                # A linger time of 0 makes close() send a reset.
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                return
            await reader.readuntil(b"\r\n\r\n")
            if self.mode == "slow":
                await asyncio.sleep(SLOW_SECONDS)
            writer.write(ANSWER)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def listen(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", self.port, backlog=64)

    async def run(self):
        await self.listen()
        print("ready", flush=True)
        stdin = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
        while line := await stdin.readline():
            self.mode = line.decode().strip()
            if self.mode == "refuse":
                self.server.close()
                self.server = None
            elif self.server is None:
                await self.listen()


asyncio.run(Backend(int(sys.argv[1])).run())
