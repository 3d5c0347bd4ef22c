//! A session whose bytes are datagrams.

use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::net::UdpSocket;

use super::Service;
use crate::address::Target;
use crate::associate::{AssociateEnd, AssociateSettings, Association, Destinations, Dropped, towards};
use crate::dial::Dialer;
use crate::handshake::Client;
use crate::record::{End, Outcome, Record};

/// An association whose client has been told where to send, and the connection that holds it.
pub(super) struct Open {
    pub(super) client: Client,
    pub(super) association: Association<Reach>,
}

impl Open {
    pub(super) async fn run(mut self, record: &mut Record) -> Outcome {
        record.associating(self.association.stats());
        match self.association.run(&mut self.client).await {
            AssociateEnd::ClientEof => End::ClientEof.into(),
            AssociateEnd::ClientFailed(error) => Outcome::because(End::ResetByClient, &error),
            AssociateEnd::Idle => End::Idle.into(),
            AssociateEnd::Stopped => End::Drained.into(),
        }
    }
}

pub(super) fn bind(
    service: &Service,
    reached: SocketAddr,
    client: SocketAddr,
    asked: &Target,
) -> io::Result<Association<Reach>> {
    let settings = AssociateSettings {
        advertise: service.advertise,
        idle: service.timeouts.idle,
        lookup: service.timeouts.connect,
    };
    Association::open(reached, client, asked, &settings, Reach::of(service))
}

/// Where a service's clients may send datagrams: where they may connect.
#[derive(Clone)]
pub(super) struct Reach(Dialer);

impl Reach {
    pub(super) fn of(service: &Service) -> Self {
        Self(service.dialer.clone())
    }
}

impl Destinations for Reach {
    fn allow(&self, address: SocketAddr) -> bool {
        self.0.policy().check(address).is_ok()
    }

    fn socket(&self, to: IpAddr) -> Result<UdpSocket, Dropped> {
        towards(to, self.0.sockets())
    }

    async fn look_up(&self, target: &Target) -> Result<Vec<SocketAddr>, Dropped> {
        self.0.addresses(target).await.map_err(|error| match error.denied() {
            Some(_) => Dropped::Denied,
            None => Dropped::Unresolved,
        })
    }
}
