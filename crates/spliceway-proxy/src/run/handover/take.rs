//! The new process: receives listeners, prepares, serves, and then receives sessions.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, SockRef, Type};
use spliceway_operator::text::count;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;

use super::link::{self, Frame, Link};
use super::message::{SessionMessage, ToNew, ToOld, VERSION};
use super::owner::{Answer, Taker};
use super::state::ServiceState;
use super::{LONG_MAX_BYTES, VARIABLE};
use crate::kit::alive::MaybeAlive;
use crate::kit::harmless::reason;
use crate::kit::{created, pid_file};
use crate::log;
use crate::metrics::Metrics;
use crate::monitor::overview::Overview;
use crate::net::adopted::Adopted;
use crate::net::stream::Stream;
use crate::run::drain;
use crate::run::notify::{Manager, Message};
use crate::session::{self, Process, Record, Service, Session, Suspended};
use crate::settings::Given;

/// The socket to the process that has started this one.
pub(in crate::run) struct Successor(StdUnixStream);

/// The old process, and the socket to it.
pub(in crate::run) struct OldProcess {
    link: Link,
    /// The services that were given to it at run time.
    given: Given,
}

/// What the new process postpones until the old one accepts no clients any more. So a new process
/// that is refused, ends or hangs has changed nothing.
struct Commit<'a> {
    process: &'a Process,
    manager: Arc<Manager>,
}

/// A message, with all data of it.
type Received = Frame<ToNew>;

impl Successor {
    /// Returns the socket if another process has started this one to take over. Afterwards, nothing
    /// else of this process can use it.
    ///
    /// # Errors
    /// Returns an error if standard input is not such a socket.
    pub(in crate::run) fn from_stdin() -> Result<Option<Self>, String> {
        if std::env::var_os(VARIABLE).is_none() {
            return Ok(None);
        }
        let wrong = |error: io::Error| {
            format!("{VARIABLE} is set, but standard input is no socket of a running spliceway: {error}")
        };
        Self::adopt().map(Some).map_err(wrong)
    }

    fn adopt() -> io::Result<Self> {
        let socket = io::stdin().as_fd().try_clone_to_owned()?;
        let options = SockRef::from(&socket);
        if options.domain()? != Domain::UNIX || options.r#type()? != Type::STREAM {
            return Err(io::Error::other("it is another kind of socket"));
        }
        let peer = rustix::net::sockopt::socket_peercred(&socket)?;
        if peer.uid != rustix::process::geteuid() || Some(peer.pid) != rustix::process::getppid() {
            return Err(io::Error::other(
                "its other end has another user, is not the parent, or has ended",
            ));
        }
        rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
        Ok(Self(socket.into()))
    }

    /// Says why this process does not take over. Returns whether the old process learns it. It
    /// serves on in any case.
    pub(in crate::run) fn refuse(mut self, why: &impl std::fmt::Display) -> bool {
        let why = reason(&why.to_string());
        link::encode(&ToOld::Refused { why }, &[]).is_ok_and(|frame| self.0.write_all(&frame).is_ok())
    }

    /// Receives the listeners of the old process.
    ///
    /// # Errors
    /// Returns the reason why this process does not take over, and tells it to the old process.
    pub(in crate::run) async fn receive(self, process: &Process) -> io::Result<OldProcess> {
        let mut old = OldProcess {
            link: Link::new(self.0)?,
            given: Given::default(),
        };
        match old.receive_listeners(process).await {
            Ok(()) => Ok(old),
            Err(error) => {
                old.refuse(&error).await;
                Err(error)
            }
        }
    }
}

fn adopt(adopted: &Adopted, group: usize, role: String, address: &str, descriptors: Vec<OwnedFd>) -> io::Result<()> {
    let [socket] = <[OwnedFd; 1]>::try_from(descriptors).map_err(|_| io::Error::other("it did not arrive"))?;
    adopted.add(group, role, address, socket)
}

