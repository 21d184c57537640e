//! Whoever is stuck is named while stuck: incidents open, get worse and close, each episode once.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod support;

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use starvation::{
    Cause, DEFAULT_LONG_POLL, DEFAULT_QUEUE_WAIT, Detector, Incident, IncidentChange, State, instrument_blocking_on,
    instrument_future, instrument_job, instrument_wait,
};
use support::{
    DEADLINE, Gate, MS, current_thread, eventually, exclusive, incidents_of, leak, multi_thread, occupy, until,
};
use tokio::runtime::Runtime;
use tokio::time::sleep;

fn watch(runtime: &Runtime) -> Detector {
    Detector::builder().attach(runtime.handle()).start().unwrap()
}

/// The incident that names `op` and goes on.
#[track_caller]
fn open(detector: &Detector, op: &str) -> Arc<Incident> {
    eventually("an open incident", || incidents_of(detector, op).into_iter().find(|i| i.state == State::Open))
}

/// The same, once its cause is this one. Before it may have been undetermined, as where its thread had no CPU for a moment,
/// and nothing else.
#[track_caller]
fn convicted(detector: &Detector, op: &str, cause: Cause) -> Arc<Incident> {
    eventually("a conviction", || {
        let incident = open(detector, op);
        assert!([cause, Cause::Undetermined].contains(&incident.cause), "{incident:?}");
        (incident.cause == cause).then_some(incident)
    })
}

/// The same incident, once it is over.
#[track_caller]
fn closed(detector: &Detector, id: u64) -> Arc<Incident> {
    eventually("the incident closes", || {
        detector.incidents().into_iter().find(|incident| incident.id == id && incident.state == State::Closed)
    })
}

/// Holds a thread of the pool by a wrapped call.
fn hold(runtime: &Runtime, op: &'static str, gate: &Gate) -> starvation::BlockingCall<()> {
    let (starts, has_started) = mpsc::channel();
    let keeper = gate.keeper();
    let call = instrument_blocking_on(runtime.handle(), op, move || {
        starts.send(()).unwrap();
        keeper.wait();
    });
    has_started.recv_timeout(DEADLINE).unwrap();
    call
}

#[test]
fn a_poll_that_never_ends_is_named_with_its_place_while_it_is_stuck() {
    let _one = exclusive();
    let op = "incidents::stuck";
    let runtime = multi_thread(1, 1);
    let detector = watch(&runtime);
    let gate = Gate::default();
    let keeper = gate.keeper();
    let line = line!() + 1;
    let task = runtime.spawn(instrument_future(op, async move { keeper.wait() }));
    let incident = convicted(&detector, op, Cause::LongPoll);
    assert!(!task.is_finished(), "named while it is stuck");
    assert_eq!((incident.op, incident.calls), (Some(op), 1));
    let location = incident.location.unwrap();
    assert_eq!((location.file(), location.line()), (file!(), line));
    assert_eq!(incident.runtime.unwrap().to_string(), runtime.handle().id().to_string());
    assert!(incident.delay >= DEFAULT_LONG_POLL, "{incident:?}");
    let culprit = &incident.diagnosis.culprits[0];
    assert_eq!((culprit.op, culprit.role, culprit.count), (op, "poller", 1));
    assert_eq!(detector.diagnose().cause, Cause::LongPoll);

    gate.open();
    let over = closed(&detector, incident.id);
    assert_eq!((over.op, over.calls), (Some(op), 1));
    assert!(over.delay >= incident.delay && over.duration >= incident.duration, "{over:?}");
    assert_eq!(incidents_of(&detector, op).len(), 1);
}

#[test]
fn a_future_that_never_stops_dropping_is_named_too() {
    struct Stuck(support::Keeper);
    impl Drop for Stuck {
        fn drop(&mut self) {
            self.0.wait();
        }
    }

    let _one = exclusive();
    let op = "incidents::drop";
    let runtime = multi_thread(1, 1);
    let detector = watch(&runtime);
    let gate = Gate::default();
    let stuck = Stuck(gate.keeper());
    let task = runtime.spawn(instrument_future(op, async move {
        let _stuck = stuck;
        std::future::pending::<()>().await;
    }));
    task.abort();
    let incident = convicted(&detector, op, Cause::LongPoll);
    assert_eq!(incident.op, Some(op));
    gate.open();
    closed(&detector, incident.id);
}

