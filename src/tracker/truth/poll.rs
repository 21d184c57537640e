//! Polls, and what their threads do.

use crate::conduct::{Asleep, Conduct};

/// What the thread of a poll does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Does {
    Computes,
    /// It sleeps in this system call.
    SleepsIn(&'static str),
    /// The same again and again, each time for a moment.
    NapsIn(&'static str),
    /// It waits for the lock at this address.
    Locks(u64),
    /// It waits until another thread wakes it.
    Parks,
    /// It is ready to run and has no CPU for so many percent of the time; the rest it computes.
    HasNoCpu(u64),
    /// Nobody knows.
    Unknown,
}

impl Does {
    pub(super) fn conduct(self, of: u64) -> Conduct {
        match self {
            Self::Computes => Conduct::new(of, of, 0, None),
            Self::SleepsIn(call) | Self::NapsIn(call) => Conduct::new(of, 0, 0, Some(Asleep::Call(call))),
            Self::Locks(address) => Conduct::new(of, 0, 0, Some(Asleep::Lock(address))),
            Self::Parks => Conduct::new(of, 0, 0, Some(Asleep::Park(0))),
            Self::HasNoCpu(percent) => Conduct::new(of, of * (100 - percent) / 100, of * percent / 100, None),
            Self::Unknown => Conduct::default(),
        }
    }

    /// Whether it sleeps without a break.
    pub(super) fn sleeps_on(self) -> bool {
        matches!(self, Self::SleepsIn(_) | Self::Locks(_) | Self::Parks)
    }

    pub(super) fn without_cpu(self, of: u64) -> u64 {
        if let Self::HasNoCpu(percent) = self { of * percent / 100 } else { 0 }
    }
}

/// One poll.
#[derive(Debug, Clone, Copy)]
pub(super) struct Poll {
    /// None where nobody wrapped it: then its worker shows.
    pub(super) op: Option<usize>,
    pub(super) runtime: usize,
    pub(super) since: u64,
    pub(super) ends: u64,
    pub(super) does: Does,
    /// Up to when its thread's conduct has been taken, and how long it has been without a CPU so far.
    pub(super) taken: u64,
    pub(super) waited: u64,
    /// It was looked at while it went on.
    pub(super) observed: bool,
    pub(super) steps: bool,
    /// A future was polled inside it with another waker.
    pub(super) by_hand: bool,
    pub(super) given_away: bool,
    /// Its worker was the one that watched the timers.
    pub(super) holds_driver: bool,
    /// Whose poll comes right behind it, and how late that is.
    pub(super) delays: Option<(usize, u64)>,
}

impl Poll {
    /// One that begins at `since`.
    pub(super) fn new(op: Option<usize>, runtime: usize, since: u64, ends: u64, does: Does) -> Self {
        let (taken, waited, delays) = (since, 0, None);
        let (observed, steps, by_hand, given_away, holds_driver) = (false, false, false, false, false);
        Self {
            op,
            runtime,
            since,
            ends,
            does,
            taken,
            waited,
            observed,
            steps,
            by_hand,
            given_away,
            holds_driver,
            delays,
        }
    }
}
