//! How long threads of this process wanted a CPU and had none: what takes several of them one after the other may be
//! slow for that alone, though none of them is ever looked at closely.
//!
//! The kernel keeps a sum for each thread since its start, so readings of all of them are kept and compared.

use crate::evidence::{self, CpuTime, TIMER_TICK};
use crate::pause::Pauses;
use crate::{clock, slot};
use std::collections::VecDeque;

/// So many threads are read, and so many readings kept.
const THREADS: usize = 256;
const KEPT: usize = 64;
/// The least time between two readings while something waits, while nothing does, and while nothing is in flight.
const CLOSE: u64 = 20_000_000;
const LOOSE: u64 = 100_000_000;
const IDLE: u64 = 500_000_000;
/// A reading may cost one such part of the time until the next. What is not read may all be lost up to [`LOOSE`], so where
/// something waits it may cost more to read as often as that, up to the last of these.
const CLOSE_PART: u64 = 200;
const LOOSE_PART: u64 = 1_000;
const DEAR_PART: u64 = 50;

/// All threads at one moment, but the observer's own; by their ids.
#[derive(Debug)]
struct Reading {
    at: u64,
    threads: Vec<(u32, CpuTime)>,
}

/// How a thread has fared between two readings.
#[derive(Debug, Clone, Copy)]
struct Wait {
    tid: u32,
    waited: u64,
    on_cpu: u64,
}

/// The readings, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Shortage {
    readings: VecDeque<Reading>,
    /// Threads that have run something watched, at the last reading; by their ids.
    serving: Vec<u32>,
    /// What the last reading cost.
    cost: u64,
}

impl Shortage {
    /// Reads all threads if it is time to. Some 7 us a thread where something waits, otherwise half of that.
    pub(crate) fn look(&mut self, now: u64, something_waits: bool, busy: bool) {
        let parts = |part: u64| self.cost.saturating_mul(part);
        let least = match (something_waits, busy) {
            (true, _) => CLOSE.max(parts(CLOSE_PART)).min(LOOSE.max(parts(DEAR_PART))),
            (false, true) => LOOSE.max(parts(LOOSE_PART)),
            (false, false) => IDLE.max(parts(LOOSE_PART)),
        };
        let due = |last: &Reading| now.saturating_sub(last.at) >= least;
        // A single one tells of no time yet.
        if self.readings.len() < 2 || self.readings.back().is_none_or(due) {
            // Who is ready for a CPU now matters only to what waits by now.
            self.read_by(now, if something_waits { evidence::cpu_time } else { evidence::cpu_sums });
        }
    }

    /// Reads all threads.
    pub(crate) fn read(&mut self, now: u64) {
        self.read_by(now, evidence::cpu_time);
    }

    fn read_by(&mut self, now: u64, of: fn(u32) -> Option<CpuTime>) {
        let (own, before) = (evidence::thread_id(), clock::thread_cpu());
        let Some(mut ids) = evidence::threads() else { return };
        ids.retain(|tid| Some(*tid) != own);
        ids.sort_unstable();
        let threads = ids.into_iter().take(THREADS).filter_map(|tid| Some((tid, of(tid)?))).collect();
        self.add(now, threads, slot::all().filter_map(slot::Slot::tid).collect());
        self.cost = clock::thread_cpu().zip(before).map_or(0, |(now, before)| now.saturating_sub(before));
    }

    /// Takes in a reading, its threads in the order of their ids.
    pub(crate) fn add(&mut self, at: u64, threads: Vec<(u32, CpuTime)>, mut serving: Vec<u32>) {
        serving.sort_unstable();
        self.serving = serving;
        if self.readings.len() == KEPT {
            self.readings.pop_front();
        }
        self.readings.push_back(Reading { at, threads });
    }

    /// For how much of the time since `since` one and the same thread wanted a CPU and had none, at most.
    pub(crate) fn of_one(&self, since: u64, now: u64, stops: &Pauses) -> u64 {
        self.lost(since, now, stops, |waits| waits.map(|wait| wait.waited).max().unwrap_or(0))
    }

    /// The same as far as it has been read: where a delay is not to be explained away too easily.
    pub(crate) fn of_one_as_read(&self, since: u64, stops: &Pauses) -> u64 {
        let read = self.readings.back().map_or(0, |last| last.at);
        self.of_one(since.min(read), read, stops)
    }

    /// The same of a thread that has had none at all, so that it cannot have begun what it was woken for. Threads that take
    /// the CPU from each other are none such.
    pub(crate) fn of_waking(&self, since: u64, now: u64, stops: &Pauses) -> u64 {
        let waking = |wait: &Wait| wait.on_cpu <= TIMER_TICK;
        self.lost(since, now, stops, |waits| waits.filter(waking).map(|wait| wait.waited).max().unwrap_or(0))
    }

