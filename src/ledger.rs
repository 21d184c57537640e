//! Where a watched future's time went: six classes that sum to the whole, exactly.
//!
//! At any instant the future is in one class. While it is polled, and from its waking to the next poll, only its own
//! thread has to know; those times are plain integers in a [`Tally`]. Between a poll and the waking it depends on what
//! the future waits for, which other threads change: see [`gap`](crate::gap).
//!
//! What a [`Gap`] has moved on but not yet added up is `owed`: the tally knows the length of every gap, and what the
//! additions lack of it is carried until they arrive. A future that ends within those nanoseconds books what is owed
//! under `other`, so that the sum is right in that case, too.

use crate::gap::{CLASSES, Class, Gap};
use std::time::Duration;

/// Where a future's wall time went.
///
/// At any instant a future is in exactly one of these classes, the first that applies:
/// being polled ([`polling`](Self::polling)); woken and not yet polled ([`scheduled`](Self::scheduled)); some blocking
/// call that it made is executing ([`blocking_execution`](Self::blocking_execution)); some is queued
/// ([`blocking_queue`](Self::blocking_queue)); an [`instrument_wait`](crate::instrument_wait) inside it is pending
/// ([`waiting`](Self::waiting)); anything else, such as sockets and timers ([`other`](Self::other)). Hence the six sum
/// to [`total`](Self::total), to the nanosecond.
///
/// A call reports to every watched future in whose polls it was made, from the moment it is made until it ends or its
/// handle is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Ledger {
    /// Inside `Future::poll`, and in the future's drop.
    #[cfg_attr(feature = "serde", serde(rename = "polling_us", serialize_with = "crate::wire::us"))]
    pub polling: Duration,
    /// Woken, or spawned, and not yet polled.
    #[doc(alias = "scheduling delay")]
    #[cfg_attr(feature = "serde", serde(rename = "scheduled_us", serialize_with = "crate::wire::us"))]
    pub scheduled: Duration,
    /// Some blocking call waits for a thread, and none is executing.
    #[cfg_attr(feature = "serde", serde(rename = "blocking_queue_us", serialize_with = "crate::wire::us"))]
    pub blocking_queue: Duration,
    /// Some blocking call is executing.
    #[cfg_attr(feature = "serde", serde(rename = "blocking_execution_us", serialize_with = "crate::wire::us"))]
    pub blocking_execution: Duration,
    /// Some [`instrument_wait`](crate::instrument_wait) is pending, and no blocking call is under way.
    #[cfg_attr(feature = "serde", serde(rename = "waiting_us", serialize_with = "crate::wire::us"))]
    pub waiting: Duration,
    /// None of the others: sockets, timers, channels, and everything that nobody wrapped.
    #[cfg_attr(feature = "serde", serde(rename = "other_us", serialize_with = "crate::wire::us"))]
    pub other: Duration,
    /// From the future's creation to its end: the sum of the six.
    #[cfg_attr(feature = "serde", serde(rename = "total_us", serialize_with = "crate::wire::us"))]
    pub total: Duration,
    /// How often it was polled.
    pub polls: u64,
    /// The longest of its polls.
    #[cfg_attr(feature = "serde", serde(rename = "longest_poll_us", serialize_with = "crate::wire::us"))]
    pub longest_poll: Duration,
}

/// The ledger of several futures together; `longest_poll` is the longest of any.
impl std::ops::AddAssign for Ledger {
    fn add_assign(&mut self, more: Self) {
        self.polling += more.polling;
        self.scheduled += more.scheduled;
        self.blocking_queue += more.blocking_queue;
        self.blocking_execution += more.blocking_execution;
        self.waiting += more.waiting;
        self.other += more.other;
        self.total += more.total;
        self.polls += more.polls;
        self.longest_poll = self.longest_poll.max(more.longest_poll);
    }
}

impl std::iter::Sum for Ledger {
    fn sum<I: Iterator<Item = Self>>(ledgers: I) -> Self {
        ledgers.fold(Self::default(), |mut sum, ledger| {
            sum += ledger;
            sum
        })
    }
}

