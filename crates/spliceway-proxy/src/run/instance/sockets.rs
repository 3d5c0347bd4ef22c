//! The open listeners, and the services that they lead to.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Weak};

use spliceway_protocol::address::ListenAddress;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::finishing::{Finishing, Left};
use crate::access::policy::OwnEntry;
use crate::kit::alive::{Alive, MaybeAlive};
use crate::net::adopted::Offered;
use crate::net::listener::{self, Accepted, Listener, ModeChange, Transport};
use crate::net::transparent::{allow_foreign_addresses, may_allow_foreign_addresses};
use crate::session::Process;
use crate::session::Service;
use crate::session::dns::NameServer;
use crate::session::udp::{Opener, Port};
use crate::session::{self, Arrival};
use crate::settings::exposure::Reach;
use crate::settings::{Kind, Purpose, ServiceSettings};

/// Binds listeners, and accepts their clients.
#[derive(Clone)]
pub(super) struct Acceptor {
    process: Arc<Process>,
    alive: Alive,
    finishing: Arc<Finishing>,
    names: Arc<NameServer>,
}

/// The listeners of one address: one, or as many as a name has addresses.
pub(super) struct OpenAddress {
    address: ListenAddress,
    purpose: Purpose,
    /// The name of the service that clients reach.
    service: Arc<str>,
    pub(super) sockets: Vec<OpenSocket>,
}

/// A listener with a task that accepts its clients. Dropping this value ends the task, which closes
/// the listener.
pub(super) struct OpenSocket {
    reach: Reach,
    described: Arc<str>,
    to: Arc<watch::Sender<Assignment>>,
    /// The listener, as long as its task has it.
    listener: Weak<Listener>,
}

/// A listener without a task.
pub(super) struct Bound {
    listener: Arc<Listener>,
    /// The sessions that a socket for datagrams already has.
    port: Option<Arc<Port>>,
    own: Option<OwnEntry>,
}

/// Where the clients of a listener go.
#[derive(Clone)]
pub(super) struct Assignment {
    pub(super) service: Arc<Service>,
    /// The position of the port in its range: 0 for the first port.
    pub(super) port_index: u16,
}

impl Acceptor {
    pub(super) fn new(process: Arc<Process>, alive: Alive) -> Self {
        Self {
            process,
            alive,
            finishing: Arc::default(),
            names: NameServer::new(),
        }
    }

    pub(super) fn maybe_alive(&self) -> MaybeAlive {
        self.alive.downgrade()
    }

    /// Binds the listeners of an address, and adds them to the list of own listeners.
    ///
    /// A process that was started to take over uses the listeners of `service` that it received.
    pub(super) async fn bind(
        &self,
        address: &ListenAddress,
        service: &ServiceSettings,
        purpose: Purpose,
    ) -> io::Result<Vec<Bound>> {
        let left = match purpose {
            Purpose::Sessions(Transport::Datagrams) => self.finishing.at(address, &service.name),
            Purpose::Sessions(Transport::Streams) | Purpose::Dns(_) => Vec::new(),
        };
        if !left.is_empty() {
            let again = |left: Left| self.bound(left.listener, Some(left.port));
            return left.into_iter().map(again).collect();
        }
        let adopted = &self.process.adopted;
        let role = role(&service.name, purpose);
        let found = adopted.bind(&role, address, purpose.transport()).await?;
        let bound = |listener: Listener| {
            let listener = Arc::new(listener);
            if matches!(purpose, Purpose::Dns(_)) {
                return self.bound(listener, None);
            }
            if found.are_received {
                check_options(&listener, service)?;
                let (listener, kind) = (Arc::clone(&listener), service.kind.clone());
                adopted.at_commit(move || set_options_or_log(&listener, &kind));
            } else {
                set_options(&listener, &service.kind)?;
            }
            self.bound(listener, None)
        };
        found.listeners.into_iter().map(bound).collect()
    }

    fn bound(&self, listener: Arc<Listener>, port: Option<Arc<Port>>) -> io::Result<Bound> {
        let own = self.process.own.add(&*listener)?;
        Ok(Bound { listener, port, own })
    }