#[test]
fn of_nested_polls_the_innermost_that_is_overdue_is_named() {
    let _one = exclusive();
    let runtime = multi_thread(1, 1);
    let detector = watch(&runtime);
    let gate = Gate::default();
    let keeper = gate.keeper();
    let inner = instrument_future("incidents::inner", async move { keeper.wait() });
    runtime.spawn(instrument_future("incidents::outer", inner));
    let incident = open(&detector, "incidents::inner");
    gate.open();
    closed(&detector, incident.id);
    assert!(incidents_of(&detector, "incidents::outer").is_empty());
}

#[test]
fn an_outer_poll_is_not_blamed_for_what_an_inner_one_took() {
    const LIMIT: Duration = Duration::from_millis(300);
    let _one = exclusive();
    let runtime = multi_thread(1, 1);
    let detector = Detector::builder().long_poll(LIMIT).attach(runtime.handle()).start().unwrap();
    let gate = Gate::default();
    let keeper = gate.keeper();
    let outer = runtime.spawn(instrument_future("incidents::innocent", async move {
        // Short enough by itself, and long enough to be looked at: before, when only the outer one is over its limit, and
        // after.
        thread::sleep(LIMIT / 6);
        instrument_future("incidents::guilty", async move { keeper.wait() }).await;
        thread::sleep(LIMIT / 6);
    }));
    let incident = open(&detector, "incidents::guilty");
    gate.open();
    runtime.block_on(outer).unwrap();
    closed(&detector, incident.id);
    assert!(incidents_of(&detector, "incidents::innocent").is_empty(), "{:#?}", detector.incidents());
}

#[test]
fn a_job_that_a_poll_runs_itself_holds_up_its_worker() {
    let _one = exclusive();
    let op = "incidents::inline";
    let runtime = multi_thread(1, 1);
    let detector = watch(&runtime);
    let gate = Gate::default();
    let keeper = gate.keeper();
    runtime.spawn(instrument_future(op, async move { instrument_job("incidents::inlined", move || keeper.wait())() }));
    let incident = convicted(&detector, op, Cause::LongPoll);
    assert_eq!(incident.op, Some(op));
    gate.open();
}

#[test]
fn a_call_that_never_starts_names_who_holds_the_thread() {
    let _one = exclusive();
    let (holder, victim) = ("incidents::holder", "incidents::queued");
    let runtime = current_thread(1);
    let detector = watch(&runtime);
    let gate = Gate::default();
    let held = hold(&runtime, holder, &gate);
    let call = instrument_blocking_on(runtime.handle(), victim, || ());
    // Who holds the thread is told once it is known that no other is to be had.
    let incident = eventually("the holder is named", || {
        incidents_of(&detector, victim).into_iter().find(|now| now.state == State::Open && now.op == Some(holder))
    });
    assert!(!call.is_finished() && !held.is_finished());
    assert!(incident.delay >= DEFAULT_QUEUE_WAIT, "{incident:?}");
    assert_eq!((incident.diagnosis.culprits[0].op, incident.diagnosis.culprits[0].role), (holder, "occupant"));
    assert_eq!((incident.diagnosis.victims[0].op, incident.diagnosis.victims[0].calls), (victim, 1));
    gate.open();
    let over = closed(&detector, incident.id);
    // Where threads had no CPU meanwhile, the last word is that, and then it is nobody's fault.
    let named = if over.cause == Cause::CpuContention { victim } else { holder };
    assert!(over.op == Some(named), "{over:?}");
    assert_eq!(incidents_of(&detector, victim).len(), 1);
}

