//! What a thread did in a stretch of time: it computed, it was ready and had no CPU, or it slept, and in what.

use crate::lately::Plus;

/// What a thread sleeps in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asleep {
    /// Waiting for a lock at this address.
    Lock(u64),
    /// Waiting to be woken by another thread: parked, as who runs a future by hand is. At this address, where it is known.
    Park(u64),
    /// In this system call.
    Call(&'static str),
    /// In a wait of which it is not known what for; at this address, where that is known.
    Unknown(u64),
}

/// How a thread spent a stretch of time, in nanoseconds. Sums of many such stretches are one, too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Conduct {
    pub(crate) of: u64,
    pub(crate) on_cpu: u64,
    /// Ready to run, without a CPU.
    pub(crate) waited: u64,
    pub(crate) locked: u64,
    pub(crate) parked: u64,
    pub(crate) called: u64,
    /// The system call it was last seen in.
    pub(crate) call: Option<&'static str>,
    /// Where it was last seen to wait for a lock, or for it is not known what.
    pub(crate) address: u64,
}

/// What a thread mostly does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    Computing,
    Blocked,
    Locked,
    Parked,
    /// It sleeps, and it is not known in what.
    Asleep,
}

impl Plus for Conduct {
    fn plus(self, more: Self) -> Self {
        Self {
            of: self.of + more.of,
            on_cpu: self.on_cpu + more.on_cpu,
            waited: self.waited + more.waited,
            locked: self.locked + more.locked,
            parked: self.parked + more.parked,
            called: self.called + more.called,
            call: more.call.or(self.call),
            address: if more.address == 0 { self.address } else { more.address },
        }
    }
}

impl Conduct {
    /// A stretch of `of`, of which the thread was on a CPU for `on_cpu` and waited for one for `waited`; the rest it slept.
    pub(crate) fn new(of: u64, on_cpu: u64, waited: u64, asleep: Option<Asleep>) -> Self {
        let (on_cpu, waited) = (on_cpu.min(of), waited.min(of.saturating_sub(on_cpu)));
        let mut this = Self { of, on_cpu, waited, ..Self::default() };
        let slept = of - on_cpu - waited;
        match asleep {
            Some(Asleep::Lock(address)) => (this.locked, this.address) = (slept, address),
            Some(Asleep::Park(address)) => (this.parked, this.address) = (slept, address),
            Some(Asleep::Call(call)) => (this.called, this.call) = (slept, Some(call)),
            Some(Asleep::Unknown(address)) => this.address = address,
            None => {}
        }
        this
    }

    /// The share of the time it had a CPU or slept that it computed, in percent; none where nothing is known.
    pub(crate) fn cpu_percent(&self) -> Option<u64> {
        (self.on_cpu * 100).checked_div(self.of.saturating_sub(self.waited))
    }

    /// What it mostly did of the time in which it was not short of a CPU; none where nothing is known.
    pub(crate) fn manner(&self) -> Option<Manner> {
        let had = self.of.saturating_sub(self.waited);
        if had == 0 {
            return None;
        }
        let slept = had - self.on_cpu.min(had);
        if self.on_cpu >= slept {
            return Some(Manner::Computing);
        }
        // Who sleeps now in this, now in that is told by what it slept in for longest.
        let unknown = slept.saturating_sub(self.locked + self.parked + self.called);
        let of_all = [
            (self.locked, Manner::Locked),
            (self.parked, Manner::Parked),
            (self.called, Manner::Blocked),
            (unknown, Manner::Asleep),
        ];
        of_all.into_iter().max_by_key(|(slept, _)| *slept).map(|(_, manner)| manner)
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_told_by_what_it_does_with_the_time_in_which_it_may() {
        let manner = |on_cpu, waited, asleep| Conduct::new(330, on_cpu, waited, asleep).manner();
        assert_eq!(manner(300, 0, None), Some(Manner::Computing));
        assert_eq!(manner(4, 326, None), Some(Manner::Computing));
        assert_eq!(manner(0, 330, Some(Asleep::Park(8))), None);
        assert_eq!(manner(3, 10, Some(Asleep::Call("read"))), Some(Manner::Blocked));
        assert_eq!(manner(3, 10, Some(Asleep::Lock(8))), Some(Manner::Locked));
        assert_eq!(manner(3, 10, Some(Asleep::Park(8))), Some(Manner::Parked));
        assert_eq!(manner(3, 10, Some(Asleep::Unknown(8))), Some(Manner::Asleep));
        assert_eq!(Conduct::default().manner(), None);
    }

    #[test]
    fn stretches_add_up() {
        let all = Conduct::new(100, 0, 0, Some(Asleep::Call("write"))).plus(Conduct::new(50, 40, 0, None));
        assert_eq!((all.of, all.on_cpu, all.call, all.cpu_percent()), (150, 40, Some("write"), Some(26)));
        assert_eq!(all.manner(), Some(Manner::Blocked));
    }
}
