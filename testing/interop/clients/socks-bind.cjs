// Sends standard input through a proxy's BIND with the npm package `socks`, and writes the reply to
// standard output. This program is also the peer that the proxy waits for. It joins the bound port
// to HOST and PORT.
'use strict';

const net = require('node:net');
const { SocksClient } = require('socks');

const [kind, proxyHost, proxyPort, userId, password, host, port] = process.argv.slice(2);

const proxy = { host: proxyHost, port: Number(proxyPort), type: kind === 'socks4' ? 4 : 5 };
if (userId) Object.assign(proxy, { userId, password });
const client = new SocksClient({ proxy, command: 'bind', destination: { host: proxyHost, port: 0 }, timeout: 20000 });

client.on('error', fail);
client.on('bound', ({ remoteHost }) => {
  const peer = net.connect({ host: remoteHost.host, port: remoteHost.port, allowHalfOpen: true });
  const server = net.connect({ host, port: Number(port), allowHalfOpen: true });
  for (const socket of [peer, server]) socket.on('error', fail);
  peer.pipe(server);
  server.pipe(peer);
});
client.on('established', ({ socket }) => {
  socket.on('error', fail);
  process.stdin.pipe(socket);
  socket.pipe(process.stdout);
});
client.connect();

function fail(error) {
  console.error(error.message);
  process.exitCode = 1;
}
