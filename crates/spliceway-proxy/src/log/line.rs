//! One line of a log, as text or as a JSON object.

use std::cell::RefCell;
use std::fmt::{self, Debug, Display};
use std::io;
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
    pub(crate) fn new(format: Format) -> Self {
        let mut line = Self::empty(format);
        match format {
            Format::Text => line.push(format_args!("{}", now())),
            Format::Json => line.push(format_args!("{{\"time\":\"{}\"", now())),
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
            Format::Text => line.push(format_args!(" {level:>5} {message}")),
            Format::Json => {
                line.display("level", &level);
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
        self.push(format_args!("{}", number.into()));
    }

    /// Adds a text that may contain anything. It is in quotes and escaped.
    pub(crate) fn text(&mut self, name: &str, text: &str) {
        self.name(name);
        match self.format {
            Format::Text => self.push(format_args!("{text:?}")),
            Format::Json => self.json(text),
        }
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
            Format::Text => self.push(format_args!(" {name}=")),
            Format::Json => {
                self.text.push(b',');
                self.json(name);
                self.text.push(b':');
            }
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
                line.display("level", event.metadata().level());
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
        line.display("client", &"[2001:db8::1]:80");
        line.number("bytes_up", u64::MAX);
        ended(line)
    }

    #[test]
    fn a_line_of_text_has_the_look_of_the_other_lines_of_the_log() {
        let line = filled(Format::Text);
        let (time, rest) = line.split_once(' ').unwrap();
        assert!(humantime::parse_rfc3339(time).is_ok() && time.len() == 24, "{time}");
        let expected = r#" WARN session user="a \"b\"\n\u{7f}ü" client=[2001:db8::1]:80 bytes_up=18446744073709551615"#;
        assert_eq!(rest, format!("{expected}\n"));
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
        assert_eq!(object["bytes_up"], u64::MAX);
    }
}
