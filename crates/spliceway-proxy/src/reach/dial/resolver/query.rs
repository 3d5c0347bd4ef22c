//! Asks the name servers one question: a server at a time, in the order of `/etc/resolv.conf`.
//!
//! ```text
//!   server 1 ──▶ an answer, or "no such name": the end
//!      │ a failure, or no answer in time
//!      ▼
//!   server 2 … server 3 … and again from server 1, `attempts` times
//! ```
//!
//! A later server gets a question only if the earlier ones have not answered it. So a public server
//! learns no internal names.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::answer::LookupError;
use super::resolv_conf::{Options, ResolvConf};
use crate::net::outgoing::unspecified;
use crate::reach::dial::happy_eyeballs::Family;

/// The largest datagram of an answer. Servers send 512 bytes unless a query allows more.
const DATAGRAM_MAX_BYTES: usize = 4096;
/// The size that a query allows with the option `edns0`. Such datagrams are not fragmented.
const EDNS_BYTES: u16 = 1232;
/// The maximum number of aliases from a name to its addresses.
const ALIASES_MAX: usize = 16;

/// The answer to a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reply {
    /// The records of the type in question. There may be none.
    pub(super) data: Vec<RData>,
    pub(super) ttl: Duration,
    /// Whether the answer was that no such name exists.
    pub(super) no_such_name: bool,
}

/// Asks the servers for the addresses of one family, beginning with the server at this index.
pub(super) async fn query_addresses(
    conf: &ResolvConf,
    first: usize,
    name: &str,
    family: Family,
) -> Result<Reply, LookupError> {
    let record_type = match family {
        Family::V6 => RecordType::AAAA,
        Family::V4 => RecordType::A,
    };
    query_servers(conf, first, name, record_type).await
}

/// Asks the servers, beginning with the one at this index.
pub(super) async fn query_servers(
    conf: &ResolvConf,
    first: usize,
    name: &str,
    record_type: RecordType,
) -> Result<Reply, LookupError> {
    // A text that is not a DNS name has no address, so no server is asked.
    let mut name = Name::from_ascii(name).map_err(|_| LookupError::NoAddress)?;
    name.set_fqdn(true);
    let query = Query::query(name, record_type);
    let mut failed = LookupError::TimedOut;
    for round in 0..conf.options.attempts {
        for index in 0..conf.servers.len() {
            let server = conf.servers[(first + index) % conf.servers.len()];
            failed = match query_server(server, &query, &conf.options, conf.patience(round)).await {
                Ok(message) => match failure(&message) {
                    None => return Ok(Reply::new(&message, &query)),
                    Some(why) => LookupError::Failed(format!("the name server {} {why}", server.ip()).into()),
                },
                Err(error) if error.kind() == io::ErrorKind::TimedOut => LookupError::TimedOut,
                Err(error) => LookupError::Unreachable(format!("the name server {server}: {error}").into()),
            };
        }
    }
    Err(failed)
}

/// Returns what is wrong with an answer that another server may answer better.
fn failure(message: &Message) -> Option<String> {
    let meta = &message.metadata;
    match meta.response_code {
        ResponseCode::NXDomain => None,
        // A server that does not answer for others has referred to other servers, or to nobody.
        ResponseCode::NoError
            if message.answers.is_empty()
                && !meta.authoritative
                && !meta.recursion_available
                && message.additionals.is_empty() =>
        {
            Some("does not know the answer and does not ask others".to_owned())
        }
        ResponseCode::NoError => None,
        code => Some(format!("answered: {code}")),
    }
}

async fn query_server(server: SocketAddr, query: &Query, options: &Options, patience: Duration) -> io::Result<Message> {
    let message = exchange(server, query, options.edns0, options.use_vc, patience).await?;
    // Some servers do not know EDNS.
    if options.edns0 && message.metadata.response_code == ResponseCode::FormErr {
        return exchange(server, query, false, options.use_vc, patience).await;
    }
    Ok(message)
}

async fn exchange(
    server: SocketAddr,
    query: &Query,
    has_edns: bool,
    use_vc: bool,
    patience: Duration,
) -> io::Result<Message> {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(query.clone());
    if has_edns {
        let mut edns = Edns::new();
        edns.set_max_payload(EDNS_BYTES);
        message.set_edns(edns);
    }
    let bytes = message.to_vec().map_err(io::Error::other)?;
    let question = Question {
        id: message.metadata.id,
        query,
        bytes,
    };
    if !use_vc {
        let reply = timeout(patience, question.by_datagram(server))
            .await
            .unwrap_or_else(late)?;
        if let Some(reply) = reply {
            return Ok(reply);
        }
    }
    timeout(patience, question.by_stream(server)).await.unwrap_or_else(late)
}