    /// Starts to accept clients on new listeners.
    pub(super) fn open(
        &self,
        address: ListenAddress,
        purpose: Purpose,
        bound: Vec<Bound>,
        to: &Assignment,
        accepting: &mut JoinSet<()>,
    ) -> OpenAddress {
        let sockets = bound.into_iter().map(|bound| {
            let (reach, described) = (bound.reach(), bound.describe().into());
            let (sender, receiver) = watch::channel(to.clone());
            let listener = Arc::downgrade(&bound.listener);
            // Before its task runs, the reload may have been reported.
            if let Some(port) = &bound.port {
                port.reopens();
            }
            accepting.spawn(self.clone().accept(bound, address.clone(), purpose, receiver));
            OpenSocket {
                reach,
                described,
                to: Arc::new(sender),
                listener,
            }
        });
        OpenAddress {
            sockets: sockets.collect(),
            address,
            purpose,
            service: Arc::clone(&to.service.name),
        }
    }

    /// Accepts clients until the listener is no longer wanted, the service stops accepting, or the
    /// program stops.
    async fn accept(self, bound: Bound, address: ListenAddress, purpose: Purpose, to: watch::Receiver<Assignment>) {
        let Bound { listener, port, own } = bound;
        let (service, health) = (Arc::clone(&to.borrow().service.name), &self.process.health);
        let guard = health.guard(&format!("the {service} listener on {}", listener.describe()));
        let unwanted = unwanted(to.clone());
        let stop = async {
            tokio::select! {
                _ = health.stopped() => {}
                () = unwanted => {}
            }
        };
        if let Purpose::Dns(_) = purpose {
            self.answer(&listener, &to, stop).await;
        } else if let Listener::Udp(socket) = &*listener {
            match port.map_or_else(|| Port::new(Arc::clone(socket)), Ok) {
                Ok(port) => {
                    let left = Left {
                        address,
                        service,
                        listener: Arc::clone(&listener),
                        port,
                    };
                    self.forward(left, &to, stop).await;
                }
                Err(error) => tracing::error!(%error, "cannot receive datagrams"),
            }
        } else {
            self.accept_clients(&listener, &to, stop).await;
        }
        drop((listener, own));
        guard.release();
        // `OpenAddress::closed` waits for the last receiver.
        drop(to);
    }

    /// Accepts the clients of a listener until `stop` is ready.
    async fn accept_clients(
        &self,
        listener: &Listener,
        to: &watch::Receiver<Assignment>,
        stop: impl Future<Output = ()>,
    ) {
        let process = &self.process;
        let failed = |errno| process.metrics.accept_failed(errno);
        let is_plain_tcp = listener.is_plain_tcp();
        let serve = |accepted, permit| {
            let accepted = Accepted {
                is_plain_tcp,
                ..accepted
            };
            let Assignment { service, port_index } = to.borrow().clone();
            let arrival = Arrival {
                accepted,
                port_index,
                permit,
            };
            if let Some((step, session)) = session::begin(arrival, service) {
                let task = tokio::spawn(session::run(step, self.alive.clone()));
                session.set_task(task.abort_handle());
            }
        };
        let (gate, admission) = (&process.gate, &process.admission);
        gate.accept(listener, admission, &failed, stop, serve).await;
    }

    /// Answers the DNS queries that a listener receives until `stop` is ready.
    async fn answer(&self, listener: &Listener, to: &watch::Receiver<Assignment>, stop: impl Future<Output = ()>) {
        let (process, server) = (&self.process, &self.names);
        let service = || Arc::clone(&to.borrow().service);
        let Listener::Udp(socket) = listener else {
            let failed = |errno| process.metrics.accept_failed(errno);
            let serve = |accepted, permit| server.accept(accepted, permit, service());
            return process
                .gate
                .accept(listener, &process.admission, &failed, stop, serve)
                .await;
        };
        let mut stop = pin!(stop);
        loop {
            tokio::select! {
                biased;
                () = &mut stop => return,
                // Another process receives the datagrams while the gate is closed.
                () = process.gate.is(true) => {}
            }
            tokio::select! {
                biased;
                () = &mut stop => return,
                () = process.gate.is(false) => {}
                served = server.serve(socket, service) => {
                    if let Err(error) = served {
                        tracing::error!(%error, "cannot receive datagrams");
                        process.health.fail("the task that answers DNS");
                    }
                    return;
                }
            }
        }
    }