#[test]
fn a_call_that_never_starts_behind_unwatched_work_says_that_the_evidence_is_missing() {
    let _one = exclusive();
    let op = "incidents::behind_unwatched";
    let runtime = current_thread(1);
    let detector = watch(&runtime);
    let gate = Gate::default();
    occupy(runtime.handle(), &gate);
    drop(instrument_blocking_on(runtime.handle(), op, || ()));
    let incident = open(&detector, op);
    assert_eq!(incident.op, Some(op));
    assert!(incident.diagnosis.culprits.is_empty(), "{incident:?}");
    // Once a call of the detector's own waits, too, it is known that the pool is full.
    assert!(matches!(incident.cause, Cause::Undetermined | Cause::PoolSaturated), "{incident:?}");
    until("the pool is known to be full", || {
        incidents_of(&detector, op).iter().any(|incident| incident.cause == Cause::PoolSaturated)
    });
    gate.open();
    let over = closed(&detector, incident.id);
    assert!(over.diagnosis.culprits.is_empty(), "who had to wait is not accused: {over:?}");
}

#[test]
fn a_job_that_no_thread_takes_is_named_without_a_runtime() {
    let _one = exclusive();
    let op = "incidents::job";
    let runtime = current_thread(1);
    let detector = watch(&runtime);
    let job = instrument_job(op, || ());
    let incident = open(&detector, op);
    assert_eq!((incident.op, incident.runtime), (Some(op), None));
    job();
    closed(&detector, incident.id);
}

#[test]
fn a_wait_that_never_ends_points_downstream() {
    let _one = exclusive();
    let op = "incidents::permit";
    let runtime = multi_thread(1, 1);
    let detector = watch(&runtime);
    let task = runtime.spawn(instrument_wait(op, std::future::pending::<()>()));
    let incident = convicted(&detector, op, Cause::DownstreamLimit);
    assert_eq!((incident.op, incident.calls), (Some(op), 1));
    assert_eq!(incident.diagnosis.culprits[0].role, "resource");
    assert!(incident.delay >= DEFAULT_QUEUE_WAIT, "{incident:?}");
    task.abort();
    closed(&detector, incident.id);
}

#[test]
fn what_is_over_before_the_observer_looks_is_reported_all_the_same() {
    let _one = exclusive();
    let runtime = current_thread(1);
    // Nearly all of it happens between two looks.
    let detector = Detector::builder().tick(800 * MS).attach(runtime.handle()).start().unwrap();
    until("the observer has begun", || detector.snapshot().observer.ticks > 0);
    let queue = || {
        let gate = Gate::default();
        let held = hold(&runtime, "incidents::past_holder", &gate);
        let call = instrument_blocking_on(runtime.handle(), "incidents::past_queued", || ());
        thread::sleep(2 * DEFAULT_QUEUE_WAIT);
        gate.open();
        runtime.block_on(async { futures_util::try_join!(call, held) }).unwrap();
    };
    let poll = || runtime.block_on(instrument_future("incidents::past_poll", async { thread::sleep(100 * MS) }));
    let wait = || {
        runtime.block_on(async {
            instrument_wait("incidents::past_wait", tokio::time::sleep(2 * DEFAULT_QUEUE_WAIT)).await;
        });
    };
    type Case<'a> = (&'a str, &'a dyn Fn(), Option<Cause>);
    let cases: [Case; 3] = [
        ("incidents::past_queued", &queue, None),
        ("incidents::past_wait", &wait, Some(Cause::DownstreamLimit)),
        // The last, for it is open for twenty ticks and would excuse the wait.
        ("incidents::past_poll", &poll, Some(Cause::LongPoll)),
    ];
    for (op, happens, cause) in cases {
        // More than once only where the observer had no CPU itself: then it cannot tell who else had none.
        let incident = eventually(op, || {
            happens();
            thread::sleep(900 * MS);
            incidents_of(&detector, op).pop()
        });
        // Of what nobody saw while others of the process had no CPU, nothing more is known.
        let short = incident.detail.is_some_and(|detail| detail.contains("short of CPUs"));
        assert!(cause.is_none_or(|cause| incident.cause == cause || short), "{incident:?}");
        assert!(incident.delay >= DEFAULT_LONG_POLL && incident.calls >= 1, "{incident:?}");
    }
}

