//! Figures of the recent past: of this stretch of time and of the one before, so that what is long over is forgotten.

/// The largest value lately.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Peak {
    now: u64,
    before: u64,
    /// The largest of all.
    ever: u64,
}

impl Peak {
    pub(crate) fn see(&mut self, value: u64) {
        self.now = self.now.max(value);
        self.ever = self.ever.max(value);
    }

    /// A new stretch begins.
    pub(crate) fn turn(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }

    pub(crate) fn recent(&self) -> u64 {
        self.now.max(self.before)
    }

    pub(crate) fn ever(&self) -> u64 {
        self.ever
    }
}

/// How many calls a pool has: waiting or executing at once, and executing at once.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Crowd {
    pub(crate) at_once: Peak,
    pub(crate) executing: Peak,
}

impl Crowd {
    pub(crate) fn see(&mut self, queued: u64, executing: u64) {
        self.at_once.see(queued + executing);
        self.executing.see(executing);
    }

    pub(crate) fn turn(&mut self) {
        self.at_once.turn();
        self.executing.turn();
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_peak_is_remembered_for_a_stretch_and_forgotten_after_the_next() {
        let mut peak = Peak::default();
        peak.see(7);
        peak.see(3);
        assert_eq!((peak.recent(), peak.ever()), (7, 7));
        peak.turn();
        peak.see(2);
        assert_eq!(peak.recent(), 7);
        peak.turn();
        assert_eq!((peak.recent(), peak.ever()), (2, 7));
    }
}
