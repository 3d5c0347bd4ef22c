//! Queries of DNS clients, and answers to them, for a server that knows addresses only (RFC 1035,
//! and EDNS of RFC 6891).
//!
//! ```text
//!   message ─▶ Query::parse ─┬─ Query ─ Reply ─▶ an answer to this question
//!                            └─ Malformed ─────▶ an answer that only has a code, or none
//! ```
//!
//! Only the header, the question and EDNS of a query are read. No pointer of a compressed name is
//! followed. An answer has the question as it came, byte for byte: some clients choose the case of
//! each letter, and recognize forged answers by it.
//!
//! # What it does not do
//!
//! It parses no answers, and knows no zones, classes other than IN, transfers, updates, signatures
//! or cookies.

use std::net::IpAddr;

/// The most bytes of an answer in a datagram, whatever the client accepts. Such datagrams are not
/// fragmented, and a forged client gets no more.
pub const DATAGRAM_MAX_BYTES: u16 = 1232;
/// What a client accepts in a datagram unless it says more.
const DATAGRAM_BYTES: u16 = 512;
const HEADER_BYTES: usize = 12;
/// The longest name on the wire, with the lengths of its labels.
const NAME_MAX_BYTES: usize = 255;
/// The longest label. Longer "lengths" are pointers.
const LABEL_MAX_BYTES: u8 = 63;

/// The third byte of a message: an answer, the operation, a cut answer, "please ask others".
const IS_ANSWER: u8 = 0x80;
const OPERATION: u8 = 0x78;
const IS_CUT: u8 = 0x02;
const WANTS_RECURSION: u8 = 0x01;
/// The fourth byte of a message: "I ask others". Without it, clients take an answer without
/// records for a referral, and ask another server.
const RECURSES: u8 = 0x80;
const CHECKS_DISABLED: u8 = 0x10;

const NO_ERROR: u8 = 0;
const FORMAT_ERROR: u8 = 1;
const SERVER_FAILURE: u8 = 2;
const NO_SUCH_NAME: u8 = 3;
const NOT_IMPLEMENTED: u8 = 4;

const TYPE_A: u16 = 1;
const TYPE_AAAA: u16 = 28;
const TYPE_OPT: u16 = 41;
const CLASS_IN: u16 = 1;
/// The name in the question, as the name of a record.
const NAME_OF_QUESTION: [u8; 2] = [0xC0, HEADER_BYTES as u8];

/// The option of EDNS that tells a person why there is no answer (RFC 8914): its code, its length,
/// the code for "blocked", and a text.
const BLOCKED: &[u8] = b"\0\x0f\0\x1a\0\x0fno rule allows this name";

/// What a client asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordType {
    /// IPv4 addresses.
    V4,
    /// IPv6 addresses.
    V6,
    /// Records that have no address, or may have more than addresses.
    Other,
}

/// A query with one question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    id: [u8; 2],
    flags: [u8; 2],
    question: Box<[u8]>,
    /// What the client accepts in a datagram, if it speaks EDNS.
    edns: Option<u16>,
    /// The name in lower case and without a dot at the end. `None` if a label has a character that
    /// no name of a host has, or if there is no label: such a text could stand for another name.
    pub name: Option<Box<str>>,
    /// What the client asks for.
    pub record_type: RecordType,
}

/// Why bytes are no query, and the answer to them. It is empty if there must be none: an answer to
/// an answer could go round for ever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed(pub Vec<u8>);

/// What a client is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply<'a> {
    /// The name has these addresses, or none of this kind. They are of the family that the client
    /// has asked for, and valid for this many seconds.
    Addresses(&'a [IpAddr], u32),
    /// There is no such name.
    NoSuchName,
    /// There is no such name for this client, because no rule allows it.
    Blocked,
    /// The addresses could not be looked up.
    Failed,
}

