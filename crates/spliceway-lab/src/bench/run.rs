//! One run of one contender, and all runs of a measurement.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spliceway_load::{Done, Generator, Offer, schedule};

use super::conditions::{self, Conditions};
use super::measurement::Measurement;
use super::relay::{Relay, RelayKind};
use super::tls::Load;

/// How long the load waits for messages that are late at the end of a run.
const GRACE: Duration = Duration::from_millis(200);
/// A relay elsewhere has opened all connections of a run if it opens none for this long.
const QUIET: Duration = Duration::from_millis(20);
/// A relay elsewhere that opens connections for longer than this serves others too.
const PATIENCE: Duration = Duration::from_secs(2);

/// The name of the way without a relay.
pub(super) const DIRECT: &str = "direct";

/// A way from the client to the server.
pub(super) struct Contender {
    pub(super) name: String,
    way: Way,
}

enum Way {
    Direct,
    Own(RelayKind),
    /// A relay that runs elsewhere, and its address as it was typed.
    Foreign(SocketAddr, String),
}

impl Contender {
    pub(super) fn direct() -> Self {
        let (name, way) = (DIRECT.to_owned(), Way::Direct);
        Self { name, way }
    }

    pub(super) fn own(kind: RelayKind) -> Self {
        let (name, way) = (kind.name().to_owned(), Way::Own(kind));
        Self { name, way }
    }

    pub(super) fn foreign(name: &str, typed: &str) -> io::Result<Self> {
        let failed = |why: String| io::Error::other(format!("--against {typed}: {why}"));
        let address = typed
            .to_socket_addrs()
            .map_err(|error| failed(error.to_string()))?
            .next();
        let address = address.ok_or_else(|| failed("the name has no address".to_owned()))?;
        Ok(Self {
            name: name.to_owned(),
            way: Way::Foreign(address, typed.to_owned()),
        })
    }

    /// Says what the contender is.
    pub(super) fn description(&self) -> String {
        match &self.way {
            Way::Direct => "no relay".to_owned(),
            Way::Own(kind) => kind.description(),
            Way::Foreign(_, typed) => format!("the relay at {typed}"),
        }
    }

    fn again(&self) -> Self {
        let way = match &self.way {
            Way::Direct => Way::Direct,
            Way::Own(kind) => Way::Own(*kind),
            Way::Foreign(address, typed) => Way::Foreign(*address, typed.clone()),
        };
        Self {
            name: format!("{} again", self.name),
            way,
        }
    }
}

/// The contenders. The last one is the A/A control: the subject once more. The subject is before
/// it, and is compared with the reference.
pub(super) struct Field {
    pub(super) contenders: Vec<Contender>,
    pub(super) reference: usize,
    pub(super) conditions: Conditions,
    /// Whether the relays terminate TLS.
    pub(super) is_tls: bool,
    /// The server's listener, if relays elsewhere must find it.
    listener: Option<TcpListener>,
}

impl Field {
    pub(super) fn new(
        mut contenders: Vec<Contender>,
        reference: usize,
        listen: Option<SocketAddr>,
    ) -> io::Result<Self> {
        let conditions = Conditions::apply()?;
        contenders.extend(contenders.last().map(Contender::again));
        let listener = listen.map(|address| {
            conditions::listener(address, conditions.chosen)
                .map_err(|error| io::Error::new(error.kind(), format!("--listen {address}: {error}")))
        });
        let field = Self {
            contenders,
            reference,
            listener: listener.transpose()?,
            conditions,
            is_tls: false,
        };
        field.try_relays()?;
        Ok(field)
    }

    /// Returns relays that terminate TLS. The first one is the reference.
    pub(super) fn of_tls() -> io::Result<Self> {
        let contenders = [RelayKind::Rustls, RelayKind::KtlsRw, RelayKind::Ktls].map(Contender::own);
        let field = Self::new(contenders.into(), 0, None)?;
        Ok(Self { is_tls: true, ..field })
    }

    pub(super) fn subject(&self) -> usize {
        self.contenders.len() - 2
    }

    pub(super) fn control(&self) -> usize {
        self.contenders.len() - 1
    }

