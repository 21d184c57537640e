//! Waits of one op that stay pending for too long.

use super::{Look, Toll, culprit, victim};
use crate::judge::{self, Verdict};
use crate::sample::Site;

#[derive(Debug)]
pub(super) struct Waits {
    op: u32,
    site: Option<Site>,
    /// What has ended.
    ended: u64,
    ended_time: u64,
    /// What is pending at the last look, and for how long the oldest is; the most and the longest of all looks.
    pending: u64,
    age: u64,
    most: u64,
    longest: u64,
    waiter: Option<u32>,
    holder: Option<u32>,
}

impl Waits {
    pub(super) fn new(op: u32) -> Self {
        let (site, waiter, holder) = (None, None, None);
        Self { op, site, ended: 0, ended_time: 0, pending: 0, age: 0, most: 0, longest: 0, waiter, holder }
    }

    pub(super) fn see(&mut self, look: &Look<'_>) -> Toll {
        if let Some((op, fresh)) = look.op(self.op) {
            self.site = Some(op.site);
            self.ended += fresh.long_waits;
            self.ended_time += fresh.long_wait_time;
            (self.pending, self.age) = (op.waits, op.wait_age(look.sample.now));
            self.most = self.most.max(self.pending);
            self.longest = self.longest.max(self.age);
            (self.waiter, self.holder) = (op.waiter.or(self.waiter), op.holder.or(self.holder));
        }
        Toll { calls: self.ended + self.pending, delay: self.ended_time + self.age, longest: self.age, news: false }
    }

    pub(super) fn judge(&self, look: &Look<'_>, calls: u64) -> Option<(Option<Site>, Verdict)> {
        let site = self.site?;
        let noted = |at: Option<u32>| at.and_then(|at| look.sample.op(at)).map(|op| op.site);
        let waiter = noted(self.waiter);
        // Who waits again is given it in turns; that it has it now nobody knows.
        let holder = noted(self.holder).filter(|holder| waiter.is_none_or(|waiter| waiter.index != holder.index));
        let waits = judge::wait::Waits {
            resource: culprit(&site, "resource", self.most, self.longest, None),
            holder: holder.map(|holder| culprit(&holder, "occupant", 1, 0, None)),
            waiter: waiter.map(|waiter| victim(&waiter, calls, self.ended_time + self.age)),
            calls,
            now: self.pending,
        };
        Some((Some(site), judge::wait::judge(waits)))
    }
}
