//! A session that relays datagrams.

use std::io;
use std::net::{IpAddr, SocketAddr};

use rustix::io::Errno;
use tokio::net::UdpSocket;

use super::byte_counter::{ByteCounter, Moved, counted};
use crate::access::admission::ClientKey;
use crate::access::datagram_counts::Dropped;
use crate::access::policy::Denied;
use crate::access::rates::SessionRates;
use crate::kit::outcome::{Outcome, SessionEnd};
use crate::net::datagrams::towards;
use crate::reach::dial::{DialError, Dialer};
use crate::session::associate::{AssociateEnd, AssociateSettings, Association, Destinations};
use crate::session::bind::Expected;
use crate::session::handshake::{Client, ClientRequest};
use crate::session::record::Record;
use crate::session::service::Service;
use spliceway_protocol::address::Target;

/// An association whose client knows where to send datagrams, and the connection that keeps it
/// open.
pub(super) struct Open {
    pub(super) client: Client,
    pub(super) association: Association<Reach>,
}

impl Open {
    pub(super) async fn run(mut self, record: &mut Record) -> Outcome {
        record.associating(self.association.stats());
        let counter = ByteCounter::new(record, Moved::Datagrams(self.association.stats()));
        match counted(counter, self.association.run(&mut self.client)).await {
            AssociateEnd::ClientEof => SessionEnd::ClientEof.into(),
            AssociateEnd::ClientFailed(error) => Outcome::because(SessionEnd::ResetByClient, &error),
            AssociateEnd::Idle => SessionEnd::Idle.into(),
            AssociateEnd::Stopped => SessionEnd::Drained.into(),
        }
    }
}

pub(super) fn bind(
    service: &Service,
    reached: SocketAddr,
    client: SocketAddr,
    request: &ClientRequest,
    rates: SessionRates,
) -> io::Result<Association<Reach>> {
    let settings = AssociateSettings {
        advertise: service.advertise,
        idle: service.timeouts.idle,
        lookup: service.timeouts.connect,
    };
    let dialer = service.dialer_of(request.user.as_deref()).for_datagrams();
    let reach = Reach::new(dialer, Some(client.ip().into()));
    Association::open(reached, client, &request.request.target, &settings, reach, rates)
}

/// The destinations of datagrams. A client may send datagrams to every target to which it may
/// connect.
#[derive(Clone)]
pub(super) struct Reach {
    dialer: Dialer,
    /// The client towards whose share lookups count.
    client: Option<ClientKey>,
}

impl Reach {
    pub(super) fn new(dialer: Dialer, client: Option<ClientKey>) -> Self {
        Self { dialer, client }
    }

    /// Returns the peers that `asked`, the address in a request for BIND, represents. A name
    /// represents all of its addresses that the policy allows.
    ///
    /// # Errors
    /// Returns the errors of a dial, so that a refusal names its rule.
    pub(super) async fn peers(&self, asked: &Target) -> Result<Expected, DialError> {
        let name = match asked {
            Target::Ip(address) if address.ip().to_canonical().is_unspecified() => return Ok(Expected::Anyone),
            Target::Name(name, _) => Some(name.clone()),
            _ => None,
        };
        let addresses = self.dialer.addresses(asked, self.client).await?;
        let ips = addresses.iter().map(|address| address.ip().to_canonical());
        Ok(Expected::These(ips.collect(), name))
    }
}

impl Destinations for Reach {
    fn check(&self, name: Option<&str>, address: SocketAddr) -> Result<(), Denied> {
        self.dialer.check(name, address)
    }

    fn socket(&self, to: IpAddr) -> Result<UdpSocket, Dropped> {
        let opened = towards(to, self.dialer.sockets());
        opened.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => Dropped::Unreachable,
            _ => {
                tracing::debug!(%to, %error, "cannot open a socket for datagrams to targets");
                Dropped::Socket
            }
        })
    }

    async fn look_up(&self, target: &Target) -> Result<Vec<SocketAddr>, DialError> {
        self.dialer.addresses(target, self.client).await
    }
}
