"""Asks a DNS server through a SOCKS5 proxy's UDP ASSOCIATE, and prints the answers.

PySocks handles the datagrams, and dnspython handles the messages.
"""

import socket
import sys

import dns.message
import socks

_, proxy_host, proxy_port, user, password, host, port = sys.argv[1:]
with socks.socksocket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
    datagrams.set_proxy(socks.SOCKS5, proxy_host, int(proxy_port), True, user or None, password or None)
    datagrams.settimeout(10)
    for kind in ("A", "TXT"):
        query = dns.message.make_query("interop.test", kind)
        datagrams.sendto(query.to_wire(), (host, int(port)))
        received, _ = datagrams.recvfrom(4096)
        response = dns.message.from_wire(received)
        if not query.is_response(response):
            sys.exit(f"not the response to this query: {response}")
        for record in response.answer[0]:
            text = b"".join(record.strings).decode() if kind == "TXT" else record.address
            print(kind, text)
