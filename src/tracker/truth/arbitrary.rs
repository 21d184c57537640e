//! Looks that no process could give: whatever is read, nothing panics.

use super::suspects_fault;
use super::timeline::{MS, NEVER, op_sample, runtime_sample};
use crate::conduct::{Asleep, Conduct};
use crate::counted::Counted;
use crate::evidence::ThreadLimits;
use crate::judge::calm;
use crate::lately::Share;
use crate::pool_thread::OpThread;
use crate::sample::{Frozen, Held, Machine, OpSample, RuntimeSample, Sample, Stop};
use crate::tracker::Tracker;
use proptest::prelude::*;
use proptest::sample::select;

/// Around which times: the start of the clock, and half of all that there is.
const HALF: u64 = u64::MAX / 2;

/// An instant: the beginning, shortly before or after `now`, or nonsense.
fn instant(now: u64) -> impl Strategy<Value = u64> {
    prop_oneof![
        1 => Just(0),
        6 => (0_u64..20_000 * MS).prop_map(move |ago| now.saturating_sub(ago)),
        1 => (0_u64..1_000 * MS).prop_map(move |ahead| now + ahead),
        1 => Just(HALF),
    ]
}

fn figure() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(0), 3 => 0_u64..100, 2 => 0_u64..10_000 * MS]
}

/// An op that is there, or is not.
fn index() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0_u32..4, 1 => Just(4_095), 1 => Just(u32::MAX)]
}

fn conduct() -> impl Strategy<Value = Conduct> {
    let asleep = prop_oneof![
        Just(None),
        Just(Some(Asleep::Park(8))),
        Just(Some(Asleep::Call("read"))),
        Just(Some(Asleep::Lock(8))),
        Just(Some(Asleep::Unknown(8))),
    ];
    (figure(), figure(), figure(), asleep)
        .prop_map(|(of, on_cpu, waited, asleep)| Conduct::new(of, on_cpu, waited, asleep))
}

fn counted() -> impl Strategy<Value = Counted> {
    proptest::collection::vec(figure(), 14).prop_map(|figures| Counted {
        long_polls: figures[0],
        long_poll_time: figures[1],
        late_polls: figures[2],
        late_poll_time: figures[3],
        dominated: figures[4],
        dominated_wait: figures[5],
        long_waits: figures[6],
        long_wait_time: figures[7],
        unpolled: figures[8],
        started: figures[9],
        ended: figures[10],
        execution_time: figures[11],
        cpu: figures[12],
        cpu_known_execution: figures[13],
        nested: figures[0],
        abandoned: figures[9],
        ..Counted::default()
    })
}

fn op(now: u64, at: u32) -> impl Strategy<Value = OpSample> {
    let some = || proptest::option::of(instant(now));
    let noted = || proptest::option::of(index());
    let waiting = (figure(), figure(), figure(), some(), some(), some());
    let others = (noted(), noted(), noted(), noted(), any::<bool>(), figure());
    (counted(), waiting, others, figure(), conduct()).prop_map(move |(counted, waiting, others, waited, conduct)| {
        let runtime = select_runtime(at);
        OpSample {
            counted,
            executing: waiting.0,
            queued: waiting.1,
            waits: waiting.2,
            oldest_queued: waiting.3,
            oldest_wait: waiting.4,
            oldest_woken: waiting.5,
            nested_in: others.0,
            late_behind: others.1,
            waiter: others.2,
            holder: others.3,
            nested_made: others.4,
            nested_now: others.5,
            without_cpu: waited,
            ended_conduct: conduct,
            ..op_sample(at, "some", runtime)
        }
    })
}

/// Half of the ops are of no runtime, or of one that is not seen.
fn select_runtime(at: u32) -> Option<usize> {
    [Some(0), Some(2), None, Some(1)][at as usize % 4]
}

fn held(now: u64) -> impl Strategy<Value = Vec<Held>> {
    let one = (index(), instant(now), conduct(), select(vec![0, 8]), any::<bool>());
    let one =
        one.prop_map(|(op, since, conduct, address, steps)| Held { conduct, address, steps, ..Held::new(op, since) });
    proptest::collection::vec(one, 0..6)
}