impl Query {
    /// Parses a message of a client.
    ///
    /// # Errors
    /// Returns the answer to bytes that are no query, or to a query that this server does not know.
    pub fn parse(message: &[u8]) -> Result<Self, Malformed> {
        let Some((header, mut rest)) = message.split_first_chunk::<HEADER_BYTES>() else {
            return Err(Malformed(Vec::new()));
        };
        let [id_0, id_1, flags_0, flags_1, counts @ ..] = *header;
        if flags_0 & IS_ANSWER != 0 {
            return Err(Malformed(Vec::new()));
        }
        let mut query = Self {
            id: [id_0, id_1],
            flags: [flags_0, flags_1],
            question: Box::default(),
            edns: None,
            name: None,
            record_type: RecordType::Other,
        };
        if flags_0 & OPERATION != 0 {
            return Err(Malformed(query.header(NOT_IMPLEMENTED, 0).into()));
        }
        let malformed = Malformed(query.header(FORMAT_ERROR, 0).into());
        // One question, no answers, no authorities, and some further records.
        let [0, 1, 0, 0, 0, 0, more_0, more_1] = counts else {
            return Err(malformed);
        };
        let before = rest;
        let parsed = query.take_question(&mut rest).and_then(|()| {
            query.question = before[..before.len() - rest.len()].into();
            query.take_records(&mut rest, u16::from_be_bytes([more_0, more_1]))
        });
        match parsed {
            Some(version) if rest.is_empty() && version == 0 => Ok(query),
            Some(_) if rest.is_empty() => Err(Malformed(query.other_version())),
            _ => Err(malformed),
        }
    }

    /// Returns the answer for a client that has sent a datagram. If it does not fit, it says that
    /// the client must ask by TCP.
    #[must_use]
    pub fn datagram(&self, reply: Reply<'_>) -> Vec<u8> {
        let answer = self.answer(reply);
        let accepted = self.edns.unwrap_or(DATAGRAM_BYTES);
        let most = accepted.clamp(DATAGRAM_BYTES, DATAGRAM_MAX_BYTES);
        if answer.len() <= most.into() {
            return answer;
        }
        let mut cut = self.answer(Reply::Addresses(&[], 0));
        cut[2] |= IS_CUT;
        cut
    }

    /// Returns the answer for a client that has connected, with its length before it. An answer
    /// with as many addresses as fit has room for 2,000 of them; the others are left out.
    #[must_use]
    pub fn stream(&self, reply: Reply<'_>) -> Vec<u8> {
        let answer = self.answer(reply);
        let length = u16::try_from(answer.len()).unwrap_or(u16::MAX).to_be_bytes();
        [&length[..], &answer].concat()
    }

    fn answer(&self, reply: Reply<'_>) -> Vec<u8> {
        let (code, addresses, ttl) = match reply {
            // The most addresses whose count and length fit into a message.
            Reply::Addresses(addresses, ttl) => (NO_ERROR, &addresses[..addresses.len().min(2000)], ttl),
            Reply::NoSuchName | Reply::Blocked => (NO_SUCH_NAME, &[][..], 0),
            Reply::Failed => (SERVER_FAILURE, &[][..], 0),
        };
        let mut answer: Vec<u8> = self.header(code, addresses.len() as u16).into();
        answer[5] = 1;
        answer.extend_from_slice(&self.question);
        for address in addresses {
            let (kind, octets) = match address {
                IpAddr::V4(ip) => (TYPE_A, &ip.octets()[..]),
                IpAddr::V6(ip) => (TYPE_AAAA, &ip.octets()[..]),
            };
            answer.extend_from_slice(&NAME_OF_QUESTION);
            answer.extend([kind, CLASS_IN].map(u16::to_be_bytes).as_flattened());
            answer.extend(ttl.to_be_bytes());
            answer.extend([0, octets.len() as u8]);
            answer.extend_from_slice(octets);
        }
        if self.edns.is_some() {
            let options = if reply == Reply::Blocked { BLOCKED } else { b"" };
            self.add_edns(&mut answer, 0, options);
        }
        answer
    }

