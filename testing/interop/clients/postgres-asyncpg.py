"""Asks a server of PostgreSQL for its port by asyncpg, and passes a large value both ways."""

import asyncio
import socket
import ssl
import sys

import asyncpg

name, port, authority, how, size = sys.argv[1:]
look_up = socket.getaddrinfo
# The name of the server leads to the program.
socket.getaddrinfo = lambda host, *rest, **more: look_up("127.0.0.1" if host == name else host, *rest, **more)


async def main():
    tls = ssl.create_default_context(cafile=authority)
    if how == "direct":
        tls.set_alpn_protocols(["postgresql"])
    server = await asyncpg.connect(
        host=name,
        port=int(port),
        user="app",
        password="secret",
        database="postgres",
        ssl=False if how == "disable" else tls,
        direct_tls=how == "direct",
        timeout=20,
    )
    try:
        if how == "cancel":
            await cancel(server)
        print(await server.fetchval("select current_setting('port')"))
        value = "x" * int(size)
        print(len(await server.fetchval("select $1::text", value)))
    finally:
        await server.close()


async def cancel(server):
    """Ends a query by a connection of its own, and uses the first one again."""
    try:
        await server.execute("select pg_sleep(60)", timeout=1)
    except TimeoutError:
        return
    raise SystemExit("the query has ended")


asyncio.run(asyncio.wait_for(main(), 40))
