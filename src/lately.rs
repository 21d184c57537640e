//! Figures of the recent past: of this stretch of time and of the one before, so that what is long over is forgotten.

/// A figure that is added up over this stretch of time and the one before.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Lately<T> {
    pub(crate) now: T,
    pub(crate) before: T,
}

/// What can be added up.
pub(crate) trait Plus: Copy + Default {
    fn plus(self, more: Self) -> Self;
}

impl Plus for u64 {
    fn plus(self, more: Self) -> Self {
        self.saturating_add(more)
    }
}

impl<T: Plus> Lately<T> {
    pub(crate) fn add(&mut self, more: T) {
        self.now = self.now.plus(more);
    }

    /// A new stretch begins.
    pub(crate) fn turn(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }

    pub(crate) fn recent(&self) -> T {
        self.now.plus(self.before)
    }
}

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

/// A part of a whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) part: u64,
    pub(crate) of: u64,
}

impl Plus for Share {
    fn plus(self, more: Self) -> Self {
        Self { part: self.part + more.part, of: self.of + more.of }
    }
}

impl Share {
    /// Whether the part is at least `percent` of it; not where nothing is known.
    pub(crate) fn is_at_least(self, percent: u64) -> bool {
        self.of > 0 && self.part.saturating_mul(100) >= self.of.saturating_mul(percent)
    }

    /// In percent; none where nothing is known.
    pub(crate) fn percent(self) -> Option<u64> {
        self.part.saturating_mul(100).checked_div(self.of).map(|percent| percent.min(100))
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_is_remembered_for_a_stretch_and_forgotten_after_the_next() {
        let (mut peak, mut sum) = (Peak::default(), Lately::<u64>::default());
        peak.see(7);
        peak.see(3);
        sum.add(7);
        sum.add(3);
        assert_eq!((peak.recent(), peak.ever(), sum.recent()), (7, 7, 10));
        peak.turn();
        sum.turn();
        peak.see(2);
        sum.add(2);
        assert_eq!((peak.recent(), sum.recent()), (7, 12));
        peak.turn();
        sum.turn();
        assert_eq!((peak.recent(), peak.ever(), sum.recent()), (2, 7, 2));
    }

    #[test]
    fn a_share_of_nothing_is_unknown() {
        assert!(Share { part: 30, of: 100 }.is_at_least(30) && !Share { part: 29, of: 100 }.is_at_least(30));
        assert!(!Share::default().is_at_least(0));
        assert_eq!((Share::default().percent(), Share { part: 3, of: 2 }.percent()), (None, Some(100)));
    }
}
