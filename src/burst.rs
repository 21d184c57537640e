//! Whether an op makes up for all at once that it missed while the process was stopped.

use crate::sample::OpSample;

/// So long after a stop it is looked at, once so much time has passed.
const AFTER: u64 = 60_000_000;
/// A poll that the stop fell into has ended by then: it took all that time.
const SETTLED: u64 = 20_000_000;
const UNTIL: u64 = 400_000_000;
/// It is a burst from so many times the usual share of a CPU on, and so many percent of one more.
const TIMES: u64 = 3;
const MORE: u64 = 20;

/// How busy the futures of one op keep their workers.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Busy {
    /// How long they had been polled, and when that was told.
    last: Option<(u64, u64)>,
    /// How long they are polled in a second as a rule, in nanoseconds.
    usual: Option<u64>,
    /// How long they had been polled when the stop was over, and when that was told.
    at_stop: Option<(u64, u64)>,
    /// How long a single one of its polls has been without a CPU since, at most: who is kept from running catches up with
    /// nothing, and a burst is many polls. One that was too long may have been so all of its time.
    lost: u64,
    /// How many of its polls had been too long then, and for how long.
    long_at_stop: (u64, u64),
}

const SECOND: u64 = 1_000_000_000;

impl Busy {
    /// Takes in a look. `stop` is the end of the last stop. Tells whether this is a burst.
    pub(crate) fn see(&mut self, op: &OpSample, now: u64, stop: Option<u64>) -> bool {
        let Some(time) = op.poll_time else { return false };
        let since_stop = stop.map(|stop| now.saturating_sub(stop)).filter(|since| *since < UNTIL);
        let Some(since) = since_stop else {
            if let Some((before, at)) = self.last.replace((time, now))
                && stop.is_none_or(|stop| at > stop)
                && now > at
            {
                self.usual = Some(time.saturating_sub(before).saturating_mul(SECOND) / (now - at));
            }
            (self.at_stop, self.lost) = (None, 0);
            return false;
        };
        // The next second begins afresh.
        self.last = None;
        if since < SETTLED {
            return false;
        }
        let (long, long_time) = (op.counted.long_polls, op.counted.long_poll_time);
        if self.at_stop.is_some() {
            let (polls, time) =
                (long.saturating_sub(self.long_at_stop.0), long_time.saturating_sub(self.long_at_stop.1));
            self.lost = self.lost.max(op.without_cpu).max(time.checked_div(polls).unwrap_or(0));
        } else {
            self.long_at_stop = (long, long_time);
        }
        let (from, at) = *self.at_stop.get_or_insert((time, now));
        let polled = time.saturating_sub(from).saturating_sub(self.lost);
        let rate = polled.saturating_mul(SECOND) / now.saturating_sub(at).max(1);
        let much = |usual: u64| rate >= usual * TIMES && rate >= usual + SECOND / 100 * MORE;
        since >= AFTER && self.usual.is_some_and(much)
    }
}
