//! One row of the table: a call, how and when it fails, and the expected behaviour of a relay.

use std::fmt::{self, Display};
use std::io::ErrorKind;

use rustix::io::Errno;
use spliceway::{Engine, Operation, Reason};
use spliceway_faults::{Call, Fault, Rule, When};

use super::scenario::{Family, Nudge, Plan, Run, run};

pub(super) struct Row {
    call: Call,
    fault: Fault,
    when: When,
    /// Another fault, without which this one could not occur.
    also: Option<Rule>,
    nudge: Nudge,
    family: Family,
    expected: Expected,
}

/// The behaviour of a relay that meets a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// The relay tries again, or uses another call, and the peers notice nothing.
    Unnoticed,
    /// The relay continues to splice, with a smaller pipe.
    SmallerPipe,
    /// The relay copies and gives the reason. After 1 MiB it splices again, if the fault is over.
    CopiesForNow(Reason),
    /// The relay copies to its end and gives the reason.
    CopiesForGood(Reason),
    /// All relays of the process copy, until one attempt in a fixed number succeeds.
    CopiesProcessWide(Reason),
    /// The relay fails and names the operation. The delivered bytes are a prefix of the sent bytes,
    /// and they are counted.
    Breaks(Operation, Failure),
    /// The caller demanded splicing, so the relay fails and gives the reason.
    Refuses(Operation, Reason),
}

/// The error with which a relay fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The error of the call.
    AsInjected,
    OfKind(ErrorKind),
}

impl Row {
    pub(super) fn new(call: Call, fault: Fault, when: When, expected: Expected) -> Self {
        Self {
            call,
            fault,
            when,
            also: None,
            nudge: Nudge::None,
            family: Family::Tcp,
            expected,
        }
    }

    pub(super) fn also(mut self, rule: Rule) -> Self {
        self.also = Some(rule);
        self
    }

    /// Runs the row between Unix sockets, where a short receive proves nothing.
    pub(super) fn unix(mut self) -> Self {
        self.family = Family::Unix;
        self
    }

    pub(super) fn nudged(mut self, nudge: Nudge) -> Self {
        self.nudge = nudge;
        self
    }

    /// Runs the row with the relay's ends in both orders. Returns the row as the table shows it.
    pub(super) fn try_out(&self, number: u64) -> String {
        for swapped in [false, true] {
            self.try_once(swapped, 2 * number + u64::from(swapped));
        }
        let again = match self.expected {
            Expected::Breaks(..) | Expected::Refuses(..) => "–",
            Expected::CopiesProcessWide(_) => "yes, by a later relay",
            expected if expected.splices_on() && self.when != When::Always => "yes",
            _ => "no",
        };
        let lost = match self.expected {
            Expected::Breaks(..) | Expected::Refuses(..) => "in flight only",
            _ => "0",
        };
        let fallback = self.fallback().map_or("none".to_owned(), |reason| reason.to_string());
        format!(
            "| {} | {} | {} | {lost} | {fallback} | {again} | {} |",
            Calls(self),
            Name(self.fault),
            Moment(self.when),
            self.expected,
        )
    }

    fn try_once(&self, swapped: bool, stream: u64) {
        let mut rules = vec![Rule::new(self.call, self.when, self.fault)];
        rules.extend(self.also);
        rules.extend([Call::SpliceIn, Call::SpliceOut].map(Rule::watch));
        let (last, persists) = match self.when {
            When::Nth(last) | When::Between(_, last) => (last, false),
            When::Always | When::Never => (2, true),
        };
        let (call, splices_on) = (self.call, self.expected.splices_on() && !persists);
        let run = run(
            &Plan {
                rules,
                family: self.family,
                engine: self.expected.engine(),
                nudge: self.nudge,
                enough: Box::new(move |trouble| {
                    let faults = &trouble.faults;
                    let tried = faults.seen(call).calls >= last || (persists && !splices_on);
                    tried && (!splices_on || faults.seen(Call::SpliceOut).passed_since > 0)
                }),
                ..Plan::fair(swapped)
            },
            stream,
        );
        let context = format!(
            "{self}, swapped {swapped}: {:?}, {:?}, {:?}",
            run.outcome, run.trouble, run.pool
        );
        assert!(run.trouble.faults.seen(self.call).injected > 0, "{context}");
        assert_eq!(run.pool.lent, 0, "{context}");
        assert_eq!(
            (run.forth.fallback, run.back.fallback),
            (self.fallback(), None),
            "{context}"
        );
        match self.expected {
            Expected::Breaks(operation, failure) => self.check_broken(&run, operation, failure, &context),
            Expected::Refuses(operation, _) => {
                self.check_broken(&run, operation, Failure::OfKind(ErrorKind::Unsupported), &context);
            }
            _ => run.check_complete(&context),
        }
        let passed = |call| run.trouble.faults.seen(call).passed_since;
        if splices_on {
            assert!(passed(Call::SpliceOut) > 0 && run.forth.spliced > 0, "{context}");
        } else if !persists {
            // After the fault, no splice may succeed, not even one that probes for bytes.
            assert_eq!((passed(Call::SpliceIn), passed(Call::SpliceOut)), (0, 0), "{context}");
        }
        if self.expected.is_process_wide() {
            super::matrix::await_probe();
        }
    }

