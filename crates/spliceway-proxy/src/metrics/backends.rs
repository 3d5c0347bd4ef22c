//! The metrics of the backends of forwarders, which a scrape reads from their balancers.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use crate::reach::balance::{BackendState, BackendStatus, Balancer, Failure};

/// The backends of each service, as they are now. A backend that a reload removes has no series any
/// more.
#[derive(Debug)]
pub(super) struct Backends(Vec<OfService>);

#[derive(Debug)]
struct OfService {
    service: &'static str,
    waiting: usize,
    backends: Vec<BackendStatus>,
}

impl Backends {
    pub(super) fn of(balancers: &[Arc<Balancer>]) -> Self {
        let of_service = |balancer: &Arc<Balancer>| OfService {
            service: balancer.service(),
            waiting: balancer.waiting(),
            backends: balancer.status(),
        };
        Self(balancers.iter().map(of_service).collect())
    }

    fn all(&self) -> impl Iterator<Item = ([(&'static str, &str); 2], &BackendStatus)> {
        self.0.iter().flat_map(|of| {
            let labels = |backend| [("service", of.service), ("backend", backend)];
            of.backends.iter().map(move |backend| (labels(&*backend.name), backend))
        })
    }

    fn gauge(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        value: impl Fn(&BackendStatus) -> u32,
    ) -> fmt::Result {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        self.all().try_for_each(|(labels, backend)| {
            let value = i64::from(value(backend));
            family.encode_family(&labels)?.encode_gauge(&value)
        })
    }

    fn counter(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        value: impl Fn(&BackendStatus) -> u64,
    ) -> fmt::Result {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        self.all().try_for_each(|(labels, backend)| {
            let value = value(backend);
            family
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, u64, u64>(&value, None)
        })
    }

    fn failures(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Failures of a backend, by reason";
        let mut family = encoder.encode_descriptor("backend_failures", help, None, MetricType::Counter)?;
        for ([service, name], backend) in self.all() {
            for (failure, count) in Failure::ALL.into_iter().zip(backend.failures) {
                family
                    .encode_family(&[service, name, ("reason", failure.as_str())])?
                    .encode_counter::<NoLabelSet, u64, u64>(&count, None)?;
            }
        }
        Ok(())
    }

    fn checks(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Checks of a backend, by result";
        let mut family = encoder.encode_descriptor("backend_checks", help, None, MetricType::Counter)?;
        for ([service, name], backend) in self.all() {
            for (result, count) in ["good", "failed"].into_iter().zip(backend.checks) {
                family
                    .encode_family(&[service, name, ("result", result)])?
                    .encode_counter::<NoLabelSet, u64, u64>(&count, None)?;
            }
        }
        Ok(())
    }

    fn waiting(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Clients that wait for a backend, because all are full";
        let mut family = encoder.encode_descriptor("backend_waiting", help, None, MetricType::Gauge)?;
        self.0.iter().try_for_each(|of| {
            let waiting = i64::try_from(of.waiting).unwrap_or(i64::MAX);
            family.encode_family(&[("service", of.service)])?.encode_gauge(&waiting)
        })
    }
}

impl Collector for Backends {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        let encoder = &mut encoder;
        let help = "Whether a backend gets clients: 1, or 0 while it is ejected, down or draining";
        self.gauge(encoder, "backend_up", help, |backend| {
            (backend.state == BackendState::Up).into()
        })?;
        let help = "Open sessions of a backend, including those that are connecting";
        self.gauge(encoder, "backend_sessions", help, |backend| backend.sessions)?;
        let help = "Connections to a backend that succeeded";
        self.counter(encoder, "backend_connections", help, |backend| backend.connections)?;
        self.failures(encoder)?;
        self.checks(encoder)?;
        let help = "Times that a backend was ejected because it failed";
        self.counter(encoder, "backend_ejections", help, |backend| backend.ejections)?;
        self.waiting(encoder)
    }
}
