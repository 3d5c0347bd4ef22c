//! Finds the end of a chunked body (RFC 9112 section 7.1).
//!
//! ```text
//!   size [; extension] CR LF  data CR LF  …  0 CR LF  trailer lines  CR LF
//! ```
//!
//! The proxy relays the bytes unchanged. The parser refuses every deviation from the grammar,
//! because another reader might find the end elsewhere. The only exception is a blank after a size.
//! Old programs fill a field of fixed width with blanks, and no reader finds another size there.

/// A larger size has no room for another digit. Leading zeros do not count.
const SIZE_MAX: u64 = (1 << 56) - 1;
/// The most digits of a size, most of which are leading zeros.
const SIZE_MAX_DIGITS: u8 = 255;
/// The most bytes between the digits of a size and the end of its line.
const EXTENSION_MAX_BYTES: u16 = 255;
const TRAILERS_MAX_BYTES: u16 = 16 << 10;

/// Finds the end of a chunked body. The value holds the position in the body, but none of its
/// bytes.
#[derive(Debug)]
pub struct Chunks(State);

/// The error for a body whose chunked encoding is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Size {
        digits: u8,
        size: u64,
    },
    /// In the blanks after a size.
    Blank {
        bytes: u16,
        size: u64,
    },
    Extension {
        bytes: u16,
        size: u64,
    },
    SizeEnd {
        size: u64,
    },
    /// This many bytes of data are missing.
    Data {
        left: u64,
    },
    DataEnd,
    DataEndLf,
    /// At the start of a line, after this many bytes of trailers.
    Line {
        bytes: u16,
    },
    /// In the name of a trailer, of which at least one byte is known.
    Name {
        bytes: u16,
    },
    /// In the value of a trailer.
    Trailer {
        bytes: u16,
    },
    TrailerEnd {
        bytes: u16,
    },
    LastLf,
    Done,
}

impl Default for Chunks {
    fn default() -> Self {
        Self(State::Size { digits: 0, size: 0 })
    }
}

impl Chunks {
    /// Returns how many of `bytes` belong to the body. `bytes` must directly follow the bytes of
    /// the previous call.
    ///
    /// All of `bytes` belong to the body, unless the body ends within them.
    ///
    /// # Errors
    /// Returns [`Malformed`] if the bytes are not valid chunked encoding.
    pub fn take(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        let mut taken = 0;
        while let Some(rest) = bytes.get(taken..).filter(|rest| !rest.is_empty()) {
            match self.0 {
                State::Done => break,
                State::Data { left } => {
                    let data = usize::try_from(left).map_or(rest.len(), |left| left.min(rest.len()));
                    let left = left - data as u64;
                    self.0 = if left == 0 {
                        State::DataEnd
                    } else {
                        State::Data { left }
                    };
                    taken += data;
                }
                state => {
                    self.0 = state.after(rest[0]).ok_or(Malformed)?;
                    taken += 1;
                }
            }
        }
        Ok(taken)
    }

    /// Returns whether the body is complete.
    pub fn are_over(&self) -> bool {
        self.0 == State::Done
    }
}

impl State {
    /// Returns the state after this byte, or `None` if the byte is not allowed here.
    fn after(self, byte: u8) -> Option<Self> {
        // Control characters end a line for some readers.
        let is_text = byte == b'\t' || !byte.is_ascii_control();
        let digit = char::from(byte).to_digit(16).map(u64::from);
        Some(match (self, byte) {
            (
                Self::Size {
                    digits,
                    size: size @ ..=SIZE_MAX,
                },
                _,
            ) if digits < SIZE_MAX_DIGITS && digit.is_some() => Self::Size {
                digits: digits + 1,
                size: size << 4 | digit?,
            },
            (Self::Size { digits: 1.., size }, b' ' | b'\t') => Self::Blank { bytes: 1, size },
            (Self::Blank { bytes, size }, b' ' | b'\t') if bytes < EXTENSION_MAX_BYTES => {
                Self::Blank { bytes: bytes + 1, size }
            }
            (Self::Size { digits: 1.., size }, b';') => Self::Extension { bytes: 0, size },
            (Self::Blank { bytes, size }, b';') => Self::Extension { bytes, size },
            (Self::Size { digits: 1.., size } | Self::Blank { size, .. } | Self::Extension { size, .. }, b'\r') => {
                Self::SizeEnd { size }
            }
            (Self::Extension { bytes, size }, _) if is_text && bytes < EXTENSION_MAX_BYTES => {
                Self::Extension { bytes: bytes + 1, size }
            }
            (Self::SizeEnd { size: 0 }, b'\n') => Self::Line { bytes: 0 },
            (Self::SizeEnd { size }, b'\n') => Self::Data { left: size },
            (Self::DataEnd, b'\r') => Self::DataEndLf,
            (Self::DataEndLf, b'\n') => Self::Size { digits: 0, size: 0 },
            (Self::Line { .. }, b'\r') => Self::LastLf,
            (Self::LastLf, b'\n') => Self::Done,
            (Self::Name { bytes }, b':') => Self::Trailer { bytes: bytes + 1 },
            (Self::Line { bytes } | Self::Name { bytes }, _) if is_of_name(byte) && bytes < TRAILERS_MAX_BYTES => {
                Self::Name { bytes: bytes + 1 }
            }
            (Self::Trailer { bytes }, _) if is_text && bytes < TRAILERS_MAX_BYTES => Self::Trailer { bytes: bytes + 1 },
            (Self::Trailer { bytes }, b'\r') => Self::TrailerEnd { bytes },
            (Self::TrailerEnd { bytes }, b'\n') => Self::Line { bytes },
            _ => return None,
        })
    }
}

