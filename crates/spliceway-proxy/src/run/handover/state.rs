//! What a service knows about its clients: failed logins, and what rate limits allow. And what it
//! knows about its backends.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::message::micros;
use crate::access::rates::Balances;
use crate::reach::balance::HandedOverBackend;
use crate::session::Service;
use crate::tls::tickets::HandedOverKey;

/// The most clients whose rate limits are handed over. A client takes at most 110 bytes, and so
/// does each of the 10,000 with penalties. So the message is always shorter than a frame may be.
/// The limits of other clients are full in the new process.
const LIMITED_MAX: usize = 50_000;

/// The state of one service, which is the data of a message.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ServiceState {
    pub(super) service: String,
    penalties: Vec<Penalty>,
    /// What the limits of the service allow, in bytes, from and to clients.
    rates: Balances,
    limited: Vec<Limited>,
    backends: Vec<HandedOverBackend>,
    /// The keys of TLS tickets.
    tickets: Vec<HandedOverKey>,
}

/// A client from which authentication has failed.
#[derive(Serialize, Deserialize)]
struct Penalty {
    client: IpAddr,
    failures: u32,
    /// The time since the last failure.
    since_us: u64,
}

/// A client that has used its rate limits.
#[derive(Serialize, Deserialize)]
struct Limited {
    client: IpAddr,
    rates: Balances,
}

impl ServiceState {
    /// Returns the whole state, as long as this process accepts clients: it decides which backend a
    /// client gets, and its clients have tickets.
    pub(super) fn with_backends(service: &Service) -> Self {
        let balancer = service.balancer.as_ref();
        Self {
            backends: balancer.map(|balancer| balancer.to_hand_over()).unwrap_or_default(),
            tickets: service
                .tls
                .iter()
                .flat_map(|tls| tls.tickets().to_hand_over())
                .collect(),
            ..Self::without_backends(service)
        }
    }

    /// Returns the state without that of the backends, which the other process knows better.
    pub(super) fn without_backends(service: &Service) -> Self {
        let penalties = service.penalties.known(Instant::now()).into_iter();
        let (rates, limited) = service.rates.balances(LIMITED_MAX);
        Self {
            service: service.name.to_string(),
            penalties: penalties
                .map(|(client, failures, since)| Penalty {
                    client,
                    failures,
                    since_us: micros(since),
                })
                .collect(),
            rates,
            limited: limited
                .into_iter()
                .map(|(client, rates)| Limited { client, rates })
                .collect(),
            backends: Vec::new(),
            tickets: Vec::new(),
        }
    }

    /// Adds this state to that of a service. It may be added any number of times.
    pub(super) fn add_to(&self, service: &Service) {
        let now = Instant::now();
        for Penalty {
            client,
            failures,
            since_us,
        } in &self.penalties
        {
            let since = Duration::from_micros(*since_us);
            service.penalties.add(*client, *failures, since, now);
        }
        let limited = self.limited.iter().map(|limited| (limited.client, limited.rates));
        service.rates.lower(self.rates, limited, now);
        if let Some(balancer) = service.balancer.as_ref().filter(|_| !self.backends.is_empty()) {
            balancer.take_over(&self.backends);
        }
        if let Some(tls) = &service.tls {
            tls.tickets().take_over(&self.tickets);
        }
    }

    pub(super) fn encode(&self) -> io::Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(Into::into)
    }

    pub(super) fn decode(data: &[u8]) -> io::Result<Self> {
        serde_json::from_slice(data).map_err(Into::into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::auth::PENALISED_MAX;
    use crate::reach::balance::BACKENDS_MAX;
    use crate::run::handover::link;

    #[test]
    fn the_longest_state_fits_into_a_frame() {
        let client = IpAddr::from([0xffff, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff]);
        let time = serde_json::json!({"secs": u64::MAX, "nanos": 999_999_999});
        let backend = serde_json::json!({
            "name": "x".repeat(300),
            "member": {"of": "x".repeat(300), "weight": u32::MAX, "is_backup": false},
            "set_weight": u32::MAX,
            "ejection": {"failures": u32::MAX, "ejections": u32::MAX, "ejected": time, "up_again": time},
            "checks": {"is_up": false, "contrary": u32::MAX},
        });
        let longest = ServiceState {
            service: "x".repeat(255),
            penalties: (0..PENALISED_MAX)
                .map(|_| Penalty {
                    client,
                    failures: u32::MAX,
                    since_us: u64::MAX,
                })
                .collect(),
            rates: [Some(i64::MIN); 2],
            limited: (0..LIMITED_MAX)
                .map(|_| Limited {
                    client,
                    rates: [Some(i64::MIN); 2],
                })
                .collect(),
            backends: (0..BACKENDS_MAX)
                .map(|_| serde_json::from_value(backend.clone()).unwrap())
                .collect(),
            tickets: vec![(vec![u8::MAX; 32], Duration::MAX); 2],
        };
        let data = longest.encode().unwrap();
        assert!(link::encode(&(), &[&data]).is_ok(), "{} bytes", data.len());
        let received = ServiceState::decode(&data).unwrap();
        assert_eq!(received.penalties.len(), PENALISED_MAX);
        assert_eq!(received.limited.len(), LIMITED_MAX);
        assert_eq!(received.backends, longest.backends);
    }

    #[test]
    fn a_state_without_known_fields_is_empty() {
        let state = ServiceState::decode(br#"{"service":"a","later":[1]}"#).unwrap();
        assert_eq!((state.service.as_str(), state.rates), ("a", [None; 2]));
        assert!(state.penalties.is_empty() && state.limited.is_empty());
        assert!(ServiceState::decode(b"").is_err());
    }
}
