// Sends standard input through a proxy with the npm package `socks`, and writes the reply to
// standard output. This file is CommonJS, because only CommonJS uses NODE_PATH to find packages.
'use strict';

const { SocksClient } = require('socks');

const [kind, proxyHost, proxyPort, userId, password, host, port] = process.argv.slice(2);

async function main() {
  const proxy = { host: proxyHost, port: Number(proxyPort), type: kind === 'socks4' ? 4 : 5 };
  if (userId) Object.assign(proxy, { userId, password });
  const destination = { host, port: Number(port) };
  const { socket } = await SocksClient.createConnection({ proxy, command: 'connect', destination, timeout: 20000 });
  socket.on('error', fail);
  process.stdin.pipe(socket);
  socket.pipe(process.stdout);
}

function fail(error) {
  console.error(error.message);
  process.exitCode = 1;
}

main().catch(fail);