    /// The same of all threads together that run what is watched: what is handed from one to the next is late by no more.
    pub(crate) fn of_all(&self, since: u64, now: u64, stops: &Pauses) -> u64 {
        let serves = |tid: u32| self.serving.binary_search(&tid).is_ok();
        self.lost(since, now, stops, |waits| {
            waits.filter(|wait| serves(wait.tid)).fold(0, |sum: u64, wait| sum.saturating_add(wait.waited))
        })
    }

    /// How long of a wait that was over by `now` is lost, by what such a sum says. A wait that goes on is asked after again
    /// once more has been read; of this one that is said once. So of the time that nobody has read yet as much counts as
    /// was lost between the last two readings, not all of it: where reading is dear most of a short wait is not read.
    pub(crate) fn of_ended(&self, since: u64, now: u64, lost: impl Fn(&Self, u64, u64) -> u64) -> u64 {
        let mut latest = self.readings.iter().rev().map(|reading| reading.at);
        let (Some(last), Some(previous)) = (latest.next(), latest.next()) else { return lost(self, since, now) };
        let read = lost(self, since.min(last), last);
        let (unread, elapsed) = (now.saturating_sub(last.max(since)), last - previous);
        let share = u128::from(lost(self, previous, last)) * u128::from(unread) / u128::from(elapsed.max(1));
        read.saturating_add(share as u64).min(now.saturating_sub(since))
    }

    /// The longest that a thread had waited by the last reading, since one well before `since`: the reading next to that may
    /// itself have been held up by what began then.
    pub(crate) fn longest_ended(&self, since: u64) -> Option<u64> {
        let earlier = self.readings.partition_point(|reading| reading.at <= since);
        let before = self.readings.get(earlier.saturating_sub(2)).filter(|before| before.at <= since)?;
        let ended = |(tid, time): &(u32, CpuTime)| Some(time.waited.saturating_sub(before.of(*tid)?.waited));
        self.readings.back()?.threads.iter().filter_map(ended).max()
    }

    fn lost(&self, since: u64, now: u64, stops: &Pauses, sum: impl Fn(&mut dyn Iterator<Item = Wait>) -> u64) -> u64 {
        let Some(last) = self.readings.back() else { return 0 };
        // Who is ready now may have slept until this moment, unless it was ready before.
        let previous = self.readings.len().checked_sub(2).and_then(|at| self.readings.get(at));
        let goes_on = |tid: u32| previous.and_then(|reading| reading.of(tid)).is_some_and(|time| time.runnable);
        let later = self.readings.partition_point(|reading| reading.at <= since);
        let lost = self.readings.get(later.saturating_sub(1)).filter(|first| first.at < last.at).map_or(0, |first| {
            let elapsed = (last.at - first.at).saturating_sub(stops.since(first.at));
            let waited = |(tid, time): &(u32, CpuTime)| {
                // A thread that is new has had all of it since. One that has never had a CPU cannot have slept either.
                let before = first.of(*tid);
                let unborn = before.is_none() && time.runnable && time.on_cpu == 0 && time.waited == 0;
                let elapsed = if before.is_some() || unborn { elapsed } else { 0 };
                let before = before.unwrap_or(CpuTime { on_cpu: 0, waited: 0, runnable: false, turns: 0 });
                let on_cpu = time.on_cpu.saturating_sub(before.on_cpu);
                let time = CpuTime { runnable: time.runnable && (unborn || goes_on(*tid)), ..*time };
                Wait { tid: *tid, waited: time.without_cpu_since(&before, elapsed), on_cpu }
            };
            sum(&mut last.threads.iter().map(waited))
        });
        // Of the time since nobody knows yet: it is read soon. Where reading is dear, and so rare, not all of it is lost.
        let unread = now.saturating_sub(last.at.max(since)).min(LOOSE);
        lost.saturating_add(unread).min(now.saturating_sub(since))
    }
}

