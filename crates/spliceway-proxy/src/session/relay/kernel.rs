//! Lets the kernel take over the TLS of a session that moves many bytes.
//!
//! ```text
//!   relay in user space ── many bytes: request ──▶ an end stops between two records
//!          ▲                                                 │
//!          │ refused                                         ▼
//!          └──────────────── resumes ◀── switch ◀── relay suspended
//!                               └──▶ relay that splices
//! ```

use std::io;
use std::sync::Arc;

use spliceway::RelayStats;

use crate::net::kernel_support::Switch;
use crate::net::kernel_tls::{NotSwitched, switch};
use crate::net::records::SwitchRequest;
use crate::net::stream::Stream;
use crate::session::guard::Guard;

/// The requests to the ends of a session to stop between two records.
#[derive(Debug)]
pub(super) struct Switching {
    requests: Vec<Arc<SwitchRequest>>,
    /// The bytes of one direction after which the ends get the requests.
    after_bytes: u64,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Few bytes have passed.
    Early,
    /// The ends have the requests.
    Requested,
    /// The session stays as it is.
    GivenUp,
}

impl Switching {
    /// Returns `None` if there is no end that could be in the kernel.
    pub(super) fn of(client: &Stream, upstream: &Stream, after_bytes: u64) -> Option<Self> {
        let of_end = |stream: &Stream| match stream {
            Stream::Tls(stream) => stream.switch_request().cloned(),
            Stream::Tcp(_) | Stream::Unix(_) | Stream::Kernel(_) => None,
        };
        let requests: Vec<_> = [client, upstream].into_iter().filter_map(of_end).collect();
        (!requests.is_empty()).then_some(Self {
            requests,
            after_bytes,
            stage: Stage::Early,
        })
    }

    /// Returns whether an end has stopped. Call this after each poll of the relay, because nothing
    /// else wakes an end that has stopped.
    pub(super) fn has_stopped(&mut self, stats: &RelayStats) -> bool {
        if self.stage == Stage::Early {
            let passed = stats.snapshot();
            if passed.a_to_b.bytes.max(passed.b_to_a.bytes) < self.after_bytes {
                return false;
            }
            self.begin();
        }
        // Each end is asked.
        let stopped = self.requests.iter().filter(|request| request.take_stop());
        stopped.count() > 0
    }

    /// Asks the ends to stop. Returns whether they still may.
    pub(super) fn begin(&mut self) -> bool {
        if self.stage == Stage::Early {
            self.stage = Stage::Requested;
            self.requests.iter().for_each(|request| request.make());
        }
        self.stage == Stage::Requested
    }

    /// Lets the ends continue. The session never switches.
    pub(super) fn give_up(&mut self) {
        self.stage = Stage::GivenUp;
        self.requests.iter().for_each(|request| request.withdraw());
    }
}

/// The end of a session whose keys are lost: rustls has given them up, and the kernel does not have
/// them.
#[derive(Debug)]
pub(super) struct KeysLost {
    pub(super) is_client: bool,
    pub(super) streams: [Stream; 2],
    pub(super) error: io::Error,
}

/// Gives the ends to the kernel that it can take over now. If it can take none, no further try
/// follows.
pub(super) fn switch_ends(client: Stream, upstream: Stream, guard: &Guard) -> Result<(Stream, Stream), KeysLost> {
    let lost = |is_client, streams, error| {
        count(guard, Switch::Failed);
        KeysLost {
            is_client,
            streams,
            error,
        }
    };
    let (mut client, of_client) = match switch_end(client) {
        Ok(switched) => switched,
        Err((client, error)) => return Err(lost(true, [client, upstream], error)),
    };
    let (mut upstream, of_upstream) = match switch_end(upstream) {
        Ok(switched) => switched,
        Err((upstream, error)) => return Err(lost(false, [client, upstream], error)),
    };
    for result in [of_client, of_upstream].into_iter().flatten() {
        count(guard, result);
    }
    if of_client.or(of_upstream).is_none() {
        stay(&mut client);
        stay(&mut upstream);
    }
    guard.session().facts().in_kernel = [&client, &upstream].map(|end| matches!(end, Stream::Kernel(_)));
    Ok((client, upstream))
}

/// Whether another process can continue a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CanMove {
    /// The TLS of an end stays in this process.
    Never,
    /// When the kernel has the TLS of both ends.
    AfterSwitch,
    Now,
}

impl CanMove {
    pub(super) fn of(client: &Stream, upstream: &Stream) -> Self {
        let of_end = |stream: &Stream| match stream {
            Stream::Tls(stream) if stream.switch_request().is_some() => Self::AfterSwitch,
            Stream::Tls(_) => Self::Never,
            Stream::Tcp(_) | Stream::Unix(_) | Stream::Kernel(_) => Self::Now,
        };
        of_end(client).min(of_end(upstream))
    }
}

/// Returns the stream, and what has become of its TLS. `None` means that it cannot switch now.
fn switch_end(stream: Stream) -> Result<(Stream, Option<Switch>), (Stream, io::Error)> {
    let tls = match stream {
        Stream::Tls(tls) if tls.switch_request().is_some() => tls,
        stream => return Ok((stream, None)),
    };
    match switch(tls) {
        Ok(stream) => Ok((Stream::Kernel(stream), Some(Switch::Done))),
        Err(NotSwitched::NotNow(tls)) => Ok((Stream::Tls(tls), None)),
        Err(NotSwitched::Refused(mut tls, error)) => {
            tls.stay();
            // The peer has sent its FIN already.
            let has_ended = error.kind() == io::ErrorKind::NotConnected;
            if !has_ended {
                tracing::debug!("a session stays in user space: the kernel refuses its socket: {error}");
            }
            Ok((Stream::Tls(tls), (!has_ended).then_some(Switch::Refused)))
        }
        Err(NotSwitched::Failed(socket, error)) => Err((socket, error)),
    }
}

/// Leaves an end in user space.
pub(super) fn stay(stream: &mut Stream) {
    if let Stream::Tls(tls) = stream {
        tls.stay();
    }
}

/// Counts the ends that should be in the kernel, and cannot.
pub(super) fn count_others(client: &Stream, upstream: &Stream, guard: &Guard) {
    for stream in [client, upstream] {
        if let Stream::Tls(tls) = stream
            && let Some(why) = tls.why_it_stays()
        {
            count(guard, why);
        }
    }
}

fn count(guard: &Guard, result: Switch) {
    guard.service().process.metrics.switched(result);
}
