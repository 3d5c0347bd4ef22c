//! Messages of DNS clients, compared with what a whole implementation of DNS reads.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hickory_proto::op::{Message, MessageType, OpCode};
use hickory_proto::rr;
use spliceway_protocol::dns::{DATAGRAM_MAX_BYTES, Malformed, Query, RecordType, Reply};
use spliceway_protocol::rule::canonical_name;

/// Checks that a query is read as hickory reads it, and that every answer has its identifier and
/// its question, is no longer than allowed, and can be read. The first byte selects the reply.
///
/// # Panics
/// Panics if a property does not hold.
pub fn dns(bytes: &[u8]) {
    let Some((&choice, message)) = bytes.split_first() else {
        return;
    };
    let query = match Query::parse(message) {
        Ok(query) => query,
        Err(Malformed(answer)) => {
            assert!(answer.len() <= 23 && answer.len() <= message.len() + 11);
            assert!(answer.is_empty() || (answer[..2] == message[..2] && answer[2] & 0x80 != 0));
            return;
        }
    };
    let known = Message::from_vec(message).ok();
    if let Some(known) = &known {
        assert_eq!(
            (known.metadata.message_type, known.metadata.op_code),
            (MessageType::Query, OpCode::Query)
        );
        let [question] = &known.queries[..] else {
            panic!("there is one question: {known:?}")
        };
        let record_type = match question.query_type() {
            rr::RecordType::A => RecordType::V4,
            rr::RecordType::AAAA => RecordType::V6,
            _ => RecordType::Other,
        };
        assert_eq!(query.record_type, record_type);
        if let Some(name) = &query.name {
            // hickory's text escapes a hyphen at the start of a label, so the labels are compared.
            let name_of_question = question.name().to_lowercase();
            let labels: Vec<&[u8]> = name_of_question.iter().collect();
            assert_eq!(labels.join(&b'.'), name.as_bytes());
        }
    }
    if let Some(name) = &query.name {
        assert_eq!(canonical_name(name).as_deref(), Some(&**name));
        assert!(name.len() <= 253 && name.bytes().all(|byte| byte.is_ascii_graphic()));
    }
    let count = usize::from(choice >> 2);
    let v4: Vec<IpAddr> = vec![Ipv4Addr::LOCALHOST.into(); count];
    let v6: Vec<IpAddr> = vec![Ipv6Addr::LOCALHOST.into(); count];
    let reply = match (choice & 3, query.record_type) {
        (0, RecordType::V4) => Reply::Addresses(&v4, 5),
        (0, RecordType::V6) => Reply::Addresses(&v6, 5),
        (0, RecordType::Other) => Reply::Addresses(&[], 5),
        (1, _) => Reply::NoSuchName,
        (2, _) => Reply::Blocked,
        _ => Reply::Failed,
    };
    let (datagram, stream) = (query.datagram(reply), query.stream(reply));
    assert!(datagram.len() <= DATAGRAM_MAX_BYTES.into());
    assert_eq!(stream[..2], (stream.len() as u16 - 2).to_be_bytes());
    let is_cut = datagram[2] & 2 != 0;
    assert!(is_cut || datagram == stream[2..]);
    // hickory reads some questions differently, such as those about its own types.
    let Some(known) = known else { return };
    for answer in [&datagram[..], &stream[2..]] {
        let answer = Message::from_vec(answer).expect("an answer can be read");
        assert_eq!(
            (answer.metadata.id, &answer.queries),
            (known.metadata.id, &known.queries)
        );
        assert_eq!(answer.metadata.message_type, MessageType::Response);
        let addresses: Vec<_> = answer
            .answers
            .iter()
            .filter_map(|record| record.data.ip_addr())
            .collect();
        match reply {
            Reply::Addresses(all, _) if !answer.metadata.truncation => assert_eq!(addresses, all),
            _ => assert!(addresses.is_empty()),
        }
    }
}