/// A future's own account. Every method takes the time; none reads a clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tally {
    born: u64,
    /// Up to where the time is accounted for.
    edge: u64,
    polling: u64,
    longest: u64,
    polls: u64,
    spent: [u64; CLASSES],
    /// How much of the gap's `spent` is booked.
    booked: [u64; CLASSES],
    owed: u64,
    armed: bool,
}

impl Tally {
    pub(crate) fn new(now: u64) -> Self {
        Self {
            born: now,
            edge: now,
            polling: 0,
            longest: 0,
            polls: 0,
            spent: [0; CLASSES],
            booked: [0; CLASSES],
            owed: 0,
            armed: false,
        }
    }

    /// The first poll begins. From its creation on the future was `spawned`, and so woken, or nobody had asked for it.
    pub(crate) fn begin_first(&mut self, now: u64, spawned: bool, gap: &Gap) -> u64 {
        gap.take_woken();
        let waited = now.saturating_sub(self.edge);
        self.spent[if spawned { Class::Scheduled } else { Class::Other } as usize] += waited;
        self.edge += waited;
        waited
    }

    /// A poll begins, or the drop. `woken` is from [`Gap::take_woken`]. Returns how long the future had been woken.
    #[inline]
    pub(crate) fn begin(&mut self, now: u64, woken: u64, gap: &Gap) -> u64 {
        if self.armed {
            return self.begin_armed(now, woken, gap);
        }
        let now = now.max(self.edge);
        let at = self.woken_at(now, woken);
        self.spent[Class::Other as usize] += at - self.edge;
        self.spent[Class::Scheduled as usize] += now - at;
        self.edge = now;
        now - at
    }

    #[inline]
    fn woken_at(&self, now: u64, woken: u64) -> u64 {
        if woken == 0 { now } else { woken.max(self.edge).min(now) }
    }

    #[cold]
    fn begin_armed(&mut self, now: u64, woken: u64, gap: &Gap) -> u64 {
        self.armed = false;
        let now = self.disarm(now, woken, gap);
        let at = self.woken_at(now, woken);
        self.edge = now;
        now - at
    }

    /// Books an armed gap, which ends now; returns when that is.
    fn disarm(&mut self, now: u64, woken: u64, gap: &Gap) -> u64 {
        let (since, class) = gap.disarm().unwrap_or((self.edge, Class::Other));
        let since = since.max(self.edge);
        // Clocks of two cores may differ by a little: what others have accounted for stays.
        let now = now.max(since);
        // The last stretch is nobody else's. A waking that did not find the word armed still counts from its time on.
        let at = match class {
            Class::Scheduled => since,
            _ if woken != 0 => woken.clamp(since, now),
            _ => now,
        };
        self.spent[class as usize] += at - since;
        self.spent[Class::Scheduled as usize] += now - at;
        // The stretches before it were added to the gap's sums, or will be (invariant 3).
        self.owed += since - self.edge;
        self.book(gap);
        now
    }

    fn book(&mut self, gap: &Gap) {
        for ((spent, booked), shared) in self.spent.iter_mut().zip(&mut self.booked).zip(&gap.spent) {
            // Acquire: pairs with the Release of `Gap::settle`.
            let sum = shared.load(crate::sync::Ordering::Acquire);
            let fresh = sum - *booked;
            *spent += fresh;
            *booked = sum;
            self.owed = self.owed.saturating_sub(fresh);
        }
    }

    /// The poll that began last ends.
    #[inline]
    pub(crate) fn end(&mut self, now: u64, gap: &Gap) -> u64 {
        let took = self.end_last(now);
        let woken = gap.end_poll();
        if gap.busy() {
            self.armed = true;
            gap.arm(self.edge, woken);
        }
        took
    }

    /// The drop that began last ends, and with it the future.
    #[inline(always)]
    pub(crate) fn end_drop(&mut self, now: u64) -> u64 {
        let took = now.saturating_sub(self.edge);
        self.polling += took;
        self.edge += took;
        took
    }

    #[inline(always)]
    fn end_last(&mut self, now: u64) -> u64 {
        let took = self.end_drop(now);
        self.longest = self.longest.max(took);
        self.polls += 1;
        took
    }

