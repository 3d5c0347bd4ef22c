//! The metrics that a scrape reads from live objects: sessions, bytes, fallbacks, datagrams,
//! admission and pipes.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet};
use prometheus_client::metrics::MetricType;
use spliceway::{PipePool, Reason, Scope};

use super::services::{AllTraffic, Fallbacks};
use super::traffic::{Outcomes, Totals};
use crate::access::admission::Admission;
use crate::access::datagram_counts::DatagramSummary;
use crate::kit::outcome::SessionEnd;

/// The collector that encodes these metrics of one scrape.
pub(super) struct LiveSeries {
    /// The totals of each service.
    totals: Vec<(&'static str, Totals)>,
    /// For each service, its open sessions, and how others have ended.
    outcomes: Vec<(&'static str, u64, Outcomes)>,
    /// The fallbacks of services that have no series any more.
    earlier_fallbacks: Fallbacks,
    admission: Arc<Admission>,
}

#[derive(Debug, EncodeLabelSet)]
struct EndLabels {
    service: &'static str,
    end: SessionEnd,
}

impl LiveSeries {
    pub(super) async fn new(traffic: &AllTraffic, admission: Arc<Admission>) -> Self {
        let (all, earlier_fallbacks) = (traffic.all(), traffic.earlier_fallbacks());
        let (mut totals, mut outcomes) = (Vec::new(), Vec::new());
        for traffic in all {
            let service = traffic.service();
            totals.push((service, traffic.totals().await));
            outcomes.push((service, traffic.active(), traffic.outcomes()));
        }
        Self {
            totals,
            outcomes,
            earlier_fallbacks,
            admission,
        }
    }

    fn sessions(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Sessions that are open now, including handshakes";
        let mut family = encoder.encode_descriptor("connections_active", help, None, MetricType::Gauge)?;
        for (service, active, _) in &self.outcomes {
            let active = i64::try_from(*active).unwrap_or(i64::MAX);
            family.encode_family(&[("service", *service)])?.encode_gauge(&active)?;
        }
        let help = "Sessions that have ended, by end reason";
        let mut family = encoder.encode_descriptor("connections", help, None, MetricType::Counter)?;
        for (service, _, outcomes) in &self.outcomes {
            for (end, count) in &outcomes.ended {
                let (service, end) = (*service, *end);
                family
                    .encode_family(&EndLabels { service, end })?
                    .encode_counter::<NoLabelSet, u64, u64>(count, None)?;
            }
        }
        let help = "Clients that the proxy itself refused, by reason";
        let mut family = encoder.encode_descriptor("refused", help, None, MetricType::Counter)?;
        for (service, _, outcomes) in &self.outcomes {
            for (reason, count) in &outcomes.refused {
                family
                    .encode_family(&[("service", *service), ("reason", reason.as_str())])?
                    .encode_counter::<NoLabelSet, u64, u64>(count, None)?;
            }
        }
        Ok(())
    }

    fn bytes(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Bytes delivered, by path; up is from client to target";
        let mut family = encoder.encode_descriptor("bytes", help, None, MetricType::Counter)?;
        for (service, Totals { bytes, .. }) in &self.totals {
            for (direction, paths) in [("up", bytes.up), ("down", bytes.down)] {
                for (path, count) in [("splice", paths.splice), ("copy", paths.copy)] {
                    let labels = [("service", *service), ("direction", direction), ("path", path)];
                    family
                        .encode_family(&labels)?
                        .encode_counter::<NoLabelSet, u64, u64>(&count, None)?;
                }
            }
        }
        Ok(())
    }

    fn lost(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Bytes read from one side and not delivered to the other when the session ended";
        let mut family = encoder.encode_descriptor("lost_bytes", help, None, MetricType::Counter)?;
        for (service, Totals { bytes, .. }) in &self.totals {
            for (direction, paths) in [("up", bytes.up), ("down", bytes.down)] {
                family
                    .encode_family(&[("service", *service), ("direction", direction)])?
                    .encode_counter::<NoLabelSet, u64, u64>(&paths.lost, None)?;
            }
        }
        Ok(())
    }

    fn datagrams(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let counts: Vec<_> = self
            .totals
            .iter()
            .map(|(service, totals)| (*service, totals.datagrams))
            .collect();
        let passed = |datagrams: &DatagramSummary| [("up", datagrams.up), ("down", datagrams.down)];
        let help = "Datagrams delivered; up is from client to target";
        let mut family = encoder.encode_descriptor("datagrams", help, None, MetricType::Counter)?;
        for (service, datagrams) in &counts {
            for (direction, passed) in passed(datagrams) {
                family
                    .encode_family(&[("service", *service), ("direction", direction)])?
                    .encode_counter::<NoLabelSet, u64, u64>(&passed.datagrams, None)?;
            }
        }
        let help = "Bytes of data in delivered datagrams";
        let mut family = encoder.encode_descriptor("datagram_bytes", help, None, MetricType::Counter)?;
        for (service, datagrams) in &counts {
            for (direction, passed) in passed(datagrams) {
                family
                    .encode_family(&[("service", *service), ("direction", direction)])?
                    .encode_counter::<NoLabelSet, u64, u64>(&passed.bytes, None)?;
            }
        }
        let help = "Datagrams dropped, by reason";
        let mut family = encoder.encode_descriptor("datagrams_dropped", help, None, MetricType::Counter)?;
        for (service, datagrams) in &counts {
            for (reason, count) in datagrams.drops() {
                family
                    .encode_family(&[("service", *service), ("reason", reason.as_str())])?
                    .encode_counter::<NoLabelSet, u64, u64>(&count, None)?;
            }
        }
        Ok(())
    }

    fn admission(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let max = i64::try_from(self.admission.max()).unwrap_or(i64::MAX);
        let help = "Limit on open sessions; further clients wait to be accepted";
        encoder
            .encode_descriptor("connections_max", help, None, MetricType::Gauge)?
            .encode_gauge(&max)?;
        let help = "Times that a listener had to wait for a session to end";
        encoder
            .encode_descriptor("admission_waits", help, None, MetricType::Counter)?
            .encode_counter::<NoLabelSet, u64, u64>(&self.admission.waits(), None)
    }

    fn fallbacks(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut sums = self.earlier_fallbacks;
        for (_, totals) in &self.totals {
            sums.iter_mut()
                .zip(totals.fallbacks)
                .for_each(|(sum, count)| *sum += count);
        }
        let help = "Relay directions that copied instead of spliced, by reason";
        let mut family = encoder.encode_descriptor("fallback", help, None, MetricType::Counter)?;
        for (reason, count) in Reason::ALL.into_iter().zip(sums) {
            let labels = [("reason", reason.as_str())];
            family
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, u64, u64>(&count, None)?;
        }
        Ok(())
    }
}

impl Collector for LiveSeries {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.sessions(&mut encoder)?;
        self.bytes(&mut encoder)?;
        self.lost(&mut encoder)?;
        self.fallbacks(&mut encoder)?;
        self.datagrams(&mut encoder)?;
        self.admission(&mut encoder)?;
        pool(&mut encoder)
    }
}

fn pool(encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let stats = PipePool::global().stats();
    let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let mut pipes = encoder.encode_descriptor("pipes", "Open pipes, by state", None, MetricType::Gauge)?;
    for (state, count) in [("lent", stats.lent), ("idle", stats.idle)] {
        pipes.encode_family(&[("state", state)])?.encode_gauge(&gauge(count))?;
    }
    encoder
        .encode_descriptor("pipe_pages", "Memory pages of all open pipes", None, MetricType::Gauge)?
        .encode_gauge(&gauge(stats.pages))?;
    let help = "Events of the pipe pool; denied_* counts pipes that it could not lend";
    let mut events = encoder.encode_descriptor("pool", help, None, MetricType::Counter)?;
    let mut event = |name: &str, count: u64| {
        events
            .encode_family(&[("event", name)])?
            .encode_counter::<NoLabelSet, u64, u64>(&count, None)
    };
    event("created", stats.created)?;
    event("reused", stats.reused)?;
    event("closed_dirty", stats.closed_dirty)?;
    event("closed_idle", stats.closed_idle)?;
    // Reasons that last for a while and do not belong to one relay have a series that is 0 before
    // the first denial. Only such reasons can come from the pool.
    for reason in Reason::ALL {
        let denied = stats.denied.iter().find(|(denied, _)| *denied == reason);
        if denied.is_some() || reason.scope() != Scope::Relay {
            event(&format!("denied_{reason}"), denied.map_or(0, |(_, count)| *count))?;
        }
    }
    Ok(())
}

impl fmt::Debug for LiveSeries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.totals.iter().map(|(service, _)| service))
            .finish()
    }
}
