//! Switches for the benchmark: a build with `--cfg spliceway_switches` can turn single heuristics off
//! to measure what each is worth. Every other build has all of them, at no cost.

/// A part of the engine that makes some load faster and that is correct without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heuristic {
    /// Pauses reading from a fast sender, so that it writes ahead.
    Rests,
    /// Measures from which size on a message costs less by splice than by copy.
    MessageMeter,
    /// Lets a flow move 4 MiB in one poll where few flows and no messages share the thread.
    LongTurns,
    /// Keeps pipes at 256 KiB while the sink is slow, by the clock.
    BackpressureClock,
    /// Grows pipes with the flow.
    PipeSizes,
    /// Polls a source before a splice that may find nothing.
    ReadinessProbes,
    /// Looks for urgent marks behind short receives.
    UrgentMarkCheck,
}

/// Whether a benchmark turned it off.
#[cfg(not(spliceway_switches))]
#[inline(always)]
#[must_use]
pub const fn is_off(_: Heuristic) -> bool {
    false
}

/// Whether a benchmark turned it off: `SPLICEWAY_OFF` has a list of names, separated by commas.
#[cfg(spliceway_switches)]
#[must_use]
pub fn is_off(heuristic: Heuristic) -> bool {
    static OFF: std::sync::LazyLock<String> =
        std::sync::LazyLock::new(|| std::env::var("SPLICEWAY_OFF").unwrap_or_default());
    OFF.split(',').any(|name| name == format!("{heuristic:?}"))
}
