"""Posts standard input through a proxy with aiohttp, and writes the response body to stdout.

aiohttp-socks provides `socks4`, `socks5` and `http` (CONNECT). aiohttp itself provides `forward`,
with the URL in absolute form.
"""

import asyncio
import sys

import aiohttp
from aiohttp_socks import ProxyConnector, ProxyType

kind, proxy_host, proxy_port, user, password, host, port = sys.argv[1:]


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


async def post() -> bytes:
    url = f"http://{bracketed(host)}:{port}/exchange"
    options = {"data": sys.stdin.buffer.read()}
    if kind == "forward":
        connector = None
        options["proxy"] = f"http://{bracketed(proxy_host)}:{proxy_port}"
        options["proxy_auth"] = aiohttp.BasicAuth(user, password) if user else None
    else:
        connector = ProxyConnector(
            proxy_type=ProxyType[kind.upper()],
            host=proxy_host,
            port=int(proxy_port),
            username=user or None,
            password=password or None,
            rdns=True,
        )
    async with aiohttp.ClientSession(connector=connector) as session:
        async with session.post(url, **options) as response:
            response.raise_for_status()
            return await response.read()


sys.stdout.buffer.write(asyncio.run(post()))