    /// Forwards the datagrams of clients until `stop` is ready. Then the socket stays open for the
    /// sessions that there are.
    async fn forward(&self, left: Left, to: &watch::Receiver<Assignment>, stop: impl Future<Output = ()>) {
        let opener = || {
            let Assignment { service, port_index } = to.borrow().clone();
            Opener {
                service,
                port_index,
                alive: self.alive.clone(),
            }
        };
        let (port, gate) = (Arc::clone(&left.port), &self.process.gate);
        let mut stop = pin!(stop);
        loop {
            tokio::select! {
                biased;
                () = &mut stop => break,
                // Another process receives the datagrams while the gate is closed.
                () = gate.is(true) => {}
            }
            tokio::select! {
                biased;
                () = &mut stop => break,
                () = gate.is(false) => {}
                () = port.serve(opener) => {}
            }
        }
        let (opener, process, finishing) = (opener(), Arc::clone(&self.process), Arc::clone(&self.finishing));
        port.closes();
        finishing.add(left);
        tokio::spawn(async move {
            loop {
                process.gate.is(true).await;
                tokio::select! {
                    biased;
                    () = process.gate.is(false) => {}
                    () = port.finish(&opener) => break,
                }
            }
            finishing.remove(&port);
        });
    }
}

impl Bound {
    pub(super) fn reach(&self) -> Reach {
        Reach::of_listener(&self.listener)
    }

    pub(super) fn describe(&self) -> String {
        self.listener.describe()
    }

    /// Returns what the log says about the listener.
    pub(super) fn line(&self, service: &str, purpose: Purpose) -> String {
        format!("{service} {} on {}", purpose.as_str(), self.describe())
    }
}

impl OpenAddress {
    pub(super) fn service(&self) -> &str {
        &self.service
    }

    /// Returns the open listeners, for another process.
    pub(super) fn listeners(&self) -> Offered {
        Offered {
            role: role(&self.service, self.purpose),
            address: self.address.to_string(),
            listeners: self
                .sockets
                .iter()
                .filter_map(|socket| socket.listener.upgrade())
                .collect(),
        }
    }

    /// Returns the address of each listener.
    pub(super) fn describe(&self) -> impl Iterator<Item = Arc<str>> {
        self.sockets.iter().map(|socket| Arc::clone(&socket.described))
    }

    /// Returns whether an operator has not drained the service.
    pub(super) fn is_accepting(&self) -> bool {
        self.sockets
            .iter()
            .all(|socket| socket.to.borrow().service.accepting.is_on())
    }

    /// Returns a future that waits until the listeners are closed. Their service must have stopped
    /// accepting.
    pub(super) fn closed(&self) -> impl Future<Output = ()> + Send + use<> {
        let sockets: Vec<_> = self.sockets.iter().map(|socket| Arc::clone(&socket.to)).collect();
        async move {
            for to in sockets {
                to.closed().await;
            }
        }
    }

    /// Returns whether these listeners would do for `address` of this service.
    pub(super) fn is_at(&self, address: &ListenAddress, service: &str, purpose: Purpose) -> bool {
        let transport = purpose.transport();
        let open = (&self.address, &*self.service, transport);
        self.purpose == purpose && listener::does_for(open, (address, service, transport))
    }

    /// Returns whether the kernel refuses a listener on `address` while these are open.
    fn excludes(&self, address: &ListenAddress, transport: Transport) -> bool {
        let (ip, port) = match address {
            ListenAddress::Every(port) | ListenAddress::Name(_, port) => (None, *port),
            ListenAddress::Ip(address) => (Some(address.ip()), address.port()),
            ListenAddress::Unix { .. } | ListenAddress::Inherited(_) => return false,
        };
        let is_every = matches!(self.address, ListenAddress::Every(_));
        let overlaps = |own: IpAddr, ip: IpAddr| {
            let is_wildcard = own.is_unspecified() || ip.is_unspecified();
            own == ip || (is_wildcard && (is_every || own.is_ipv4() == ip.is_ipv4()))
        };
        let mut own = self.sockets.iter().filter_map(|socket| {
            let described = socket.described.trim_end_matches("/udp");
            described.parse::<SocketAddr>().ok()
        });
        self.purpose.transport() == transport
            && own.any(|own| own.port() == port && ip.is_none_or(|ip| overlaps(own.ip(), ip)))
    }

    /// Checks that these listeners are fit for a service, and changes nothing.
    ///
    /// # Errors
    /// Returns an error if a listener is unfit for the service.
    pub(super) fn check(&self, service: &ServiceSettings) -> io::Result<()> {
        if let Purpose::Dns(_) = self.purpose {
            return Ok(());
        }
        let mut open = self.sockets.iter().filter_map(|socket| socket.listener.upgrade());
        open.try_for_each(|listener| check_options(&listener, service))
    }

    /// Returns who could reach these listeners if they were opened for `address`.
    pub(super) fn reach_as(&self, address: &ListenAddress) -> Vec<Reach> {
        match Reach::of_address(address) {
            Some(reach) => vec![reach],
            None => self.sockets.iter().map(|socket| socket.reach).collect(),
        }
    }

