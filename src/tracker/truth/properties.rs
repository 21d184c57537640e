//! What holds for every history.

use super::poll::Does::{self, HasNoCpu, Locks, Parks, SleepsIn, Unknown};
use super::station::Work::{self, Both, Computes, Loops, Sleeps, WaitsFor};
use super::suspects_fault;
use super::timeline::{MS, NEVER, Timeline};
use crate::cause::Cause;
use crate::incident::{Incident, IncidentChange};
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// What can happen.
#[derive(Debug, Clone, Copy)]
enum Event {
    Calls(usize, usize, Work),
    Callers(usize, usize, Work),
    Poll(usize, u64, Does),
    DriverPoll(usize, u64, Does),
    HiddenPoll(u64, Does),
    Asks(usize, u64),
    ComesLate(usize, usize, u64),
    Stop(u64),
    Late(u64),
    Pass(u64),
}

const OPS: [&str; 4] = ["first", "second", "third", "fourth"];

fn work() -> impl Strategy<Value = Work> {
    prop_oneof![
        (1_u64..400).prop_map(Computes),
        (0_u64..1_000).prop_map(Sleeps),
        (1_u64..200, 1_u64..200).prop_map(|(computes, sleeps)| Both(computes, sleeps)),
        Just(Loops),
        (0..OPS.len(), 1_u64..300).prop_map(|(inner, takes)| WaitsFor(inner, takes)),
    ]
}

fn does() -> impl Strategy<Value = Does> {
    prop_oneof![
        Just(Does::Computes),
        Just(SleepsIn("read")),
        Just(Locks(8)),
        Just(Parks),
        (0_u64..=100).prop_map(HasNoCpu),
        Just(Unknown),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let op = || 0..OPS.len();
    let takes = || prop_oneof![8 => 0_u64..600, 1 => Just(NEVER)];
    prop_oneof![
        3 => (op(), 1_usize..12, work()).prop_map(|(op, many, work)| Event::Calls(op, many, work)),
        1 => (op(), 1_usize..6, work()).prop_map(|(op, many, work)| Event::Callers(op, many, work)),
        3 => (op(), takes(), does()).prop_map(|(op, takes, does)| Event::Poll(op, takes, does)),
        1 => (op(), takes(), does()).prop_map(|(op, takes, does)| Event::DriverPoll(op, takes, does)),
        1 => (takes(), does()).prop_map(|(takes, does)| Event::HiddenPoll(takes, does)),
        1 => (op(), 0_u64..500).prop_map(|(op, keeps)| Event::Asks(op, keeps)),
        1 => (op(), op(), 25_u64..500).prop_map(|(op, behind, late)| Event::ComesLate(op, behind, late)),
        1 => (10_u64..800).prop_map(Event::Stop),
        1 => (10_u64..200).prop_map(Event::Late),
        8 => (5_u64..1_500).prop_map(Event::Pass),
    ]
}

/// A runtime of two workers with a pool of so many threads, and what happens on it.
fn tell(threads: usize, is_known: bool, events: &[Event], mut look: impl FnMut(&Timeline)) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let pool = if is_known { time.known_pool(runtime, threads) } else { time.pool(runtime, threads) };
    let permits = time.permits(1);
    let ops = OPS.map(|name| time.op(name, runtime));
    let wait = time.op("permit", runtime);
    for event in events {
        match *event {
            Event::Calls(op, many, work) => time.calls(pool, ops[op], many, work),
            // Without an end to a call there is none to what goes on at one time.
            Event::Callers(_, _, Sleeps(0)) => {}
            Event::Callers(op, many, work) => time.keep_calling(pool, ops[op], many, work),
            Event::Poll(op, takes, does) => drop(time.poll(runtime, ops[op], takes, does)),
            Event::DriverPoll(op, takes, does) => time.poll(runtime, ops[op], takes, does).holds_driver = true,
            Event::HiddenPoll(takes, does) => drop(time.poll(runtime, None, takes, does)),
            Event::Asks(op, keeps) => time.asks(permits, Some(wait), ops[op], keeps, false),
            Event::ComesLate(op, behind, late) => time.came_late(ops[op], Some(ops[behind]), late),
            Event::Stop(millis) => time.stop(millis),
            Event::Late(millis) => time.be_late(millis),
            Event::Pass(millis) => time.pass(millis),
        }
        look(&time);
    }
    time
}