    /// The account as it stands. What is owed stands under `other`.
    pub(crate) fn ledger(&self) -> Ledger {
        let of = |class: Class| Duration::from_nanos(self.spent[class as usize]);
        Ledger {
            polling: Duration::from_nanos(self.polling),
            scheduled: of(Class::Scheduled),
            blocking_queue: of(Class::Queue),
            blocking_execution: of(Class::Execution),
            waiting: of(Class::Waiting),
            other: of(Class::Other) + Duration::from_nanos(self.owed),
            total: Duration::from_nanos(self.edge - self.born),
            polls: self.polls,
            longest_poll: Duration::from_nanos(self.longest),
        }
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::*;
    use crate::gap::Change;
    use proptest::prelude::*;

    fn sum(ledger: &Ledger) -> Duration {
        ledger.polling
            + ledger.scheduled
            + ledger.blocking_queue
            + ledger.blocking_execution
            + ledger.waiting
            + ledger.other
    }

    const QUEUED: Change = Change { queued: 1, executing: 0, waits: 0 };
    const STARTED: Change = Change { queued: -1, executing: 1, waits: 0 };
    const FINISHED: Change = Change { queued: 0, executing: -1, waits: 0 };
    const WAITS: Change = Change { queued: 0, executing: 0, waits: 1 };
    const WAITED: Change = Change { queued: 0, executing: 0, waits: -1 };

    #[test]
    fn a_call_that_queues_64_and_executes_4_shows_so() {
        let (gap, mut tally) = (Gap::new(), Tally::new(10));
        tally.begin_first(12, true, &gap);
        gap.change(QUEUED, 13);
        tally.end(14, &gap);
        gap.change(STARTED, 78);
        gap.change(FINISHED, 82);
        gap.wake(|| 83);
        assert_eq!(tally.begin(88, gap.take_woken(), &gap), 5);
        tally.end_last(91);
        let ledger = tally.ledger();
        let nanos = Duration::from_nanos;
        let expected = Ledger {
            polling: nanos(2 + 3),
            scheduled: nanos(2 + 5),
            blocking_queue: nanos(64),
            blocking_execution: nanos(4),
            waiting: nanos(0),
            other: nanos(1),
            total: nanos(81),
            polls: 2,
            longest_poll: nanos(3),
        };
        assert_eq!(ledger, expected);
    }

    #[test]
    fn ledgers_add_up() {
        let of = |seconds| {
            let second = Duration::from_secs(seconds);
            Ledger {
                polling: second,
                waiting: second,
                total: 2 * second,
                polls: 3,
                longest_poll: second,
                ..Ledger::default()
            }
        };
        let sum: Ledger = [of(1), of(5), of(2)].into_iter().sum();
        let seconds = Duration::from_secs;
        let expected = Ledger {
            polling: seconds(8),
            waiting: seconds(8),
            total: seconds(16),
            polls: 9,
            longest_poll: seconds(5),
            ..Ledger::default()
        };
        assert_eq!(sum, expected);
    }

    #[test]
    fn executing_hides_queued_hides_waiting() {
        let (gap, mut tally) = (Gap::new(), Tally::new(0));
        tally.begin_first(0, false, &gap);
        for change in [QUEUED, QUEUED, WAITS] {
            gap.change(change, 0);
        }
        tally.end(0, &gap);
        gap.change(STARTED, 10);
        gap.change(STARTED, 15);
        gap.change(FINISHED, 30);
        gap.change(FINISHED, 70);
        gap.change(WAITED, 150);
        gap.wake(|| 300);
        tally.begin(300, gap.take_woken(), &gap);
        tally.end_last(300);
        let ledger = tally.ledger();
        assert_eq!(
            [ledger.blocking_queue, ledger.blocking_execution, ledger.waiting, ledger.other].map(|d| d.as_nanos()),
            [10, 60, 80, 150],
        );
    }

    #[test]
    fn once_woken_it_is_scheduled_whatever_its_calls_do() {
        let (gap, mut tally) = (Gap::new(), Tally::new(0));
        tally.begin_first(0, false, &gap);
        gap.change(QUEUED, 0);
        tally.end(0, &gap);
        gap.wake(|| 10);
        gap.change(STARTED, 40);
        tally.begin(100, gap.take_woken(), &gap);
        tally.end_last(100);
        let ledger = tally.ledger();
        assert_eq!((ledger.blocking_queue.as_nanos(), ledger.scheduled.as_nanos()), (10, 90));
    }

    #[test]
    fn woken_in_its_own_poll_it_is_scheduled_from_the_polls_end_on() {
        let (gap, mut tally) = (Gap::new(), Tally::new(0));
        tally.begin_first(0, false, &gap);
        gap.change(QUEUED, 0);
        gap.wake(|| 5);
        tally.end(10, &gap);
        gap.change(STARTED, 40);
        gap.change(FINISHED, 60);
        assert_eq!(tally.begin(100, gap.take_woken(), &gap), 90);
        tally.end_last(100);
        let ledger = tally.ledger();
        assert_eq!((ledger.blocking_queue.as_nanos(), ledger.scheduled.as_nanos()), (0, 90));
    }

    proptest! {
        /// Any history, with clocks that run back now and then: the classes sum to the total.
        #[test]
        fn the_classes_sum_to_the_total(
            steps in proptest::collection::vec((0_u8..8, 0_u64..1_000_000, 0_u64..2_000), 0..200),
        ) {
            let (gap, mut tally) = (Gap::new(), Tally::new(5));
            let (mut now, mut polling) = (5_u64, false);
            let (mut queued, mut executing, mut waits) = (0, 0, 0);
            tally.begin_first(5, true, &gap);
            tally.end(5, &gap);
            for (step, pause, skew) in steps {
                now += pause;
                let seen = now.saturating_sub(skew);
                match step {
                    0 if !polling => { tally.begin(seen, gap.take_woken(), &gap); polling = true; }
                    1 if polling => { tally.end(seen, &gap); polling = false; }
                    2 => { gap.change(QUEUED, seen); queued += 1; }
                    3 if queued > 0 => { gap.change(STARTED, seen); queued -= 1; executing += 1; }
                    4 if executing > 0 => { gap.change(FINISHED, seen); executing -= 1; }
                    5 => { gap.change(WAITS, seen); waits += 1; }
                    6 if waits > 0 => { gap.change(WAITED, seen); waits -= 1; }
                    _ => gap.wake(|| seen),
                }
            }
            if !polling {
                tally.begin(now, gap.take_woken(), &gap);
            }
            tally.end_last(now);
            let ledger = tally.ledger();
            prop_assert_eq!(sum(&ledger), ledger.total);
            prop_assert_eq!(tally.owed, 0);
            prop_assert!(ledger.total >= Duration::from_nanos(now - 5));
        }
    }
}

#[cfg(all(test, starvation_loom))]
mod models {
    use super::*;
    use crate::gap::Change;
    use loom::{sync::Arc, thread};

