use hickory_proto::rr::rdata::{A, CNAME, SOA};

use std::net::Ipv4Addr;

use super::*;

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

fn query() -> Query {
    Query::query(name("a.example."), RecordType::A)
}

fn answer() -> Message {
    let mut message = Message::response(7, OpCode::Query);
    message.metadata.recursion_available = true;
    message.add_query(query());
    message
}

fn address(owner: &str, last: u8, ttl: u32) -> Record {
    Record::from_rdata(name(owner), ttl, RData::A(A(Ipv4Addr::new(192, 0, 2, last))))
}

fn alias(owner: &str, of: &str, ttl: u32) -> Record {
    Record::from_rdata(name(owner), ttl, RData::CNAME(CNAME(name(of))))
}

fn found(records: Vec<Record>) -> (Vec<IpAddr>, u64) {
    let mut message = answer();
    message.answers = records;
    let reply = Reply::new(&message, &query());
    (reply.addresses(), reply.ttl.as_secs())
}

#[test]
fn addresses_are_those_of_the_name_and_of_its_aliases_in_any_order() {
    let one: Vec<IpAddr> = vec![[192, 0, 2, 1].into()];
    assert_eq!(found(vec![address("A.Example.", 1, 9)]), (one.clone(), 9));
    let mut records = vec![
        alias("a.example.", "b.example.", 5),
        alias("b.example.", "c.example.", 3),
        address("c.example.", 1, 9),
        address("other.example.", 2, 1),
    ];
    assert_eq!(found(records.clone()), (one.clone(), 3));
    records.reverse();
    assert_eq!(found(records), (one, 3));
    let circle = vec![
        alias("a.example.", "b.example.", 5),
        alias("b.example.", "a.example.", 5),
    ];
    assert_eq!(found(circle), (Vec::new(), 0));
}

#[test]
fn a_negative_answer_is_valid_as_long_as_its_zone_says() {
    let mut message = answer();
    message.metadata.response_code = ResponseCode::NXDomain;
    let soa = SOA::new(name("example."), name("example."), 1, 1, 1, 1, 30);
    message.add_authority(Record::from_rdata(name("example."), 60, RData::SOA(soa)));
    let reply = Reply::new(&message, &query());
    assert_eq!(
        (reply.ttl, reply.no_such_name, failure(&message)),
        (Duration::from_secs(30), true, None)
    );
}

#[test]
fn an_answer_that_another_server_may_know_better_is_a_failure() {
    for code in [
        ResponseCode::ServFail,
        ResponseCode::Refused,
        ResponseCode::NotImp,
        ResponseCode::FormErr,
    ] {
        let mut message = answer();
        message.metadata.response_code = code;
        assert!(failure(&message).is_some(), "{code}");
    }
    let mut message = answer();
    assert_eq!(failure(&message), None);
    message.metadata.recursion_available = false;
    assert!(failure(&message).is_some(), "a referral");
    message.metadata.authoritative = true;
    assert_eq!(failure(&message), None);
}

#[test]
fn only_the_answer_to_the_question_counts() {
    let query = query();
    let question = Question {
        id: 7,
        query: &query,
        bytes: Vec::new(),
    };
    let reply = |message: &Message| question.reply(&message.to_vec().unwrap()).map(|reply| reply.is_ok());
    assert_eq!(reply(&answer()), Some(true));
    let mut other = answer();
    other.metadata.id = 8;
    assert_eq!(reply(&other), None);
    for query in [
        Query::query(name("b.example."), RecordType::A),
        Query::query(name("a.example."), RecordType::AAAA),
    ] {
        let mut other = answer();
        other.queries = vec![query];
        assert_eq!(reply(&other), None);
    }
    let mut failed = answer();
    failed.queries.clear();
    assert_eq!(reply(&failed), None);
    failed.metadata.response_code = ResponseCode::ServFail;
    assert_eq!(reply(&failed), Some(true));
    let mut broken = answer().to_vec().unwrap();
    broken.truncate(20);
    assert!(question.reply(&broken).unwrap().is_err());
}

/// A server may cut an answer anywhere. The whole of it is at TCP.
#[tokio::test]
async fn an_answer_that_is_cut_in_a_record_is_asked_for_over_tcp() {
    let (server, datagrams) = loop {
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        // Another program may use the same UDP port.
        if let Ok(datagrams) = UdpSocket::bind(server.local_addr().unwrap()).await {
            break (server, datagrams);
        }
    };
    let at = server.local_addr().unwrap();
    let serving = async {
        let mut question = [0; 512];
        let (length, from) = datagrams.recv_from(&mut question).await.unwrap();
        let mut message = answer();
        message.metadata.id = u16::from_be_bytes([question[0], question[1]]);
        message.answers = vec![address("a.example.", 1, 9)];
        message.metadata.truncation = true;
        let cut = message.to_vec().unwrap();
        datagrams.send_to(&cut[..cut.len() - 3], from).await.unwrap();
        let (mut stream, _) = server.accept().await.unwrap();
        assert_eq!(usize::from(stream.read_u16().await.unwrap()), length);
        stream.read_exact(&mut question[..length]).await.unwrap();
        message.metadata.truncation = false;
        let whole = message.to_vec().unwrap();
        let head = u16::try_from(whole.len()).unwrap().to_be_bytes();
        stream.write_all(&[&head[..], &whole].concat()).await.unwrap();
    };
    let query = query();
    let asking = exchange(at, &query, false, false, Duration::from_secs(10));
    let (reply, ()) = tokio::join!(asking, serving);
    assert_eq!(Reply::new(&reply.unwrap(), &query).addresses().len(), 1);
}
