//! A limit on lines about one event.

use std::time::Duration;

use tokio::time::Instant;

/// Lets at most one line per [`LogThrottle::EVERY`] through.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle {
    last: Option<Instant>,
}

impl LogThrottle {
    pub(crate) const EVERY: Duration = Duration::from_secs(10);

    /// Returns whether to log a line now.
    pub(crate) fn admits(&mut self, now: Instant) -> bool {
        let admits = self.last.is_none_or(|last| now - last >= Self::EVERY);
        if admits {
            self.last = Some(now);
        }
        admits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_in_ten_seconds_is_admitted() {
        let (mut throttle, start) = (LogThrottle::default(), Instant::now());
        let mut admits = |after| throttle.admits(start + after);
        assert!(admits(Duration::ZERO) && !admits(LogThrottle::EVERY / 2) && admits(LogThrottle::EVERY));
    }
}