fn late<T>(_: tokio::time::error::Elapsed) -> io::Result<T> {
    Err(io::ErrorKind::TimedOut.into())
}

/// The bit of the third byte that says that an answer is cut (RFC 1035, section 4.1.1).
const TRUNCATED: u8 = 0x02;

/// A question as it is sent.
struct Question<'a> {
    id: u16,
    query: &'a Query,
    bytes: Vec<u8>,
}

impl Question<'_> {
    /// Returns `None` if the answer does not fit into a datagram.
    async fn by_datagram(&self, server: SocketAddr) -> io::Result<Option<Message>> {
        // The kernel chooses a random port, and a connected socket gets datagrams only from the
        // server.
        let socket = UdpSocket::bind((unspecified(server.ip()), 0)).await?;
        socket.connect(server).await?;
        socket.send(&self.bytes).await?;
        let mut buffer = vec![0; DATAGRAM_MAX_BYTES];
        loop {
            let bytes = socket.recv(&mut buffer).await?;
            if let Some(reply) = self.reply(&buffer[..bytes]) {
                // A part of a longer answer may end anywhere. The whole of it arrives over TCP.
                let is_part = bytes == buffer.len() || buffer[2] & TRUNCATED != 0;
                return if is_part { Ok(None) } else { reply.map(Some) };
            }
        }
    }

    async fn by_stream(&self, server: SocketAddr) -> io::Result<Message> {
        let mut stream = TcpStream::connect(server).await?;
        let length = u16::try_from(self.bytes.len()).map_err(io::Error::other)?;
        stream
            .write_all(&[&length.to_be_bytes(), &self.bytes[..]].concat())
            .await?;
        let mut buffer = vec![0; stream.read_u16().await?.into()];
        stream.read_exact(&mut buffer).await?;
        self.reply(&buffer)
            .unwrap_or_else(|| Err(io::Error::other("the answer is for another question")))
    }

    /// Returns the reply in these bytes. Returns `None` if they do not answer this question.
    fn reply(&self, bytes: &[u8]) -> Option<io::Result<Message>> {
        let is_reply = bytes.len() > 2 && bytes[..2] == self.id.to_be_bytes() && bytes[2] & 0x80 != 0;
        if !is_reply {
            return None;
        }
        let message = match Message::from_vec(bytes) {
            Ok(message) => message,
            Err(error) => return Some(Err(io::Error::other(error))),
        };
        let is_plain =
            message.metadata.message_type == MessageType::Response && message.metadata.op_code == OpCode::Query;
        // A server that fails may leave out the question.
        let is_mine = match &message.queries[..] {
            [] => message.metadata.response_code != ResponseCode::NoError && message.answers.is_empty(),
            [query] => query.query_type() == self.query.query_type() && query.name() == self.query.name(),
            _ => false,
        };
        (is_plain && is_mine).then_some(Ok(message))
    }
}

impl Reply {
    fn new(message: &Message, query: &Query) -> Self {
        let mut used: Vec<&Record> = Vec::new();
        let mut name = query.name();
        // Some servers send an alias after the records that it leads to, so all records are
        // searched for each name.
        for _ in 0..=ALIASES_MAX {
            let of_name = || message.answers.iter().filter(|record| record.name == *name);
            let found = of_name().filter(|record| record.record_type() == query.query_type());
            let before = used.len();
            used.extend(found);
            let alias = of_name().find_map(|record| match &record.data {
                RData::CNAME(alias) => Some((record, &alias.0)),
                _ => None,
            });
            match alias {
                Some((record, next)) if used.len() == before => {
                    used.push(record);
                    name = next;
                }
                _ => break,
            }
        }
        let is_data = |record: &&&Record| record.record_type() == query.query_type();
        let data: Vec<RData> = used.iter().filter(is_data).map(|record| record.data.clone()).collect();
        // An alias and the addresses that it leads to are valid only together, so the shortest TTL
        // counts.
        let ttl = if data.is_empty() {
            negative_ttl(message)
        } else {
            used.iter().map(|record| record.ttl).min()
        };
        Self {
            data,
            ttl: Duration::from_secs(ttl.unwrap_or(0).into()),
            no_such_name: message.metadata.response_code == ResponseCode::NXDomain,
        }
    }

    /// Returns the addresses. They are of one family.
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        self.data.iter().filter_map(RData::ip_addr).collect()
    }
}

/// Returns how long "no such name" or "no such record" is valid (RFC 2308).
fn negative_ttl(message: &Message) -> Option<u32> {
    message.authorities.iter().find_map(|record| match &record.data {
        RData::SOA(soa) => Some(record.ttl.min(soa.minimum)),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