    /// Checks before the measurement that each relay elsewhere connects to the server.
    fn try_relays(&self) -> io::Result<()> {
        for contender in &self.contenders {
            if let (Way::Foreign(address, typed), Some(listener)) = (&contender.way, &self.listener) {
                let mut offer = super::measurement::all().remove(0).offer;
                offer.congestion_control = self.conditions.chosen;
                Generator::connect(offer, listener.try_clone()?, *address)
                    .map_err(|error| io::Error::new(error.kind(), format!("--against {typed}: {error}")))?;
            }
        }
        Ok(())
    }

    fn run(&self, contender: &Contender, measurement: &Measurement, round: u32, time: Duration) -> io::Result<Run> {
        let listener = match &self.listener {
            Some(shared) => {
                drain(shared)?;
                shared.try_clone()?
            }
            None => self.conditions.listener()?,
        };
        let server = on_this_machine(listener.local_addr()?);
        let mut relay = match contender.way {
            Way::Own(kind) => Some(Relay::start(kind, server, &self.conditions)?),
            _ => None,
        };
        let address = match (&contender.way, &relay) {
            (Way::Foreign(address, _), _) => *address,
            (_, Some(relay)) => relay.address,
            (_, None) => server,
        };
        let window = measurement.window(time);
        let certificate = relay.as_mut().and_then(|relay| relay.certificate.take());
        let mut looks = Vec::with_capacity(2);
        let look = |_| {
            let cpu = relay.as_mut().map(Relay::cpu_time).transpose()?;
            looks.push((Instant::now(), cpu));
            Ok(())
        };
        let done = match certificate {
            Some(certificate) => {
                let load = Load::new(&certificate, address, listener, &self.conditions)?;
                load.run(measurement.kind, window, look)?
            }
            None => {
                let offer = Offer {
                    congestion_control: self.conditions.chosen,
                    ..measurement.offer
                };
                let schedule = schedule(&offer, 1 + u64::from(round), window.1, |_| 1.0);
                Generator::connect(offer, listener, address)?.run(&schedule, window, GRACE, look)?
            }
        };
        let [(began, before), (ended, after)] = looks[..] else {
            return Err(io::Error::other("the run ended early"));
        };
        Ok(Run {
            wall: (ended - began).as_secs_f64(),
            cpu: after
                .zip(before)
                .map(|(after, before)| after.saturating_sub(before).as_secs_f64()),
            done,
        })
    }
}

/// Replaces "every address" by loopback.
fn on_this_machine(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

/// Closes connections that a relay elsewhere has opened for an earlier run.
fn drain(listener: &TcpListener) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    let quiet = Timespec::try_from(QUIET).map_err(io::Error::other)?;
    while poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&quiet))? > 0 {
        drop(listener.accept());
        if Instant::now() > until {
            return Err(io::Error::other("others connect to --listen during the measurement"));
        }
    }
    Ok(())
}

/// The outcome of one run.
pub(super) struct Run {
    /// Seconds of the measured window.
    pub(super) wall: f64,
    /// Seconds of CPU time of the relay. `None` if the relay is not of this program.
    pub(super) cpu: Option<f64>,
    pub(super) done: Done,
}

/// All runs of a measurement.
pub(super) struct Measured {
    pub(super) measurement: Measurement,
    /// By contender, then by round.
    pub(super) runs: Vec<Vec<Run>>,
    /// The first failure of each contender. It is not run again.
    pub(super) failures: Vec<Option<String>>,
}

impl Measured {
    pub(super) fn new(measurement: Measurement, field: &Field) -> Self {
        Self {
            measurement,
            runs: field.contenders.iter().map(|_| Vec::new()).collect(),
            failures: vec![None; field.contenders.len()],
        }
    }

    pub(super) fn run(&mut self, field: &Field, contender: usize, round: u32, time: Duration) {
        if self.failures[contender].is_some() {
            return;
        }
        match field.run(&field.contenders[contender], &self.measurement, round, time) {
            Ok(run) => self.runs[contender].push(run),
            Err(error) => self.failures[contender] = Some(error.to_string()),
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.failures.iter().all(Option::is_none)
    }

    /// Returns the fraction of the due messages that a contender completed.
    pub(super) fn completed(&self, contender: usize) -> f64 {
        let sum = |of: fn(&Done) -> u64| self.runs[contender].iter().map(|run| of(&run.done)).sum::<u64>() as f64;
        sum(|done| done.completed) / sum(|done| done.offered).max(1.0)
    }
}