fn runtime(now: u64, at: usize) -> impl Strategy<Value = RuntimeSample> {
    let frozen = (instant(now), any::<bool>(), proptest::option::of(conduct()), proptest::option::of(instant(now)))
        .prop_map(|(since, started, conduct, one_sleep)| Frozen {
            worker: 0,
            since,
            seen_since: since,
            started,
            one_poll: None,
            one_sleep,
            conduct,
            whom: None,
        });
    let some = || proptest::option::of(figure());
    let pool = (some(), some(), some(), some(), proptest::option::of(instant(now)));
    let late = (some(), some(), any::<bool>(), any::<bool>(), any::<bool>());
    let workers = (figure(), figure(), figure(), proptest::collection::vec(frozen, 0..4));
    (workers, pool, late).prop_map(move |(workers, pool, late)| RuntimeSample {
        parked: workers.1,
        depth: workers.2,
        frozen: workers.3,
        cap: pool.0,
        pool_threads: pool.1,
        pool_idle: pool.2,
        canary: pool.3,
        canary_passed: pool.4,
        beat_late: late.0,
        probe: late.1,
        current_thread: late.2,
        refused: late.3.then(ThreadLimits::default),
        canary_waits: late.4,
        ..runtime_sample(at, workers.0)
    })
}

/// One look, `after` the one before.
fn sample(now: u64, after: u64) -> impl Strategy<Value = Sample> {
    let ops = (0_usize..=4).prop_flat_map(move |many| (0..many as u32).map(|at| op(now, at)).collect::<Vec<_>>());
    let runtimes = (0_usize..=2).prop_flat_map(move |many| (0..many).map(|at| runtime(now, at)).collect::<Vec<_>>());
    let some = || proptest::option::of(figure());
    let machine = (some(), some(), some(), some(), some()).prop_map(move |(throttled, steal, own, idle, faults)| {
        Machine { of: after, throttled, steal, own, idle, major_faults: faults, ..Machine::default() }
    });
    let stop = (0_u64..1_000 * MS, some(), some()).prop_map(move |(took, cpu, major_faults)| Stop {
        from: now.saturating_sub(took),
        to: now,
        cpu,
        major_faults,
        wanted: cpu,
    });
    let given = || proptest::collection::vec(index(), 0..3);
    let seen = (held(now), held(now), given(), given());
    let told = (proptest::option::of(machine), proptest::option::of(stop), any::<bool>(), 0_u64..65);
    let thread = (figure(), figure(), conduct());
    (ops, runtimes, seen, told, thread).prop_map(move |(ops, runtimes, seen, told, thread)| {
        let mut sample = Sample {
            now,
            previous: now.saturating_sub(after),
            late: told.2,
            overdue: seen.0,
            executions: seen.1,
            given_away: seen.2,
            given_at: seen.3.into_iter().map(|op| (op, now)).collect(),
            ops,
            runtimes,
            machine: told.0,
            cpus: told.3,
            stop: told.1,
            long_poll_limit: 25 * MS,
            queue_wait_limit: 50 * MS,
            threads: vec![OpThread { op: 1, without_cpu: Share { part: thread.0, of: thread.1 }, conduct: thread.2 }],
            ..Sample::default()
        };
        if let Some(stop) = sample.stop {
            sample.pauses.add(stop.from, stop.to);
            sample.stops.add(stop.from, stop.to);
        }
        sample
    })
}

fn samples() -> impl Strategy<Value = (u64, Vec<Sample>)> {
    let begin = prop_oneof![Just(0), 0_u64..100, Just(HALF), Just(HALF - 3_000 * MS)];
    let gaps = proptest::collection::vec(prop_oneof![4 => Just(5 * MS), 1 => Just(0), 1 => 0_u64..8_000 * MS], 1..25);
    (begin, gaps).prop_flat_map(|(begin, gaps)| {
        let mut now = begin;
        let looks = gaps.into_iter().map(|gap| {
            now += gap;
            sample(now, gap)
        });
        (Just(begin), looks.collect::<Vec<_>>())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn no_look_is_too_strange((begin, samples) in samples(), window in select(vec![1, 5 * MS, 1_000 * MS, NEVER])) {
        let mut tracker = Tracker::new(begin, 0, 5 * MS, window);
        let mut last = begin;
        for sample in &samples {
            last = sample.now;
            for change in tracker.look(sample) {
                prop_assert_eq!(suspects_fault(&change.incident().diagnosis), None);
                prop_assert!(!change.incident().to_string().is_empty());
            }
        }
        for incident in tracker.incidents() {
            prop_assert_eq!(suspects_fault(&incident.diagnosis), None);
        }
        prop_assert!(!calm::judge(tracker.facts(), &[]).evidence.is_empty());
        tracker.finish(last);
        prop_assert!(!tracker.is_open());
    }
}
