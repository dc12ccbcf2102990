//! How much waits in front of a link while a call runs: bytes that were handed over and not acknowledged, averaged over time.

use std::time::{Duration, Instant};

/// Looked at no more often than this.
const BEAT: Duration = Duration::from_millis(1);

/// See the module's essay.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    last: Option<(Instant, u64)>,
    seconds: f64,
    byte_seconds: f64,
}

impl Backlog {
    /// Whether it is time to look again.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.last.is_none_or(|(at, _)| now.saturating_duration_since(at) >= BEAT)
    }

    /// So many bytes wait now.
    pub(super) fn note(&mut self, now: Instant, bytes: u64) {
        if let Some((at, before)) = self.last.replace((now, bytes)) {
            let seconds = now.saturating_duration_since(at).as_secs_f64();
            self.seconds += seconds;
            self.byte_seconds += seconds * (before as f64 + bytes as f64) / 2.0;
        }
    }

    /// On average.
    pub(super) fn mean(&self) -> u64 {
        if self.seconds > 0.0 { (self.byte_seconds / self.seconds) as u64 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_weighs() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut backlog = Backlog::default();
        assert!(backlog.is_due(start) && backlog.mean() == 0);
        backlog.note(at(0), 1_000);
        backlog.note(at(100), 1_000);
        backlog.note(at(400), 0);
        backlog.note(at(1_000), 0);
        assert_eq!(backlog.mean(), 250, "100 of 0.1, 500 of 0.3 and nothing of 0.6 seconds");
        assert!(!backlog.is_due(at(1_000)) && backlog.is_due(at(1_001)));
    }
}
