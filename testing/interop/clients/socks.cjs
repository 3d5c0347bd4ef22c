// Sends standard input through a proxy by the npm package `socks`, and writes the reply to standard
// output. This is CommonJS, as only that looks for packages where NODE_PATH says.
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
