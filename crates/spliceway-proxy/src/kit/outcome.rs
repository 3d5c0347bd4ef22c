//! How a session ended.

use std::fmt;
use std::io;

use super::errno;
use super::refusal::Refusal;
use super::tls_error::{self, TlsError};
use super::tls_failure::TlsFailure;
use prometheus_client::encoding::{EncodeLabelValue, LabelValueEncoder};
use rustix::io::Errno;
use rustls::Error;
use spliceway::{EndReason, Peer, RelayError, RelaySummary};
use spliceway_protocol::client;

/// How a session ended, and the error if there was one.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) end: SessionEnd,
    pub(crate) cause: Option<Box<str>>,
}

/// The reason why a session ended, which is `end` in metrics and records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionEnd {
    /// Both sides sent EOF, the client first, or the client left before it made a request.
    ClientEof,
    /// Both sides sent EOF, the upstream first.
    UpstreamEof,
    /// The answer to an HTTP request is complete. The client's connection may carry another
    /// request.
    Answered,
    /// The target's answer to an HTTP request is not valid, so the client got another one.
    BadAnswer,
    Idle,
    HalfCloseTimeout,
    /// The session has lasted as long as the settings allow.
    MaxSession,
    /// The client's socket failed.
    ResetByClient,
    /// The upstream's socket failed.
    ResetByUpstream,
    /// The target was not reached.
    ConnectFailed(ConnectFailure),
    /// The proxy refused the client.
    Denied(Refusal),
    /// The session was cut because the program is stopping.
    Drained,
    /// An operator closed the session through the admin socket.
    ClosedByAdmin,
    /// The user has used up a quota.
    Quota,
}

/// Whose fault it is that a client did not get what it asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureOf {
    /// The service or a target failed.
    Service,
    /// The client was refused for what it is, or for what it asked for.
    Client,
}

/// Why a target was not reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectFailure {
    /// A system call failed. The errno is one that [`errno::known`] returns.
    System(Option<Errno>),
    /// The name has no address, or its lookup failed.
    Unresolved,
    TooManyLookups,
    /// The target is connected, and TLS with it fails.
    Tls(TlsFailure),
    UpstreamUnreachable,
    /// TLS with the upstream proxy failed.
    UpstreamTls,
    /// The upstream proxy did not answer before the timeout.
    UpstreamSilent,
    /// The upstream proxy closed the connection without an answer.
    UpstreamClosed,
    UpstreamIo,
    /// The handshake with the upstream proxy failed.
    Upstream(client::Error),
}

impl ConnectFailure {
    pub(crate) const TIMED_OUT: Self = Self::System(Some(Errno::TIMEDOUT));

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::System(errno) => errno::name(errno),
            Self::Unresolved => "unresolved",
            Self::TooManyLookups => "too_many_lookups",
            Self::Tls(failure) => failure.as_str(),
            Self::UpstreamUnreachable => "upstream_unreachable",
            Self::UpstreamTls => "upstream_tls",
            Self::UpstreamSilent => "upstream_silent",
            Self::UpstreamClosed => "upstream_closed",
            Self::UpstreamIo => "upstream_io",
            Self::Upstream(error) => error.as_str(),
        }
    }
}

impl From<&io::Error> for ConnectFailure {
    fn from(error: &io::Error) -> Self {
        Self::System(errno::known(error))
    }
}

impl Outcome {
    pub(crate) fn because(end: SessionEnd, cause: &dyn fmt::Display) -> Self {
        Self {
            end,
            cause: Some(cause.to_string().into()),
        }
    }

    /// Returns the end of a session whose upstream has failed before its first byte.
    pub(crate) fn of_upstream(error: &io::Error) -> Self {
        Self::refused(error).unwrap_or_else(|| Self::because(SessionEnd::ResetByUpstream, error))
    }

    /// Returns the end of a session whose upstream has sent an alert before its first byte. In TLS
    /// 1.3, a server refuses the certificate of its client after the handshake.
    fn refused(error: &io::Error) -> Option<Self> {
        let tls = TlsError::of(error).filter(|tls| matches!(tls.error, Error::AlertReceived(_)))?;
        let failure = match tls.peer {
            tls_error::Peer::Target => ConnectFailure::Tls(TlsFailure::Alert),
            tls_error::Peer::Proxy => ConnectFailure::UpstreamTls,
            tls_error::Peer::Client => return None,
        };
        Some(Self::because(SessionEnd::ConnectFailed(failure), error))
    }
}

impl From<SessionEnd> for Outcome {
    fn from(end: SessionEnd) -> Self {
        Self { end, cause: None }
    }
}

impl SessionEnd {
    /// Returns whose fault it is that the client did not get what it asked for. `None` means that
    /// it was served.
    pub(crate) fn failure(self) -> Option<FailureOf> {
        match self {
            Self::BadAnswer
            | Self::ConnectFailed(_)
            | Self::Denied(
                Refusal::NoBackend
                | Refusal::QueueFull
                | Refusal::QueueTimeout
                | Refusal::Sessions
                | Refusal::TlsNoCertificate,
            ) => Some(FailureOf::Service),
            Self::Denied(_) => Some(FailureOf::Client),
            _ => None,
        }
    }
}

impl fmt::Display for SessionEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientEof => f.write_str("client_eof"),
            Self::UpstreamEof => f.write_str("upstream_eof"),
            Self::Answered => f.write_str("answered"),
            Self::BadAnswer => f.write_str("bad_answer"),
            Self::Idle => f.write_str("idle"),
            Self::HalfCloseTimeout => f.write_str("half_close_timeout"),
            Self::MaxSession => f.write_str("max_session"),
            Self::ResetByClient => f.write_str("reset_by_client"),
            Self::ResetByUpstream => f.write_str("reset_by_upstream"),
            Self::ConnectFailed(failure) => write!(f, "connect_failed:{}", failure.as_str()),
            Self::Denied(reason) => write!(f, "denied:{}", reason.as_str()),
            Self::Drained => f.write_str("drained"),
            Self::ClosedByAdmin => f.write_str("closed_by_admin"),
            Self::Quota => f.write_str("quota"),
        }
    }
}

impl EncodeLabelValue for SessionEnd {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        use fmt::Write;
        write!(encoder, "{self}")
    }
}

/// In the relay, the client is `a` and the upstream is `b`.
impl From<Result<RelaySummary, RelayError>> for Outcome {
    fn from(ended: Result<RelaySummary, RelayError>) -> Self {
        let summary = match ended {
            Ok(summary) => summary,
            Err(error) => {
                let end = match error.peer() {
                    Peer::A => SessionEnd::ResetByClient,
                    Peer::B => SessionEnd::ResetByUpstream,
                };
                if error.summary.b_to_a.bytes == 0
                    && let Some(refused) = Self::refused(&error.source)
                {
                    return refused;
                }
                return Self::because(end, &format_args!("{} failed: {}", error.operation, error.source));
            }
        };
        let end = match (summary.end, summary.first_eof) {
            (EndReason::IdleTimeout, _) => SessionEnd::Idle,
            (EndReason::HalfCloseTimeout, _) => SessionEnd::HalfCloseTimeout,
            (EndReason::Cancelled, _) => SessionEnd::Drained,
            (_, Some(Peer::B)) => SessionEnd::UpstreamEof,
            (_, Some(Peer::A) | None) => SessionEnd::ClientEof,
        };
        end.into()
    }
}
