//! The metrics of the process, with the names that all clients of Prometheus use.

use std::fmt;
use std::fs;
use std::time::SystemTime;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

/// The gauges, each with its help text.
const GAUGES: [(&str, &str, Option<Unit>); 5] = [
    (
        "process_start_time",
        "Time at which the process started, since 1970",
        Some(Unit::Seconds),
    ),
    (
        "process_resident_memory",
        "Memory of the process that is in RAM",
        Some(Unit::Bytes),
    ),
    (
        "process_virtual_memory",
        "Address space of the process",
        Some(Unit::Bytes),
    ),
    ("process_open_fds", "Open file descriptors", None),
    ("process_max_fds", "Limit on open file descriptors", None),
];

/// What the kernel says about this process. A value that it does not say has no series.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProcessMetrics {
    cpu_seconds: f64,
    /// The values of [`GAUGES`].
    gauges: [Option<f64>; GAUGES.len()],
}

#[expect(
    clippy::cast_precision_loss,
    reason = "counts, sizes and years of nanoseconds have 53 bits"
)]
impl ProcessMetrics {
    /// Asks the kernel. This may take milliseconds in a process with many descriptors, if the
    /// kernel is older than 6.2.
    pub(super) fn read(started: SystemTime) -> Self {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let started = started.duration_since(SystemTime::UNIX_EPOCH).ok();
        let [virtual_bytes, resident_bytes] = memory().map_or([None; 2], |bytes| bytes.map(Some));
        let float = |value: u64| value as f64;
        Self {
            cpu_seconds: cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9,
            gauges: [
                started.map(|since| since.as_secs_f64()),
                resident_bytes.map(float),
                virtual_bytes.map(float),
                open_descriptors().map(float),
                getrlimit(Resource::Nofile).current.map(float),
            ],
        }
    }
}

/// Returns the virtual and the resident memory, in bytes.
fn memory() -> Option<[u64; 2]> {
    let pages = fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = pages.split_whitespace().map(str::parse::<u64>);
    let page = rustix::param::page_size() as u64;
    Some([pages.next()?.ok()? * page, pages.next()?.ok()? * page])
}

fn open_descriptors() -> Option<u64> {
    const FOLDER: &str = "/proc/self/fd";
    // Since Linux 6.2, the size of the folder is the number of descriptors.
    let count = fs::metadata(FOLDER).ok()?.len();
    if count > 0 {
        return Some(count);
    }
    // The folder includes the descriptor that lists it.
    Some((fs::read_dir(FOLDER).ok()?.count() as u64).saturating_sub(1))
}

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Processor time of the process, in user space and in the kernel";
        encoder
            .encode_descriptor("process_cpu", help, Some(&Unit::Seconds), MetricType::Counter)?
            .encode_counter::<NoLabelSet, f64, u64>(&self.cpu_seconds, None)?;
        for ((name, help, unit), value) in GAUGES.iter().zip(self.gauges) {
            if let Some(value) = value {
                encoder
                    .encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?
                    .encode_gauge(&value)?;
            }
        }
        Ok(())
    }
}
