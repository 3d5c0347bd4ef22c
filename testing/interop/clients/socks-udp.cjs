// Asks a DNS server through a SOCKS5 proxy's UDP ASSOCIATE, and prints the answers. The npm package
// `socks` makes the association and its frames, and `dns-packet` makes the messages.
'use strict';

const dgram = require('node:dgram');
const { isIPv6 } = require('node:net');
const dnsPacket = require('dns-packet');
const { SocksClient } = require('socks');

const [, proxyHost, proxyPort, userId, password, host, port] = process.argv.slice(2);
const questions = ['A', 'TXT'];

const proxy = { host: proxyHost, port: Number(proxyPort), type: 5 };
if (userId) Object.assign(proxy, { userId, password });
const family = isIPv6(proxyHost) ? { socket: 'udp6', any: '::' } : { socket: 'udp4', any: '0.0.0.0' };
const client = new SocksClient({ proxy, command: 'associate', destination: { host: family.any, port: 0 }, timeout: 20000 });
const datagrams = dgram.createSocket(family.socket);

client.on('error', fail);
client.on('established', ({ socket, remoteHost }) => {
  const ask = () => {
    const data = dnsPacket.encode({ type: 'query', id: questions.length, questions: [{ type: questions[0], name: 'interop.test' }] });
    const frame = SocksClient.createUDPFrame({ remoteHost: { host, port: Number(port) }, data });
    datagrams.send(frame, remoteHost.port, remoteHost.host);
  };
  datagrams.on('message', (frame) => {
    const message = dnsPacket.decode(SocksClient.parseUDPFrame(frame).data);
    const [{ type, data }] = message.answers;
    console.log(type, type === 'TXT' ? Buffer.concat(data).toString() : data);
    questions.shift();
    if (questions.length > 0) return ask();
    datagrams.close();
    socket.end();
  });
  ask();
});
client.connect();

function fail(error) {
  console.error(error.message);
  process.exitCode = 1;
  datagrams.close();
}