/// The life of every incident is one opening, then updates, and one closing, and its totals do not shrink.
#[derive(Debug, Default)]
struct Lives {
    totals: HashMap<u64, (u64, Duration)>,
    closed: HashSet<u64>,
}

impl Lives {
    fn grows(&mut self, incident: &Incident) -> Result<(), TestCaseError> {
        let (calls, delay) = self.totals.entry(incident.id).or_default();
        prop_assert!(incident.calls >= *calls && incident.delay >= *delay, "{incident} after {calls} {delay:?}");
        (*calls, *delay) = (incident.calls, incident.delay);
        Ok(())
    }

    fn change(&mut self, change: &IncidentChange) -> Result<(), TestCaseError> {
        let incident: &Arc<Incident> = change.incident();
        prop_assert_ne!(incident.id, 0);
        let is_known = self.totals.contains_key(&incident.id);
        prop_assert_eq!(is_known, !matches!(change, IncidentChange::Opened(_)), "{}", incident);
        prop_assert!(!self.closed.contains(&incident.id), "{} after its end", incident);
        if matches!(change, IncidentChange::Closed(_)) {
            self.closed.insert(incident.id);
        }
        prop_assert_eq!(suspects_fault(&incident.diagnosis), None);
        self.grows(incident)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn an_incident_is_opened_and_closed_once_and_only_grows(
        threads in 1_usize..6,
        is_known in any::<bool>(),
        events in proptest::collection::vec(event(), 1..40),
    ) {
        let mut lives = Lives::default();
        let mut seen = 0;
        let mut failed = Ok(());
        let mut time = tell(threads, is_known, &events, |time| {
            let mut take = || {
                for change in &time.changes[seen..] {
                    lives.change(change)?;
                }
                seen = time.changes.len();
                for incident in time.tracker.incidents().iter().filter(|it| it.id > 0) {
                    lives.grows(incident)?;
                }
                prop_assert_eq!(suspects_fault(&time.answer()), None);
                Ok(())
            };
            if failed.is_ok() {
                failed = take();
            }
        });
        failed?;
        for change in time.tracker.finish(time.sample.now + MS) {
            lives.change(&change)?;
        }
        prop_assert_eq!(lives.closed.len(), lives.totals.len());
        prop_assert!(!time.tracker.is_open());
    }

    /// However the process is stopped, and however little CPU its threads get: no op is to blame for it.
    #[test]
    fn nobody_is_accused_where_a_stop_or_a_lack_of_cpu_explains_all(
        events in proptest::collection::vec(
            prop_oneof![
                3 => (0..OPS.len(), 0_u64..600, 97_u64..=100)
                    .prop_map(|(op, takes, percent)| Event::Poll(op, takes, HasNoCpu(percent))),
                2 => (0..OPS.len(), 0_u64..20, does()).prop_map(|(op, takes, does)| Event::Poll(op, takes, does)),
                3 => (0..OPS.len(), 1_usize..4, 1_u64..40)
                    .prop_map(|(op, many, takes)| Event::Calls(op, many, Sleeps(takes))),
                1 => (0..OPS.len(), 0_u64..20).prop_map(|(op, keeps)| Event::Asks(op, keeps)),
                2 => (10_u64..3_000).prop_map(Event::Stop),
                1 => (10_u64..200).prop_map(Event::Late),
                6 => (100_u64..1_000).prop_map(Event::Pass),
            ],
            1..40,
        ),
    ) {
        // No more than two polls at once hold all workers, and no more than a few calls wait for the pool.
        let calm: Vec<Event> = events.iter().flat_map(|event| [*event, Event::Pass(150)]).collect();
        let time = tell(8, true, &calm, |_| {});
        let changed = time.changes.iter().map(|change| change.incident().clone());
        for incident in changed.chain(time.tracker.incidents()) {
            prop_assert!(incident.diagnosis.culprits.is_empty(), "{}", incident);
            let right = matches!(incident.cause, Cause::ProcessPaused | Cause::CpuContention);
            prop_assert!(right, "{}", incident);
        }
        let answer = time.answer();
        prop_assert!(answer.culprits.is_empty(), "{}", answer.evidence);
    }
}