    /// Returns the reason that must be counted.
    fn fallback(&self) -> Option<Reason> {
        match self.expected {
            Expected::CopiesForNow(reason)
            | Expected::CopiesForGood(reason)
            | Expected::CopiesProcessWide(reason)
            | Expected::Refuses(_, reason) => Some(reason),
            Expected::Breaks(..) if self.also.is_some() => Some(Reason::InvalidArgument),
            Expected::Breaks(..) | Expected::Unnoticed | Expected::SmallerPipe => None,
        }
    }

    fn check_broken(&self, run: &Run, operation: Operation, failure: Failure, context: &str) {
        let error = run.outcome.as_ref().expect_err(context);
        assert_eq!(
            (error.operation, error.direction),
            (operation, run.direction),
            "{context}"
        );
        match failure {
            Failure::AsInjected => assert_eq!(
                error.source.raw_os_error().map(Fault::Errno),
                Some(self.fault),
                "{context}"
            ),
            Failure::OfKind(kind) => assert_eq!(error.source.kind(), kind, "{context}"),
        }
        assert_eq!(run.forth.bytes, run.got, "what is counted is what far got; {context}");
        assert!(run.got <= run.sent, "{context}");
        assert!(!run.forth.eof && !run.back.eof, "{context}");
    }
}

impl Expected {
    fn splices_on(self) -> bool {
        matches!(self, Self::Unnoticed | Self::SmallerPipe | Self::CopiesForNow(_))
    }

    fn engine(self) -> Engine {
        match self {
            Self::Refuses(..) => Engine::Splice,
            _ => Engine::Auto,
        }
    }

    fn is_process_wide(self) -> bool {
        matches!(self, Self::CopiesProcessWide(_))
    }
}

impl Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}, {}: {}",
            Calls(self),
            Name(self.fault),
            Moment(self.when),
            self.expected
        )
    }
}

impl Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unnoticed => write!(f, "no visible effect"),
            Self::SmallerPipe => write!(f, "continues with a smaller pipe"),
            Self::CopiesForNow(_) => write!(f, "copies, and tries to splice again after 1 MiB"),
            Self::CopiesForGood(_) => write!(f, "the direction copies to its end"),
            Self::CopiesProcessWide(_) => write!(f, "the process copies; one attempt in 64 is a probe"),
            Self::Refuses(operation, _) => write!(f, "must splice, so it breaks: {operation} failed"),
            Self::Breaks(operation, Failure::AsInjected) => write!(f, "breaks: {operation} failed with this errno"),
            Self::Breaks(operation, Failure::OfKind(kind)) => write!(f, "breaks: {operation} failed with {kind}"),
        }
    }
}

/// Displays the call, and the earlier call if that must fail too.
struct Calls<'a>(&'a Row);

impl Display for Calls<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0.call {
            Call::SpliceIn => "splice, socket to pipe",
            Call::SpliceOut => "splice, pipe to socket",
            Call::Pipe => "pipe2",
            Call::SetPipeSize => "fcntl(F_SETPIPE_SZ)",
            Call::Recv if self.0.family == Family::Unix => "recvfrom, Unix socket",
            Call::Recv => "recvfrom",
            Call::Peek => "recvfrom(MSG_PEEK)",
            Call::Send => "sendto",
            Call::ReadPipe => "read, from a pipe that the sink refused",
            Call::BytesToRead => "ioctl FIONREAD",
            Call::Accept => "accept4",
            Call::Poll => "ppoll, readiness probe",
        };
        f.write_str(name)
    }
}

struct Name(Fault);

impl Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errno = match self.0 {
            Fault::Errno(errno) => Errno::from_raw_os_error(errno),
            Fault::Returns(value) => return write!(f, "returns {value}"),
        };
        let name = match errno {
            Errno::PERM => "EPERM",
            Errno::ACCESS => "EACCES",
            Errno::NOSYS => "ENOSYS",
            Errno::INVAL => "EINVAL",
            Errno::BADF => "EBADF",
            Errno::OPNOTSUPP => "EOPNOTSUPP",
            Errno::NOMEM => "ENOMEM",
            Errno::NOBUFS => "ENOBUFS",
            Errno::INTR => "EINTR",
            Errno::AGAIN => "EAGAIN",
            Errno::MFILE => "EMFILE",
            Errno::NFILE => "ENFILE",
            Errno::BUSY => "EBUSY",
            Errno::CONNRESET => "ECONNRESET",
            Errno::PIPE => "EPIPE",
            Errno::TIMEDOUT => "ETIMEDOUT",
            Errno::IO => "EIO",
            other => return write!(f, "{other}"),
        };
        f.write_str(name)
    }
}

struct Moment(When);

impl Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            When::Nth(1) => write!(f, "first"),
            When::Nth(number) => write!(f, "no. {number}"),
            When::Between(first, last) => write!(f, "no. {first} to {last}"),
            When::Always => write!(f, "always"),
            When::Never => write!(f, "never"),
        }
    }
}