impl Reading {
    fn of(&self, tid: u32) -> Option<CpuTime> {
        self.threads.binary_search_by_key(&tid, |(tid, _)| *tid).ok().map(|at| self.threads[at].1)
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn time(on_cpu: u64, waited: u64, runnable: bool) -> CpuTime {
        CpuTime { on_cpu: on_cpu * MS, waited: waited * MS, runnable, turns: 0 }
    }

    fn read(told: &[(u64, &[(u32, CpuTime)])]) -> Shortage {
        let mut shortage = Shortage::default();
        for (at, threads) in told {
            shortage.add(at * MS, threads.to_vec(), vec![2, 1]);
        }
        shortage
    }

    #[test]
    fn of_what_is_over_only_so_much_is_lost_unread_as_was_lost_until_then() {
        let read = |shares: [u64; 3]| {
            let mut shortage = Shortage::default();
            let mut waited = 0;
            for (look, share) in shares.into_iter().enumerate() {
                waited += share;
                shortage.add(look as u64 * 100 * MS, vec![(1, time(0, waited, false))], Vec::new());
            }
            shortage
        };
        let (calm, short) = (read([0, 0, 4]), read([0, 0, 90]));
        let by_waking = |of: &Shortage, since, now| of.of_waking(since, now, &Pauses::default());
        let ended = |shortage: &Shortage, since| shortage.of_ended(since * MS, 280 * MS, by_waking) / MS;
        // A wait of 75 ms, none of it read, and one of 180 ms of which the last 80 are not.
        assert_eq!([ended(&calm, 205), ended(&short, 205)], [3, 67]);
        assert_eq!([ended(&calm, 100), ended(&short, 100)], [7, 162]);
        // Of one that goes on all of it may be.
        assert_eq!(calm.of_waking(205 * MS, 280 * MS, &Pauses::default()) / MS, 75);
        // Where there is nothing to go by, too.
        let mut first = Shortage::default();
        first.add(0, vec![(1, time(0, 0, false))], Vec::new());
        assert_eq!(first.of_ended(10 * MS, 60 * MS, by_waking) / MS, 50);
    }

    #[test]
    fn one_thread_can_be_late_by_its_own_waits_and_a_chain_by_those_of_all() {
        let shortage = read(&[
            (100, &[(1, time(0, 5, false)), (2, time(0, 0, false)), (3, time(0, 0, false))]),
            (200, &[(1, time(10, 35, false)), (2, time(10, 20, false)), (3, time(10, 60, false))]),
        ]);
        let lost = |since: u64, now: u64| {
            let (since, now, stops) = (since * MS, now * MS, &Pauses::default());
            (shortage.of_one(since, now, stops) / MS, shortage.of_all(since, now, stops) / MS)
        };
        // The third runs nothing that is watched.
        assert_eq!(lost(100, 200), (60, 50));
        assert_eq!(shortage.of_one_as_read(100 * MS, &Pauses::default()), 60 * MS);
        assert_eq!(shortage.of_one_as_read(205 * MS, &Pauses::default()), 0);
        // What has not been read may all have been so, and it is never more than there was time.
        assert_eq!(lost(100, 220), (80, 70));
        assert_eq!(lost(170, 200), (30, 30));
        assert_eq!(lost(205, 210), (5, 5));
        assert_eq!([150, 50].map(|since| shortage.longest_ended(since * MS)), [Some(60 * MS), None]);
    }

    #[test]
    fn a_wait_that_goes_on_counts_and_a_stop_is_none() {
        let told = [(100, &[(1, time(0, 0, true))][..]), (400, &[(1, time(10, 0, true))])];
        let (shortage, mut stops) = (read(&told), Pauses::default());
        assert_eq!(shortage.of_one(100 * MS, 400 * MS, &stops), 280 * MS);
        stops.add(110 * MS, 390 * MS);
        assert_eq!(shortage.of_one(100 * MS, 400 * MS, &stops), 0);
        assert_eq!(shortage.longest_ended(400 * MS), Some(0));
    }

    #[test]
    fn who_has_just_woken_slept_before_and_what_is_not_read_is_not_all_lost() {
        let lost = |was_ready, now| {
            let told = [(100, &[(1, time(0, 0, was_ready))][..]), (1_000, &[(1, time(0, 0, true))])];
            read(&told).of_one(100 * MS, now * MS, &Pauses::default()) / MS
        };
        assert_eq!([lost(false, 1_000), lost(true, 1_000)], [0, 890]);
        assert_eq!([lost(false, 1_040), lost(false, 3_000)], [40, 100]);
    }

    #[test]
    fn who_computes_meanwhile_was_not_to_be_woken() {
        let lost = |on_cpu| {
            let told = [(100, &[(1, time(0, 0, false))][..]), (200, &[(1, time(on_cpu, 80, false))])];
            read(&told).of_waking(100 * MS, 200 * MS, &Pauses::default())
        };
        assert_eq!([lost(5), lost(15)], [80 * MS, 0]);
    }

    #[test]
    fn a_new_thread_has_waited_since_it_is_there_and_without_readings_nobody_has() {
        let told = [(100, &[][..]), (200, &[(2, time(1, 40, false))])];
        assert_eq!(read(&told).of_all(100 * MS, 200 * MS, &Pauses::default()), 40 * MS);
        // One that has not come by a CPU at all has no sum yet.
        let told = [(100, &[][..]), (200, &[(2, time(0, 0, true))])];
        assert_eq!(read(&told).of_waking(100 * MS, 200 * MS, &Pauses::default()), 100 * MS - TIMER_TICK);
        assert_eq!(Shortage::default().of_one(0, 100 * MS, &Pauses::default()), 0);
        assert_eq!(Shortage::default().longest_ended(0), None);
    }

    #[test]
    fn readings_are_bounded_and_rare_where_nothing_waits() {
        let mut shortage = Shortage::default();
        for at in 1..=1_000 {
            shortage.look(at * MS, false, true);
        }
        let read = shortage.readings.len();
        assert!(read <= 10, "{read}");
        for at in 0..1_000 {
            shortage.add((1_000 + at) * MS, Vec::new(), Vec::new());
        }
        assert_eq!(shortage.readings.len(), KEPT);
    }
}