#[test]
fn a_fault_after_a_long_silence_wakes_the_observer() {
    // It stirs by itself after ten.
    const SOON: Duration = Duration::from_secs(6);
    let _one = exclusive();
    let runtime = multi_thread(1, 1);
    let detector = watch(&runtime);
    let (gate, later) = (Gate::default(), Gate::default());
    let keeper = gate.keeper();
    let wait = || drop(runtime.spawn(async { instrument_wait("incidents::silent_wait", sleep(200 * MS)).await }));
    let call = || {
        occupy(runtime.handle(), &later);
        drop(instrument_blocking_on(runtime.handle(), "incidents::silent_call", || ()));
    };
    let poll = || drop(runtime.spawn(instrument_future("incidents::silent_poll", async move { keeper.wait() })));
    wakes(&detector, "incidents::silent_wait", SOON, wait);
    wakes(&detector, "incidents::silent_poll", SOON, poll);
    gate.open();
    wakes(&detector, "incidents::silent_call", SOON, call);
}

/// After a silence in which the observer falls asleep, the beginning of a fault wakes it.
#[track_caller]
fn wakes(detector: &Detector, op: &str, soon: Duration, begin: impl FnOnce()) {
    until("all is over", || detector.incidents().iter().all(|incident| incident.state == State::Closed));
    thread::sleep(1_400 * MS);
    let begun = Instant::now();
    begin();
    eventually(op, || incidents_of(detector, op).pop());
    assert!(begun.elapsed() < soon, "only after {:?}", begun.elapsed());
}

#[test]
fn an_incident_is_updated_when_it_is_twice_as_bad_and_keeps_its_id() {
    let _one = exclusive();
    let op = "incidents::doubles";
    let runtime = multi_thread(1, 1);
    let detector = watch(&runtime);
    let mut changes = detector.subscribe();
    let gate = Gate::default();
    let keeper = gate.keeper();
    runtime.spawn(instrument_future(op, async move { keeper.wait() }));
    let mut reports = Vec::new();
    while reports.len() < 4 {
        reports.push(changes.recv_timeout(DEADLINE).unwrap());
    }
    gate.open();
    while !matches!(reports.last(), Some(IncidentChange::Closed(_))) {
        reports.push(changes.recv_timeout(DEADLINE).unwrap());
    }
    let id = reports[0].incident().id;
    assert!(
        reports.iter().all(|change| change.incident().op == Some(op) && change.incident().id == id),
        "{reports:#?}"
    );
    assert!(matches!(reports[0], IncidentChange::Opened(_)));
    for pair in reports[..reports.len() - 1].windows(2) {
        let (earlier, later) = (pair[0].incident(), pair[1].incident());
        assert!(matches!(pair[1], IncidentChange::Updated(_)));
        assert_eq!(later.state, State::Open);
        let clearer = (earlier.cause, earlier.detail) != (later.cause, later.detail);
        assert!(clearer || later.delay >= 2 * earlier.delay, "{:?} then {:?}", earlier.delay, later.delay);
    }
    assert_eq!(reports.last().unwrap().incident().state, State::Closed);
}

#[test]
fn a_storm_of_a_thousand_victims_is_one_incident() {
    let _one = exclusive();
    let (holder, victim) = ("incidents::storm_holder", "incidents::storm");
    let runtime = multi_thread(1, 1);
    let detector = watch(&runtime);
    let gate = Gate::default();
    let _held = hold(&runtime, holder, &gate);
    let calls: Vec<_> = (0..1_000).map(|_| instrument_blocking_on(runtime.handle(), victim, || ())).collect();
    let incident = open(&detector, victim);
    until("its delay doubles", || {
        incidents_of(&detector, victim).iter().any(|now| now.delay >= 2 * incident.delay && now.calls >= 1_000)
    });
    gate.open();
    runtime.block_on(async {
        for call in calls {
            call.await.unwrap();
        }
    });
    let over = closed(&detector, incident.id);
    assert_eq!(incidents_of(&detector, victim).len(), 1);
    assert!(over.calls >= 1_000 && over.suppressed >= 990, "{over:?}");
    assert_eq!((over.op, over.diagnosis.victims[0].op), (Some(holder), victim));
}

