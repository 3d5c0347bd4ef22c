//! What records without data mean (RFC 8446, sections 4.6, 5 and 6).

use std::error::Error;
use std::fmt;
use std::io;

use spliceway_core::kernel_tls::{self, ALERT, DATA, HANDSHAKE, RecordFault, Way};
use spliceway_core::{TlsCipher, TrafficKey};
use tokio::net::TcpStream;

/// The most records without data in a row. More of them only cost time.
const WITHOUT_DATA_MAX: u64 = 32;

/// The longest message that is accepted. A ticket has at most 64 KiB and some fields.
const MESSAGE_MAX: usize = 68 << 10;

const UNEXPECTED_MESSAGE: u8 = 10;
const BAD_RECORD_MAC: u8 = 20;
const RECORD_OVERFLOW: u8 = 22;
const DECODE_ERROR: u8 = 50;
const USER_CANCELED: u8 = 90;

/// What a record asks of this side.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    Nothing,
    /// The end of the peer's stream.
    End,
    Ticket(Vec<u8>),
    KeyUpdate {
        is_requested: bool,
    },
}

/// The bytes of data that have come. The stream and a relay each count what they receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// By the stream itself.
    AsStream(u64),
    /// By a relay that splices.
    ByRelay(u64),
}

/// Reads the records of the peer that have no data.
#[derive(Debug)]
pub(super) struct Records {
    /// The beginning of a message or an alert whose rest is still to come, and its type.
    begun: (u8, Vec<u8>),
    /// Records without data since the last one with data.
    without_data: u64,
    /// The bytes of data that had come before the last record without data.
    data: Received,
    /// The number of the record after the last one that was counted.
    counted: u64,
    cipher: TlsCipher,
}

impl Records {
    /// Counts from the record with this number.
    pub(super) fn new(cipher: TlsCipher, next_record: u64) -> Self {
        Self {
            begun: (0, Vec::new()),
            without_data: 0,
            data: Received::AsStream(0),
            counted: next_record,
            cipher,
        }
    }

    /// Returns whether the next record begins a message.
    pub(super) fn is_between_messages(&self) -> bool {
        self.begun.1.is_empty()
    }

    /// The peer's next record is the first one under this key.
    pub(super) fn have_key(&mut self, key: &TrafficKey) {
        self.counted = key.next_record();
    }

    /// Counts records without data, or a part of one. Before them, this many bytes of data had
    /// come.
    pub(super) fn count(&mut self, socket: &TcpStream, data: Received) -> io::Result<()> {
        let next = kernel_tls::next_record(socket, Way::Receive, self.cipher)?;
        self.count_until(next, data)
    }

    fn count_until(&mut self, next: u64, data: Received) -> io::Result<()> {
        // The number stays if this is another part of a record.
        let records = next.saturating_sub(self.counted);
        self.counted = next;
        if data == self.data {
            self.without_data += records;
        } else {
            let is_same_count = std::mem::discriminant(&data) == std::mem::discriminant(&self.data);
            if is_same_count && !self.is_between_messages() {
                return Err(unexpected("data inside a message"));
            }
            // Some of the records had data.
            (self.data, self.without_data) = (data, 1);
        }
        if self.without_data > WITHOUT_DATA_MAX {
            return Err(unexpected("too many records without data"));
        }
        Ok(())
    }

    /// Returns what the content of records of this type asks for. It may be a part of the content.
    pub(super) fn read(&mut self, kind: u8, content: &[u8]) -> io::Result<Vec<Meaning>> {
        let (begun_kind, mut bytes) = std::mem::take(&mut self.begun);
        if !bytes.is_empty() && begun_kind != kind {
            return Err(unexpected("a record inside a message"));
        }
        bytes.extend_from_slice(content);
        let mut meanings = Vec::new();
        let mut rest = &bytes[..];
        match kind {
            DATA => {}
            ALERT => {
                while let [_, alert, after @ ..] = rest {
                    meanings.push(match *alert {
                        0 => Meaning::End,
                        USER_CANCELED => Meaning::Nothing,
                        alert => {
                            let what = format!("the peer sent alert {alert}");
                            return Err(Fault { what, alert: None }.into());
                        }
                    });
                    rest = after;
                }
            }
            HANDSHAKE => {
                while let [kind, a, b, c, after @ ..] = rest {
                    let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
                    if length > MESSAGE_MAX {
                        return Err(unexpected("a message that is too long"));
                    }
                    let Some((message, after)) = after.split_at_checked(length) else {
                        break;
                    };
                    meanings.push(match (kind, message) {
                        (4, ticket) => Meaning::Ticket(ticket.to_vec()),
                        (24, [is_requested @ 0..=1]) if after.is_empty() => Meaning::KeyUpdate {
                            is_requested: *is_requested == 1,
                        },
                        _ => return Err(unexpected("a message that may not come")),
                    });
                    rest = after;
                }
            }
            _ => return Err(unexpected("a record of an unknown type")),
        }
        let read = bytes.len() - rest.len();
        bytes.drain(..read);
        self.begun = (kind, bytes);
        Ok(meanings)
    }
}

/// An error of the peer's records, and the alert that answers it.
#[derive(Debug)]
struct Fault {
    what: String,
    alert: Option<u8>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TLS: {}", self.what)
    }
}

impl Error for Fault {}

impl From<Fault> for io::Error {
    fn from(fault: Fault) -> Self {
        Self::new(io::ErrorKind::InvalidData, fault)
    }
}

fn unexpected(what: &str) -> io::Error {
    let alert = Some(UNEXPECTED_MESSAGE);
    Fault {
        what: what.to_owned(),
        alert,
    }
    .into()
}

/// Returns the alert that answers an error, if it is a fault of the peer's records, and the error
/// in words.
pub(super) fn fault(error: io::Error) -> (Option<u8>, io::Error) {
    let (what, alert) = match RecordFault::of(&error) {
        Some(RecordFault::Tag) => ("a record with a wrong tag", BAD_RECORD_MAC),
        Some(RecordFault::Length) => ("a record that is too long", RECORD_OVERFLOW),
        Some(RecordFault::Header) => ("a record with a damaged header", DECODE_ERROR),
        None => {
            let fault = error.get_ref().and_then(|error| error.downcast_ref::<Fault>());
            return (fault.and_then(|fault| fault.alert), error);
        }
    };
    let (what, alert) = (what.to_owned(), Some(alert));
    (alert, Fault { what, alert }.into())
}

#[cfg(test)]
mod tests;