/// Returns whether the name of a field may have this byte. A line of a request has a blank before
/// its first colon, so it is no trailer.
fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] =
        b"5\r\nhello\r\n1a;name=\"value\"\r\nabcdefghijklmnopqrstuvwxyz\r\n000\r\nTrailer: 1\r\nOther: 2\r\n\r\n";

    #[test]
    fn the_end_of_a_body_is_found_at_every_split() {
        let stream = [BODY, b"GET http://next/ HTTP/1.1\r\n\r\n"].concat();
        for split in 0..=stream.len() {
            let mut chunks = Chunks::default();
            let (first, second) = stream.split_at(split);
            let mut taken = chunks.take(first).unwrap();
            if !chunks.are_over() {
                assert_eq!(taken, first.len());
                taken += chunks.take(second).unwrap();
            }
            assert_eq!((taken, chunks.are_over()), (BODY.len(), true), "{split}");
        }
        let mut chunks = Chunks::default();
        let single: usize = stream.iter().map(|byte| chunks.take(&[*byte]).unwrap()).sum();
        assert_eq!(single, BODY.len());
    }

    #[test]
    fn an_empty_chunked_body_is_valid() {
        let mut chunks = Chunks::default();
        assert_eq!(chunks.take(b"0\r\n\r\n"), Ok(5));
        assert!(chunks.are_over());
    }

    #[test]
    fn zeros_before_a_size_and_blanks_after_it_are_no_part_of_it() {
        for size in [
            "3 \r\n",
            "3\t  \r\n",
            "3 ; a=b\r\n",
            "0003\r\n",
            "0000000000000000000003\r\n",
            "00000000000000000003 ;x\r\n",
        ] {
            let stream = format!("{size}abc\r\n0000000000000000 \r\n\r\n");
            let mut chunks = Chunks::default();
            assert_eq!(chunks.take(stream.as_bytes()), Ok(stream.len()), "{size:?}");
            assert!(chunks.are_over(), "{size:?}");
        }
    }

    #[test]
    fn an_incomplete_body_is_not_over() {
        for end in 0..BODY.len() {
            let mut chunks = Chunks::default();
            assert_eq!(chunks.take(&BODY[..end]), Ok(end));
            assert!(!chunks.are_over(), "{end}");
        }
    }

    #[test]
    fn ambiguous_chunks_are_refused() {
        let long = [b"1;", &[b'x'; 300][..], b"\r\n"].concat();
        let blank = [b"1", &[b' '; 300][..], b"\r\n"].concat();
        let zeros = [&[b'0'; 300][..], b"1\r\n"].concat();
        for stream in [
            &b"\r\n"[..],
            b"g\r\n",
            b"-1\r\n",
            b"+1\r\n",
            b"0x1\r\n",
            b"1\n",
            b"1;a\n",
            b" 1\r\n",
            b"5 more\r\n",
            b"5 0\r\n",
            b"1 \n",
            b"1\r\r\n",
            b"1\r\nab",
            b"1\r\na\n",
            b"1\r\na\r1",
            b"1000000000000000\r\n",
            b"0000000000000001000000000000000\r\n",
            b"0\r\n\n",
            b"0\r\na: b\n",
            // Some readers take the lines behind the last chunk for another request.
            b"0\r\nGET http://a/ HTTP/1.1\r\n\r\n",
            b"0\r\na\r\n",
            b"0\r\n: b\r\n",
            b"0\r\na : b\r\n",
            b"0\r\na: b\r\n c\r\n",
            b"0\r\na: \0\r\n",
            b"1;a\0\r\n",
            b"1;a\x7f\r\n",
            &long,
            &blank,
            &zeros,
        ] {
            assert_eq!(Chunks::default().take(stream), Err(Malformed), "{stream:?}");
        }
    }
}
