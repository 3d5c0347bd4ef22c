//! A DNS server on loopback. A test sets its answers and counts its queries.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hickory_proto::op::{Message, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{CNAME, SOA, SRV};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;

/// The largest datagram that every client accepts.
const DATAGRAM_MAX_BYTES: usize = 512;

/// A server that does not know any names until a test sets an answer. It stops when it is dropped.
pub(in crate::reach::dial) struct Server {
    pub(in crate::reach::dial) address: SocketAddr,
    script: Arc<Mutex<Script>>,
    _running: JoinSet<()>,
}

#[derive(Default)]
struct Script {
    /// The answers by name. Names are in lower case, with a final dot.
    answers: HashMap<String, Answer>,
    asked: Vec<String>,
}

/// The answer to queries for a name.
#[derive(Clone)]
pub(in crate::reach::dial) enum Answer {
    /// These addresses, with a TTL in seconds.
    Has(Vec<IpAddr>, u32),
    /// An alias for another name, and the addresses of that name. Each has a TTL in seconds.
    IsAlias(&'static str, u32, Vec<IpAddr>, u32),
    /// SRV records with this TTL in seconds: priority, weight, port and target.
    HasServices(Vec<(u16, u16, u16, &'static str)>, u32),
    /// No such name, with a TTL in seconds if there is one.
    HasNone(Option<u32>),
    /// A server failure.
    Fails,
    /// No answer.
    Nothing,
    /// This address, with a TTL in seconds. Queries about the other family get no answer.
    OneFamily(IpAddr, u32),
    /// This answer to queries for A. Other queries get none.
    OnlyV4(Box<Answer>),
    /// These addresses. Queries for AAAA get a server failure.
    FailsForV6(Vec<IpAddr>, u32),
}

impl Answer {
    pub(in crate::reach::dial) fn has(ips: &[&str], seconds: u32) -> Self {
        Self::Has(ips.iter().map(|ip| ip.parse().unwrap()).collect(), seconds)
    }
}

impl Server {
    pub(in crate::reach::dial) async fn start() -> Self {
        let (udp, tcp) = loop {
            let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            // Another program may use the same TCP port.
            if let Ok(tcp) = TcpListener::bind(udp.local_addr().unwrap()).await {
                break (udp, tcp);
            }
        };
        let address = udp.local_addr().unwrap();
        let script = Arc::new(Mutex::new(Script::default()));
        let mut running = JoinSet::new();
        running.spawn(serve_datagrams(udp, Arc::clone(&script)));
        running.spawn(serve_streams(tcp, Arc::clone(&script)));
        Self {
            address,
            script,
            _running: running,
        }
    }

    /// Sets the answer to all further queries for `name`.
    pub(in crate::reach::dial) fn says(&self, name: &str, answer: Answer) {
        self.script.lock().answers.insert(name.into(), answer);
    }

    /// Returns the number of queries for `name`, for both families together.
    pub(in crate::reach::dial) fn asked(&self, name: &str) -> usize {
        let script = self.script.lock();
        script.asked.iter().filter(|asked| *asked == name).count()
    }
}

async fn serve_datagrams(socket: UdpSocket, script: Arc<Mutex<Script>>) {
    let mut buffer = [0; DATAGRAM_MAX_BYTES];
    loop {
        let (bytes, from) = socket.recv_from(&mut buffer).await.unwrap();
        let Some(mut answer) = answer(&buffer[..bytes], &script) else {
            continue;
        };
        if answer.to_vec().unwrap().len() > DATAGRAM_MAX_BYTES {
            answer.answers.clear();
            answer.metadata.truncation = true;
        }
        socket.send_to(&answer.to_vec().unwrap(), from).await.unwrap();
    }
}

async fn serve_streams(listener: TcpListener, script: Arc<Mutex<Script>>) {
    let mut streams = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        streams.spawn(serve_stream(stream, Arc::clone(&script)));
    }
}

async fn serve_stream(mut stream: TcpStream, script: Arc<Mutex<Script>>) {
    while let Ok(bytes) = stream.read_u16().await {
        let mut question = vec![0; bytes.into()];
        stream.read_exact(&mut question).await.unwrap();
        let Some(answer) = answer(&question, &script) else {
            continue;
        };
        let answer = answer.to_vec().unwrap();
        stream.write_u16(answer.len().try_into().unwrap()).await.unwrap();
        stream.write_all(&answer).await.unwrap();
    }
}

/// Returns the answer to a query. `None` means no answer.
fn answer(question: &[u8], script: &Mutex<Script>) -> Option<Message> {
    let question = Message::from_vec(question).unwrap();
    let query = question.queries[0].clone();
    let name = query.name().to_lowercase().to_ascii();
    let mut script = script.lock();
    script.asked.push(name.clone());
    let mut message = Message::response(question.metadata.id, OpCode::Query);
    message.metadata.recursion_available = true;
    message.add_query(query.clone());
    let records = |owner: &Name, ips: &[IpAddr], seconds| -> Vec<Record> {
        let of_type = |record: &Record| record.record_type() == query.query_type();
        let records = ips
            .iter()
            .map(|ip| Record::from_rdata(owner.clone(), seconds, RData::from(*ip)));
        records.filter(of_type).collect()
    };
    let mut none_for = None;
    let known = match script.answers.get(&name) {
        Some(Answer::OnlyV4(answer)) if query.query_type() == RecordType::A => Some(&**answer),
        Some(Answer::OnlyV4(_)) => return None,
        known => known,
    };
    match known {
        Some(Answer::Has(ips, seconds)) => {
            message.add_answers(records(query.name(), ips, *seconds));
            none_for = message.answers.is_empty().then_some(*seconds);
        }
        Some(Answer::IsAlias(of, alias_seconds, ips, seconds)) => {
            let of = Name::from_ascii(of).unwrap();
            let alias = RData::CNAME(CNAME(of.clone()));
            message.add_answer(Record::from_rdata(query.name().clone(), *alias_seconds, alias));
            message.add_answers(records(&of, ips, *seconds));
        }
        Some(Answer::HasServices(services, seconds)) => {
            for (priority, weight, port, target) in services {
                let srv = SRV::new(*priority, *weight, *port, Name::from_ascii(target).unwrap());
                message.add_answer(Record::from_rdata(query.name().clone(), *seconds, RData::SRV(srv)));
            }
        }
        Some(Answer::HasNone(seconds)) => {
            message.metadata.response_code = ResponseCode::NXDomain;
            none_for = *seconds;
        }
        Some(Answer::Fails) => message.metadata.response_code = ResponseCode::ServFail,
        Some(Answer::OneFamily(ip, seconds)) => {
            message.add_answers(records(query.name(), &[*ip], *seconds));
            if message.answers.is_empty() {
                return None;
            }
        }
        Some(Answer::FailsForV6(..)) if query.query_type() == RecordType::AAAA => {
            message.metadata.response_code = ResponseCode::ServFail;
        }
        Some(Answer::FailsForV6(ips, seconds)) => {
            message.add_answers(records(query.name(), ips, *seconds));
        }
        Some(Answer::Nothing | Answer::OnlyV4(_)) => return None,
        None => message.metadata.response_code = ResponseCode::NXDomain,
    }
    // The SOA record of the zone gives the TTL of a negative answer (RFC 2308).
    if let Some(seconds) = none_for {
        let zone = Name::from_ascii("example.").unwrap();
        let soa = SOA::new(zone.clone(), zone.clone(), 1, 1, 1, 1, seconds);
        message.add_authority(Record::from_rdata(zone, seconds, RData::SOA(soa)));
    }
    Some(message)
}