    /// A pool thread runs the future's call while the future goes to sleep, is woken and polled: the sum is exact in
    /// every interleaving, and nothing stays owed once all have finished.
    #[test]
    fn no_nanosecond_is_lost_between_a_pool_thread_and_a_poll() {
        loom::model(|| {
            let gap = Arc::new(Gap::new());
            let mut tally = Tally::new(1);
            tally.begin_first(1, true, &gap);
            gap.change(Change { queued: 1, ..Change::default() }, 2);
            let pool = {
                let gap = gap.clone();
                thread::spawn(move || {
                    gap.change(Change { queued: -1, executing: 1, waits: 0 }, 10);
                    gap.change(Change { executing: -1, ..Change::default() }, 20);
                    gap.wake(|| 21);
                })
            };
            tally.end(5, &gap);
            tally.begin(30, gap.take_woken(), &gap);
            tally.end(40, &gap);
            let early = tally.ledger();
            assert_eq!(early.total.as_nanos(), 39);
            pool.join().unwrap();
            tally.begin(50, gap.take_woken(), &gap);
            tally.end_last(60);
            tally.book(&gap);
            let ledger = tally.ledger();
            let sum = ledger.polling
                + ledger.scheduled
                + ledger.blocking_queue
                + ledger.blocking_execution
                + ledger.waiting
                + ledger.other;
            assert_eq!(sum, ledger.total);
            assert_eq!(ledger.total.as_nanos(), 59);
            assert_eq!(tally.owed, 0);
            assert_eq!(gap.class(), Class::Other);
        });
    }
}
