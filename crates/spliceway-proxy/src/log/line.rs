//! One line of a log, as text or as a JSON object.

use std::cell::{Cell, RefCell};
use std::fmt::{self, Debug, Display};
use std::io;
use std::net::SocketAddr;
use std::time::SystemTime;

use serde::Serialize;
use serde_json::Serializer;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{Format as TextEvents, FormatEvent, FormatFields, Full, Writer};
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::registry::LookupSpan;

use crate::kit::clock;

/// The form of lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Format {
    /// `TIME LEVEL MESSAGE NAME=VALUE …`
    #[default]
    Text,
    /// An object with the keys `time`, `level`, `message`, and one for each field.
    Json,
}

/// A line that gets its fields one after another. The memory is that of the thread's last line.
pub(crate) struct Line {
    format: Format,
    text: Vec<u8>,
}

thread_local! {
    static MEMORY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The memory that a thread keeps for its next line. It is enough for almost every record.
const KEEP_BYTES: usize = 4 << 10;
/// The colours of levels on a terminal, as in the lines of tracing-subscriber.
const GREEN: u8 = 32;
const YELLOW: u8 = 33;
const RED: u8 = 31;

impl Line {
    /// Starts a line with the time of now.
    pub(super) fn new(format: Format) -> Self {
        let mut line = Self::empty(format);
        match format {
            Format::Text => push_time(&mut line.text),
            Format::Json => {
                line.text.extend_from_slice(b"{\"time\":\"");
                push_time(&mut line.text);
                line.text.push(b'"');
            }
        }
        line
    }

    /// Starts a line of the log, in the look of the lines that tracing-subscriber writes.
    pub(super) fn of_log(format: Format, level: Level, message: &str, is_colored: bool) -> Self {
        if format == Format::Text && is_colored {
            let (mut line, time) = (Self::empty(format), now());
            let color = match level {
                Level::ERROR => RED,
                Level::WARN => YELLOW,
                _ => GREEN,
            };
            line.push(format_args!(
                "\x1b[2m{time}\x1b[0m \x1b[{color}m{level:>5}\x1b[0m {message}"
            ));
            return line;
        }
        let mut line = Self::new(format);
        match format {
            Format::Text => {
                let level = level.as_str();
                line.text.extend_from_slice(if level.len() < 5 { b"  " } else { b" " });
                for part in [level, " ", message] {
                    line.text.extend_from_slice(part.as_bytes());
                }
            }
            Format::Json => {
                line.word("level", level.as_str());
                line.text("message", message);
            }
        }
        line
    }

    fn empty(format: Format) -> Self {
        let mut text = MEMORY.take();
        text.clear();
        Self { format, text }
    }

    pub(crate) fn number(&mut self, name: &str, number: impl Into<u64>) {
        self.name(name);
        push_number(&mut self.text, number.into());
    }

    /// Adds a text that may contain anything. It is in quotes and escaped.
    pub(crate) fn text(&mut self, name: &str, text: &str) {
        self.name(name);
        self.quoted(text);
    }

    /// Adds a text that contains neither spaces nor quotes.
    pub(crate) fn word(&mut self, name: &str, word: &str) {
        self.name(name);
        match self.format {
            Format::Text => self.text.extend_from_slice(word.as_bytes()),
            Format::Json => self.quoted(word),
        }
    }

    pub(crate) fn address(&mut self, name: &str, address: &SocketAddr) {
        let SocketAddr::V4(v4) = address else {
            return self.display(name, address);
        };
        self.name(name);
        let quote: &[u8] = if self.format == Format::Json { b"\"" } else { b"" };
        self.text.extend_from_slice(quote);
        for (octet, end) in v4.ip().octets().into_iter().zip(*b"...:") {
            push_number(&mut self.text, octet.into());
            self.text.push(end);
        }
        push_number(&mut self.text, v4.port().into());
        self.text.extend_from_slice(quote);
    }

    /// Adds a value that contains neither spaces nor quotes, such as an address.
    pub(crate) fn display(&mut self, name: &str, value: &dyn Display) {
        self.name(name);
        match self.format {
            Format::Text => self.push(format_args!("{value}")),
            Format::Json => self.json(&format_args!("{value}")),
        }
    }

    /// Ends the line, and passes it on.
    pub(super) fn end(mut self, pass: impl FnOnce(&[u8])) {
        if self.format == Format::Json {
            self.text.push(b'}');
        }
        self.text.push(b'\n');
        pass(&self.text);
        if self.text.capacity() <= KEEP_BYTES {
            MEMORY.set(self.text);
        }
    }

    fn name(&mut self, name: &str) {
        match self.format {
            Format::Text => {
                self.text.push(b' ');
                self.text.extend_from_slice(name.as_bytes());
                self.text.push(b'=');
            }
            Format::Json => {
                self.text.push(b',');
                self.quoted(name);
                self.text.push(b':');
            }
        }
    }

    fn quoted(&mut self, text: &str) {
        // Most texts need no escape in either format.
        if text
            .bytes()
            .all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\'))
        {
            self.text.push(b'"');
            self.text.extend_from_slice(text.as_bytes());
            self.text.push(b'"');
            return;
        }
        match self.format {
            Format::Text => self.push(format_args!("{text:?}")),
            Format::Json => self.json(text),
        }
    }

    fn json(&mut self, value: &(impl Serialize + ?Sized)) {
        // Writing into memory does not fail.
        let _ = value.serialize(&mut Serializer::new(&mut self.text));
    }

    fn push(&mut self, text: fmt::Arguments<'_>) {
        // Writing into memory does not fail.
        let _ = io::Write::write_fmt(&mut self.text, text);
    }
}

/// Adds a number. The formatting of the standard library takes several times the instructions, and
/// a record has ten numbers.
fn push_number(text: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    text.extend_from_slice(&digits[start..]);
}

/// Adds the time of now, as [`now`] does. The date and the second of the thread's last line are
/// used again within the same second.
fn push_time(text: &mut Vec<u8>) {
    const SECONDS_BYTES: usize = "1970-01-01T00:00:00".len();
    thread_local! {
        static LAST: Cell<(u64, [u8; SECONDS_BYTES])> = const { Cell::new((u64::MAX, [0; SECONDS_BYTES])) };
    }
    let now = clock::dated(SystemTime::now());
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (mut second, mut digits) = LAST.get();
    if second != since.as_secs() {
        second = since.as_secs();
        digits.copy_from_slice(&clock::rfc3339_seconds(now).to_string().as_bytes()[..SECONDS_BYTES]);
        LAST.set((second, digits));
    }
    text.extend_from_slice(&digits);
    let millis = since.subsec_millis();
    let fraction = [b'.', digit(millis / 100), digit(millis / 10), digit(millis), b'Z'];
    text.extend_from_slice(&fraction);
}

/// Returns the last digit of a number.
fn digit(number: u32) -> u8 {
    b'0' + (number % 10) as u8
}

/// The time in UTC, with milliseconds.
fn now() -> humantime::Rfc3339Timestamp {
    clock::rfc3339_millis(SystemTime::now())
}

/// Writes the time of a line of the log.
pub(super) struct Clock;

impl FormatTime for Clock {
    fn format_time(&self, w: &mut Writer<'_>) -> fmt::Result {
        write!(w, "{}", now())
    }
}

/// Writes the lines of the log, apart from records.
pub(super) enum Events {
    Text(TextEvents<Full, Clock>),
    Json,
}

impl<S, N> FormatEvent<S, N> for Events
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => text.format_event(context, writer, event),
            Self::Json => {
                let mut line = Line::new(Format::Json);
                line.word("level", event.metadata().level().as_str());
                event.record(&mut line);
                let mut written = Ok(());
                line.end(|line| written = writer.write_str(&String::from_utf8_lossy(line)));
                written
            }
        }
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.display(field.name(), &format_args!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field.name(), value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.number(field.name(), value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.name(field.name());
        self.json(&value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(line: Line) -> String {
        let mut text = String::new();
        line.end(|line| text = String::from_utf8(line.to_vec()).unwrap());
        text
    }

    fn filled(format: Format) -> String {
        let mut line = Line::of_log(format, Level::WARN, "session", false);
        line.text("user", "a \"b\"\n\u{7f}ü");
        line.address("client", &"[2001:db8::1]:80".parse().unwrap());
        line.address("target", &"192.0.2.10:65535".parse().unwrap());
        line.word("end", "idle");
        line.number("bytes_up", u64::MAX);
        line.number("bytes_down", 0_u64);
        ended(line)
    }

    #[test]
    fn a_line_of_text_has_the_look_of_the_other_lines_of_the_log() {
        let line = filled(Format::Text);
        let (time, rest) = line.split_once(' ').unwrap();
        assert!(humantime::parse_rfc3339(time).is_ok() && time.len() == 24, "{time}");
        let expected = concat!(
            r#" WARN session user="a \"b\"\n\u{7f}ü" client=[2001:db8::1]:80 target=192.0.2.10:65535"#,
            " end=idle bytes_up=18446744073709551615 bytes_down=0\n"
        );
        assert_eq!(rest, expected);
    }

    #[test]
    fn the_time_of_a_line_is_that_of_the_clock() {
        // The second may change between two calls, but not in each of three pairs of calls.
        let is_alike = (0..3).any(|_| {
            let mut text = Vec::new();
            let before = now().to_string();
            push_time(&mut text);
            let times = [before.as_bytes(), &text, &now().to_string().into_bytes()].map(<[u8]>::to_vec);
            assert!(times.is_sorted(), "{times:?}");
            times[0].len() == times[1].len() && times[0][..20] == times[1][..20]
        });
        assert!(is_alike);
    }

    #[test]
    fn a_line_of_json_is_one_object_that_reads_back() {
        let line = filled(Format::Json);
        assert_eq!(line.matches('\n').count(), 1);
        let object: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert!(humantime::parse_rfc3339(object["time"].as_str().unwrap()).is_ok());
        assert_eq!(object["level"], "WARN");
        assert_eq!(object["message"], "session");
        assert_eq!(object["user"], "a \"b\"\n\u{7f}ü");
        assert_eq!(object["client"], "[2001:db8::1]:80");
        assert_eq!(object["target"], "192.0.2.10:65535");
        assert_eq!(object["end"], "idle");
        assert_eq!(object["bytes_up"], u64::MAX);
        assert_eq!(object["bytes_down"], 0);
    }
}
