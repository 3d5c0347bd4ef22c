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

/// What the kernel says about this process. A value that it does not say has no series.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Process {
    cpu_seconds: f64,
    started_seconds: Option<f64>,
    memory: Option<Memory>,
    open_descriptors: Option<u64>,
    descriptors_max: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Memory {
    virtual_bytes: u64,
    resident_bytes: u64,
}

impl Process {
    /// Asks the kernel. This may take milliseconds in a process with many descriptors, if the
    /// kernel is older than 6.2.
    pub(super) fn read(started: SystemTime) -> Self {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let started = started.duration_since(SystemTime::UNIX_EPOCH);
        Self {
            #[expect(clippy::cast_precision_loss, reason = "years of nanoseconds have 53 bits")]
            cpu_seconds: cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9,
            started_seconds: started.ok().map(|since| since.as_secs_f64()),
            memory: Memory::read(),
            open_descriptors: open_descriptors(),
            descriptors_max: getrlimit(Resource::Nofile).current,
        }
    }
}

impl Memory {
    fn read() -> Option<Self> {
        let pages = fs::read_to_string("/proc/self/statm").ok()?;
        let mut pages = pages.split_whitespace().map(str::parse::<u64>);
        let page = rustix::param::page_size() as u64;
        Some(Self {
            virtual_bytes: pages.next()?.ok()? * page,
            resident_bytes: pages.next()?.ok()? * page,
        })
    }
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

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Processor time of the process, in user space and in the kernel";
        encoder
            .encode_descriptor("process_cpu", help, Some(&Unit::Seconds), MetricType::Counter)?
            .encode_counter::<NoLabelSet, f64, u64>(&self.cpu_seconds, None)?;
        let mut gauge = |name, help, unit: Option<&Unit>, value: Option<f64>| {
            let Some(value) = value else {
                return Ok(());
            };
            encoder
                .encode_descriptor(name, help, unit, MetricType::Gauge)?
                .encode_gauge(&value)
        };
        #[expect(clippy::cast_precision_loss, reason = "counts and sizes of a process have 53 bits")]
        let float = |value: u64| value as f64;
        let (bytes, seconds) = (Some(&Unit::Bytes), Some(&Unit::Seconds));
        let help = "Time at which the process started, since 1970";
        gauge("process_start_time", help, seconds, self.started_seconds)?;
        let memory = |value: fn(Memory) -> u64| self.memory.map(value).map(float);
        let help = "Memory of the process that is in RAM";
        gauge(
            "process_resident_memory",
            help,
            bytes,
            memory(|memory| memory.resident_bytes),
        )?;
        let help = "Address space of the process";
        gauge(
            "process_virtual_memory",
            help,
            bytes,
            memory(|memory| memory.virtual_bytes),
        )?;
        let help = "Open file descriptors";
        gauge("process_open_fds", help, None, self.open_descriptors.map(float))?;
        let help = "Limit on open file descriptors";
        gauge("process_max_fds", help, None, self.descriptors_max.map(float))
    }
}