    /// Returns a number that is the same for all addresses at which these listeners may do.
    pub(super) fn hash(&self) -> u64 {
        listener::hash_of(&self.address, &self.service)
    }

    /// Sends new clients to this service from now on.
    pub(super) fn assign(&mut self, address: ListenAddress, to: &Assignment) {
        let is_same = |socket: &OpenSocket| {
            let before = socket.to.borrow();
            Arc::ptr_eq(&before.service, &to.service) && before.port_index == to.port_index
        };
        // The accept tasks of services that have not changed need not wake up.
        if self.address == address && self.sockets.iter().all(is_same) {
            return;
        }
        if let Purpose::Sessions(_) = self.purpose {
            for listener in self.sockets.iter().filter_map(|socket| socket.listener.upgrade()) {
                set_options_or_log(&listener, &to.service.kind);
            }
        }
        let change = match (&self.address, &address) {
            (ListenAddress::Unix { mode: from, .. }, ListenAddress::Unix { path, mode }) => {
                Some(ModeChange::new(path, *from, *mode))
            }
            _ => None,
        };
        // A client that may not connect by one of both modes never meets the settings of that mode.
        let or_log = |changed: io::Result<()>| {
            if let Err(error) = changed {
                tracing::error!(listener = %address, %error, "cannot change the mode of the socket");
            }
        };
        change.iter().for_each(|change| or_log(change.narrow()));
        for socket in &self.sockets {
            socket.to.send_replace(to.clone());
        }
        change.iter().for_each(|change| or_log(change.widen()));
        self.address = address;
        self.service = Arc::clone(&to.service.name);
    }
}

impl std::fmt::Display for OpenAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.address.fmt(f)
    }
}

/// Returns the error of a listener that this program itself prevents. It closes no listener before
/// the new ones are open, because a change that fails must change nothing.
pub(super) fn explained(
    error: io::Error,
    address: &ListenAddress,
    purpose: Purpose,
    open: &[OpenAddress],
) -> io::Error {
    let in_the_way = || open.iter().find(|open| open.excludes(address, purpose.transport()));
    match error.kind() {
        io::ErrorKind::AddrInUse => in_the_way().map_or(error, |open| {
            let (at, name) = (open.describe().collect::<Vec<_>>().join(", "), &open.service);
            let text = format!(
                "cannot listen on {address} while the service `{name}` listens on {at}: first remove that service, or \
                 change its port, and then use {address}"
            );
            io::Error::new(io::ErrorKind::AddrInUse, text)
        }),
        _ => error,
    }
}

/// Sets the option that a listener needs for TPROXY. It is not removed if the listener gets another
/// service, because it only matters for connections that such a rule still sends here.
fn set_options(listener: &Listener, kind: &Kind) -> io::Result<()> {
    match listener {
        Listener::Tcp(socket) if kind.is_behind_tproxy() => {
            allow_foreign_addresses(socket).map_err(|error| unfit(listener, &error))
        }
        _ => Ok(()),
    }
}

/// Sets the option after a check, so that setting it does not fail.
fn set_options_or_log(listener: &Listener, kind: &Kind) {
    if let Err(error) = set_options(listener, kind) {
        tracing::error!("{error}");
    }
}

/// Checks that [`set_options`] will succeed. The service that has the listener now does not notice.
fn check_options(listener: &Listener, service: &ServiceSettings) -> io::Result<()> {
    match listener {
        Listener::Tcp(socket) if service.kind.is_behind_tproxy() => {
            may_allow_foreign_addresses(socket).map_err(|error| unfit(listener, &error))
        }
        _ => Ok(()),
    }
}

fn unfit(listener: &Listener, error: &io::Error) -> io::Error {
    let listener = listener.describe();
    io::Error::new(error.kind(), format!("cannot listen on {listener} for TPROXY: {error}"))
}

/// Returns the role of listeners of a service, which differs from that of the operator's listeners.
fn role(service: &str, purpose: Purpose) -> String {
    match purpose {
        Purpose::Sessions(_) => format!("service {service}"),
        Purpose::Dns(_) => format!("DNS of {service}"),
    }
}

/// Waits until the listener leads to no service, or to one that has stopped accepting.
async fn unwanted(mut to: watch::Receiver<Assignment>) {
    loop {
        let service = Arc::clone(&to.borrow_and_update().service);
        tokio::select! {
            () = service.accepting.stopped() => return,
            changed = to.changed() => if changed.is_err() { return },
        }
    }
}
