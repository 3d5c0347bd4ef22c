//! One row for each attack, and the limits that the attack exceeded.

use std::time::Duration;

use crate::attacks::Attack;
use crate::probe::Latencies;
use crate::program::Usage;

/// The longest permitted round trip of a probe, the same for every attack. The limit detects a
/// probe that waits for one of the program's deadlines, the shortest of which is 3 s. See also
/// [`SMALL`](crate::attacks::SMALL).
const LONGEST: Duration = Duration::from_millis(2500);
/// The longest permitted duration of a `/healthz` request. A service manager's health check times
/// out after a second or more.
const HEALTH: Duration = Duration::from_millis(1000);
/// Descriptors beyond those for attackers: three for each current session or lookup of a probe.
const DESCRIPTORS_BESIDE: usize = 96;
/// The program may use 1/10 of a core in addition to the CPU time of the attack's connections. The
/// probes use about 4 %.
const CPU_SHARE: u32 = 10;

/// The outcome of one attack.
pub(crate) struct Outcome {
    pub(crate) attack: &'static Attack,
    pub(crate) quick: bool,
    pub(crate) attempts: u64,
    pub(crate) lasted: Duration,
    pub(crate) probes: Latencies,
    pub(crate) health: Latencies,
    pub(crate) before: Usage,
    pub(crate) peak: Usage,
    pub(crate) after: Usage,
    pub(crate) ready: bool,
    pub(crate) ended: Result<Duration, String>,
}

/// A number with its limit.
struct Cell {
    column: &'static str,
    value: u64,
    limit: u64,
}

const WIDTHS: [usize; 12] = [24, 8, 6, 10, 7, 11, 12, 12, 9, 16, 9, 13];

pub(crate) fn head() -> String {
    let columns = [
        "attack",
        "connects",
        "probes",
        "failed",
        "p50 ms",
        "p99 ms",
        "max ms",
        "healthz ms",
        "RSS +MiB",
        "descriptors",
        "after",
        "CPU ms",
    ];
    line(&columns.map(str::to_owned)) + "  ready  TERM"
}

fn line(cells: &[String; 12]) -> String {
    let cells = cells.iter().zip(WIDTHS).enumerate();
    let cells = cells.map(|(at, (cell, width))| match at {
        0 => format!("{cell:<width$}"),
        _ => format!("{cell:>width$}"),
    });
    cells.collect::<Vec<_>>().join(" ")
}

impl Outcome {
    pub(crate) fn row(&self) -> String {
        let [failed, p99, longest, _, health, rss, descriptors, after, cpu] = self.cells();
        let ended = match &self.ended {
            Ok(took) => format!("0 in {} ms", took.as_millis()),
            Err(why) => why.clone(),
        };
        let cells = [
            self.attack.name.to_owned(),
            self.attempts.to_string(),
            self.probes.count().to_string(),
            failed.to_string(),
            self.probes.percentile(50).as_millis().to_string(),
            p99.to_string(),
            longest.to_string(),
            health.to_string(),
            rss.to_string(),
            format!("{} {descriptors}", self.before.descriptors),
            after.to_string(),
            cpu.to_string(),
        ];
        line(&cells) + &format!("  {:<5}  {ended}", if self.ready { "yes" } else { "NO" })
    }

    fn cells(&self) -> [Cell; 9] {
        let limits = &self.attack.limits;
        let cell = |column, value, limit| Cell { column, value, limit };
        let time = |column, value: Duration, limit: Duration| cell(column, millis(value), millis(limit));
        let rss = self
            .peak
            .rss_kib
            .max(self.after.rss_kib)
            .saturating_sub(self.before.rss_kib);
        let descriptors = self.before.descriptors + self.attack.at_once * limits.descriptors_each + DESCRIPTORS_BESIDE;
        let attempts = u32::try_from(self.attempts).unwrap_or(u32::MAX);
        let hashes = u32::try_from(self.probes.count()).unwrap_or(u32::MAX);
        let cpu = self.lasted / CPU_SHARE + limits.cpu_each * (attempts + hashes);
        [
            cell("failed probes", self.probes.failed as u64, 0),
            time("p99 ms of the probes", self.probes.percentile(99), limits.p99),
            time("max ms of the probes", self.probes.percentile(100), LONGEST),
            cell("failed requests for /healthz", self.health.failed as u64, 0),
            time("max ms of /healthz", self.health.percentile(100), HEALTH),
            cell("MiB of RSS more than before", rss >> 10, limits.rss_mib),
            cell(
                "descriptors during the attack",
                self.peak.descriptors as u64,
                descriptors as u64,
            ),
            cell(
                "descriptors after the attack",
                self.after.descriptors as u64,
                self.before.descriptors as u64,
            ),
            time("ms of CPU", self.after.cpu.saturating_sub(self.before.cpu), cpu),
        ]
    }

    /// Describes the limits that were exceeded.
    pub(crate) fn failures(&self) -> Vec<String> {
        let form = if self.quick { " (quick)" } else { "" };
        let name = self.attack.name;
        let broken = self.cells().into_iter().filter(|cell| cell.value > cell.limit);
        let broken =
            broken.map(|Cell { column, value, limit }| format!("{name}{form}: {column}: {value}, limit {limit}"));
        let mut failures: Vec<String> = broken.collect();
        let whys = [("probe", &self.probes.why), ("/healthz", &self.health.why)];
        failures.extend(
            whys.iter()
                .filter_map(|(who, why)| Some(format!("{name}{form}: first {who}: {}", why.as_ref()?))),
        );
        if !self.ready {
            failures.push(format!("{name}{form}: /readyz does not say ready after the attack"));
        }
        if let Err(why) = &self.ended {
            failures.push(format!("{name}{form}: TERM: {why}, expected exit code 0 or 3"));
        }
        failures
    }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.value, self.limit)
    }
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