#[test]
fn a_kind_of_episode_that_comes_again_and_again_is_counted_and_not_reported() {
    let _one = exclusive();
    let op = "incidents::again";
    let runtime = current_thread(1);
    let detector = watch(&runtime);
    let mut episodes = 0;
    while detector.snapshot().observer.muted_incidents == 0 {
        runtime.block_on(instrument_future(op, async { thread::sleep(2 * DEFAULT_LONG_POLL) }));
        // An episode has ended when nothing of it was seen for twenty ticks.
        thread::sleep(150 * MS);
        episodes += 1;
        assert!(episodes < 100, "none was muted");
    }
    let told = incidents_of(&detector, op);
    assert!(told.len() < episodes && told.len() >= 2, "{} of {episodes}", told.len());
    assert!(told.is_sorted_by_key(|incident| incident.id));
}

#[test]
fn two_faults_at_once_are_two_incidents_and_the_worse_one_is_the_diagnosis() {
    let _one = exclusive();
    let runtime = multi_thread(2, 1);
    let detector = watch(&runtime);
    let gate = Gate::default();
    let first = gate.keeper();
    runtime.spawn(instrument_future("incidents::worse", async move { first.wait() }));
    let worse = convicted(&detector, "incidents::worse", Cause::LongPoll);
    until("it is twice as bad", || {
        incidents_of(&detector, "incidents::worse").iter().any(|now| now.delay >= 2 * worse.delay)
    });
    let second = gate.keeper();
    runtime.spawn(instrument_future("incidents::better", async move { second.wait() }));
    let better = convicted(&detector, "incidents::better", Cause::LongPoll);
    assert!(better.id > worse.id && better.opened_after > worse.opened_after);
    let diagnosis = detector.diagnose();
    let accused = diagnosis.culprits.first().map(|culprit| culprit.op);
    // A machine whose CPUs are short may be worse than both.
    let of_machine = matches!(diagnosis.cause, Cause::CpuContention | Cause::ProcessPaused);
    assert!(accused == Some("incidents::worse") || of_machine, "{diagnosis}");
    gate.open();
    closed(&detector, worse.id);
    closed(&detector, better.id);
}

#[test]
fn the_delay_told_in_the_end_is_that_of_the_poll_also_where_the_observer_had_nothing_to_look_at() {
    let _one = exclusive();
    let runtime = multi_thread(2, 1);
    let detector = watch(&runtime);
    for at in 0..4 {
        // Then it looks about as often as a poll may take, and the first look at this one sees it overdue.
        thread::sleep(200 * MS + at * 7 * MS);
        let op = leak(format!("incidents::after_nothing_{at}"));
        let poll = instrument_future(op, async { thread::sleep(300 * MS) }).timed();
        let ((), ledger) = runtime.block_on(runtime.spawn(poll)).unwrap();
        let told = eventually("it is closed", || {
            incidents_of(&detector, op).into_iter().find(|incident| incident.state == State::Closed)
        });
        assert!(told.delay >= ledger.longest_poll - MS, "{:?} of {:?}", told.delay, ledger.longest_poll);
    }
}

#[test]
fn a_limit_that_was_set_after_hooks_is_found_out() {
    let _one = exclusive();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime =
        starvation::hooks(&mut builder).worker_threads(1).max_blocking_threads(2).enable_all().build().unwrap();
    let detector = watch(&runtime);
    let gate = Gate::default();
    let held: Vec<_> = (0..2).map(|_| hold(&runtime, "incidents::late_limit", &gate)).collect();
    let call = instrument_blocking_on(runtime.handle(), "incidents::beyond_it", || ());
    let told = |incident: &Arc<Incident>| incident.diagnosis.evidence.contains("2 of 2 threads seen are held");
    let incident = eventually("a full pool", || detector.incidents().into_iter().find(told));
    assert!(incident.diagnosis.victims.iter().any(|victim| victim.op == "incidents::beyond_it"), "{incident}");
    gate.open();
    runtime.block_on(async {
        call.await.unwrap();
        for held in held {
            held.await.unwrap();
        }
    });
}