impl OldProcess {
    async fn receive_listeners(&mut self, process: &Process) -> io::Result<()> {
        loop {
            let Some(Frame {
                message,
                data,
                descriptors,
            }) = self.receive().await?
            else {
                return Err(io::Error::other("the old process has ended"));
            };
            match message {
                ToNew::Hello { version: VERSION } => {}
                ToNew::Hello { version } => {
                    let why = format!("the old process hands over in version {version}, and this one in {VERSION}");
                    return Err(io::Error::other(why));
                }
                ToNew::Listener { role, address, group } => {
                    adopt(&process.adopted, group, role, &address, descriptors)
                        .map_err(|error| io::Error::other(format!("the listener on {address}: {error}")))?;
                }
                ToNew::Given => {
                    self.given = Given::decode(&data)
                        .map_err(|error| io::Error::other(format!("the services given at run time: {error}")))?;
                }
                ToNew::Prepare { last_session } => {
                    process.sessions.continue_after(last_session);
                    return Ok(());
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Returns the services that were given to the old process at run time.
    pub(in crate::run) fn given(&mut self) -> Given {
        std::mem::take(&mut self.given)
    }

    /// Returns the next message. Its data may have several frames.
    async fn receive(&mut self) -> io::Result<Option<Received>> {
        let mut parts = Vec::new();
        while let Some(mut frame) = self.link.receive().await? {
            if !parts.is_empty() {
                parts.append(&mut frame.data);
                frame.data = std::mem::take(&mut parts);
            }
            if frame.data.len() > LONG_MAX_BYTES {
                return Err(io::Error::other("the data of a message is too long"));
            }
            match frame.message {
                ToNew::Part => parts = frame.data,
                _ => return Ok(Some(frame)),
            }
        }
        Ok(None)
    }

    /// Says why this process does not take over.
    pub(in crate::run) async fn refuse(&mut self, why: &impl std::fmt::Display) {
        let why = reason(&why.to_string());
        let refused = ToOld::Refused { why };
        // The old process serves on, whether or not it knows the reason.
        let _ = self.link.send_message(&refused).await;
    }

    /// Waits until the services of this process may start. If the old process has died, this
    /// process is the only one left, and serves.
    ///
    /// # Errors
    /// Returns an error if the messages make no sense. The old process then serves on.
    pub(in crate::run) async fn ready(&mut self, process: &Process) -> io::Result<()> {
        if self.link.send_message(&ToOld::Ready).await.is_err() {
            return Ok(());
        }
        match self.receive().await? {
            Some(Frame {
                message: ToNew::Serve,
                data,
                ..
            }) => continue_metrics(&process.metrics, &data),
            Some(Frame { message, .. }) => return Err(unexpected(&message)),
            None => tracing::warn!("the old process has ended: this one takes over without its sessions"),
        }
        Ok(())
    }

    /// Receives the state of services, sessions and listeners until the old process has ended.
    pub(in crate::run) async fn receive_state(
        mut self,
        alive: MaybeAlive,
        overview: Arc<Overview>,
        manager: Arc<Manager>,
    ) {
        // If this fails, the old process is dead.
        let _ = self.link.send_message(&ToOld::Serving).await;
        let process = &overview.process;
        let (mut taken, mut commit) = (0_u64, Some(Commit { process, manager }));
        let error = loop {
            let Frame {
                message,
                data,
                descriptors,
            } = match self.receive().await {
                Ok(Some(frame)) => frame,
                Ok(None) => {
                    commit_once(&mut commit).await;
                    return tracing::info!("took over {}: the old process has ended", count(taken, "session"));
                }
                Err(error) => break error.to_string(),
            };
            match message {
                ToNew::Session(session) => {
                    let is_taken = self.take_session(*session, &data, descriptors, &alive, &overview).await;
                    taken += u64::from(is_taken);
                }
                ToNew::Service => add(&data, &overview),
                // Only programs before the counters in JSON send it.
                ToNew::Status => {}
                ToNew::Accept => {
                    continue_metrics(&process.metrics, &data);
                    // If the old process is dead, this is the only one that has the listeners.
                    let _is_sent = self.link.send_message(&ToOld::Accepting).await;
                    commit_once(&mut commit).await;
                }
                ToNew::Totals => {
                    continue_metrics(&process.metrics, &data);
                    // An older process sends only this, when it does not accept any more.
                    commit_once(&mut commit).await;
                }
                ToNew::Stop => {
                    tracing::info!("the old process was asked to stop, and so is this one");
                    process.health.drain();
                }
                other => break unexpected(&other).to_string(),
            }
        };
        tracing::error!("cannot understand the old process: {error}");
        // It ends this process.
        let why = format!("the new process cannot understand this one: {error}");
        self.refuse(&why).await;
    }

    /// Takes one session, or refuses it. Returns whether this process owns it.
    async fn take_session(
        &mut self,
        message: SessionMessage,
        data: &[u8],
        descriptors: Vec<OwnedFd>,
        alive: &MaybeAlive,
        overview: &Overview,
    ) -> bool {
        let mut taker = Taker::default();
        taker.received();
        let session = message.id;
        let alive = alive.upgrade().ok_or_else(|| io::Error::other("the new process stops"));
        let built = alive.and_then(|alive| Ok((build(message, data, descriptors, overview)?, alive)));
        let (answer, built, message) = match built {
            Ok(built) => (Answer::Taken, Some(built), ToOld::Taken { session }),
            Err(error) => {
                let why = reason(&error.to_string());
                (Answer::Refused, None, ToOld::NotTaken { session, why })
            }
        };
        // If the old process is dead, this is the only process that has the session.
        let _is_sent = self.link.send_message(&message).await;
        taker.answered(answer);
        match built.filter(|_| taker.owns()) {
            Some(((record, suspended), alive)) => {
                // A quota file of this process counts the bytes of the session.
                created::keep();
                session::resume(record, suspended, alive);
                true
            }
            None => false,
        }
    }
}

/// Serves in place of the old process. It happens once: later, the listeners may belong to the
/// process after this one.
async fn commit_once(commit: &mut Option<Commit<'_>>) {
    if let Some(commit) = commit.take() {
        commit.now().await;
    }
}

impl Commit<'_> {
    /// Owns the listeners, accepts clients, and then speaks to the service manager.
    async fn now(self) {
        self.process.adopted.commit();
        self.process.metrics.upgraded(true);
        self.process.gate.set(true);
        created::keep();
        pid_file::publish();
        log::follow_renames();
        self.manager.speak();
        let status = drain::serving(self.process.metrics.open());
        self.manager.tell(Message::Ready(&status)).await;
    }
}

/// Continues the counters of the old process. If it has too many of them, they stay as they are.
fn continue_metrics(metrics: &Metrics, totals: &[u8]) {
    if !totals.is_empty() {
        metrics.continue_from(&String::from_utf8_lossy(totals));
    }
}

fn unexpected(message: &ToNew) -> io::Error {
    io::Error::other(format!("an unexpected message: {message:?}"))
}

/// Adds what a service of the old process knows. A service that is gone needs nothing.
fn add(data: &[u8], overview: &Overview) {
    match ServiceState::decode(data) {
        Ok(state) => {
            if let Ok(service) = service(&state.service, overview) {
                state.add_to(&service);
            }
        }
        Err(error) => tracing::error!(%error, "the state of a service does not arrive"),
    }
}

/// Builds everything that the session needs. Nothing of it passes a byte.
fn build(
    mut message: SessionMessage,
    data: &[u8],
    descriptors: Vec<OwnedFd>,
    overview: &Overview,
) -> io::Result<(Record, Suspended)> {
    let [client, upstream] = <[OwnedFd; 2]>::try_from(descriptors)
        .map_err(|missing| io::Error::other(format!("{} of 2 sockets arrived", missing.len())))?;
    let service = service(&message.service, overview)?;
    let (state, secrets) = message
        .state(data)
        .ok_or_else(|| io::Error::other("bytes are missing"))?;
    let mut facts = message.facts();
    let ends = [stream(client)?, stream(upstream)?];
    let [client, upstream] = std::mem::take(&mut message.tls).arrive(ends, secrets, &mut facts)?;
    let address = facts.client.map(|client| client.ip());
    let balances = message.rates;
    let mut permit = overview.process.admission.readmit();
    if let Some(address) = address {
        // A client above its limit keeps its sessions.
        let _is_counted = permit.count(address);
    }
    let age = Duration::from_micros(message.age_us);
    let now = Instant::now();
    let ago = |time| now.checked_sub(time).unwrap_or(now);
    let session = Session::new(message.id, Arc::clone(&service.name), ago(age), facts);
    if let Some(idle) = message.shown_idle_us {
        session.set_activity(message.bytes(), ago(Duration::from_micros(idle)));
    }
    let record = Record::take_over(Arc::clone(&service), session, permit);
    let rates = record.guard.user_rates(service.rates.of_session(address));
    rates.lower(balances);
    let suspended = Suspended {
        client,
        upstream,
        state,
        rates,
    };
    Ok((record, suspended))
}

fn service(name: &str, overview: &Overview) -> io::Result<Arc<Service>> {
    let services = overview.services();
    let found = services.iter().find(|served| *served.service.name == *name);
    let found = found.map(|served| Arc::clone(&served.service));
    found.ok_or_else(|| io::Error::other(format!("there is no service {name}")))
}

fn stream(socket: OwnedFd) -> io::Result<Stream> {
    let options = SockRef::from(&socket);
    if options.r#type()? != Type::STREAM {
        return Err(io::Error::other("it is no stream"));
    }
    options.set_nonblocking(true)?;
    Ok(match options.domain()? {
        Domain::UNIX => Stream::Unix(UnixStream::from_std(socket.into())?),
        _ => Stream::Tcp(TcpStream::from_std(socket.into())?),
    })
}