    /// Returns the header of an answer with this code, without a question.
    fn header(&self, code: u8, answers: u16) -> [u8; HEADER_BYTES] {
        let [id_0, id_1] = self.id;
        let copied = self.flags[0] & (OPERATION | WANTS_RECURSION);
        let flags = RECURSES | self.flags[1] & CHECKS_DISABLED | code;
        let [count_0, count_1] = answers.to_be_bytes();
        [
            id_0,
            id_1,
            IS_ANSWER | copied,
            flags,
            0,
            0,
            count_0,
            count_1,
            0,
            0,
            0,
            0,
        ]
    }

    /// Returns the answer to a version of EDNS that does not exist yet.
    fn other_version(&self) -> Vec<u8> {
        let mut answer = self.header(NO_ERROR, 0).into();
        // The upper bits of the code 16.
        self.add_edns(&mut answer, 1, b"");
        answer
    }

    fn add_edns(&self, answer: &mut Vec<u8>, code: u8, options: &[u8]) {
        answer[11] = 1;
        let [kind_0, kind_1] = TYPE_OPT.to_be_bytes();
        let [most_0, most_1] = DATAGRAM_MAX_BYTES.to_be_bytes();
        answer.extend([0, kind_0, kind_1, most_0, most_1, code, 0, 0, 0, 0, options.len() as u8]);
        answer.extend_from_slice(options);
    }

    /// Takes the question. Returns `None` if there is none, or if its name is compressed: there is
    /// nothing before it to which it could point.
    fn take_question(&mut self, rest: &mut &[u8]) -> Option<()> {
        let before = *rest;
        let mut name = String::new();
        let mut is_host = true;
        loop {
            let label = match rest.split_off_first()? {
                0 => break,
                &length @ 1..=LABEL_MAX_BYTES => rest.split_off(..length.into())?,
                _ => return None,
            };
            // The length of the root follows.
            if before.len() - rest.len() >= NAME_MAX_BYTES {
                return None;
            }
            is_host &= label
                .iter()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
            if !name.is_empty() {
                name.push('.');
            }
            name.extend(label.iter().map(|byte| char::from(byte.to_ascii_lowercase())));
        }
        let (kind, class) = (take_u16(rest)?, take_u16(rest)?);
        self.record_type = match kind {
            TYPE_A => RecordType::V4,
            TYPE_AAAA => RecordType::V6,
            _ => RecordType::Other,
        };
        let is_name = is_host && !name.is_empty() && class == CLASS_IN;
        self.name = is_name.then(|| name.into());
        Some(())
    }

    /// Takes the records after the question. Returns the version of EDNS, or `None` if one of them
    /// ends too early, or if there are two of EDNS.
    fn take_records(&mut self, rest: &mut &[u8], count: u16) -> Option<u8> {
        let mut version = 0;
        for _ in 0..count {
            let is_root = take_owner(rest)?;
            let (kind, class) = (take_u16(rest)?, take_u16(rest)?);
            let [_, its_version, _, _] = *rest.split_off(..4)? else {
                return None;
            };
            let length = take_u16(rest)?;
            rest.split_off(..length.into())?;
            if kind == TYPE_OPT {
                if !is_root || self.edns.replace(class).is_some() {
                    return None;
                }
                version = its_version;
            }
        }
        Some(version)
    }
}

/// Takes the name of a record, and does not follow a pointer in it. Returns whether it is the root.
fn take_owner(rest: &mut &[u8]) -> Option<bool> {
    let mut is_root = true;
    loop {
        match rest.split_off_first()? {
            0 => return Some(is_root),
            &length @ 1..=LABEL_MAX_BYTES => drop(rest.split_off(..length.into())?),
            0xC0..=0xFF => {
                rest.split_off_first()?;
                return Some(false);
            }
            _ => return None,
        }
        is_root = false;
    }
}

fn take_u16(rest: &mut &[u8]) -> Option<u16> {
    let two = rest.split_off(..2)?;
    Some(u16::from_be_bytes([two[0], two[1]]))
}

#[cfg(test)]
mod tests;
