//! Histories of looks, replayed.

mod advice;
mod crowded;

use super::truth::timeline::op_sample;
use super::*;
use crate::cause::Cause;
use crate::conduct::Conduct;
use crate::lately::Share;
use crate::pool_thread::OpThread;
use crate::sample::{Frozen, Held, InPoll, OpSample, RuntimeSample, Site};
use tokio::runtime;

const MS: u64 = 1_000_000;

/// A process that is looked at every 5 ms, whose state a test changes between the looks.
struct Timeline {
    tracker: Tracker,
    sample: Sample,
    changes: Vec<IncidentChange>,
}

fn site(index: u32, name: &'static str, runtime: Option<runtime::Id>) -> OpSample {
    let unknown = op_sample(index, name, None);
    OpSample { site: Site { runtime, ..unknown.site }, ..unknown }
}

impl Timeline {
    fn new(ops: Vec<OpSample>) -> Self {
        let mut this = Self {
            tracker: Tracker::new(0, 0, 5 * MS, 10_000 * MS),
            sample: Sample { ops, cpus: 2, long_poll_limit: 25 * MS, queue_wait_limit: 50 * MS, ..Sample::default() },
            changes: Vec::new(),
        };
        this.look();
        this
    }

    fn look(&mut self) {
        self.changes.extend(self.tracker.look(&self.sample));
    }

    fn pass(&mut self, millis: u64) {
        for _ in 0..millis / 5 {
            self.sample.previous = self.sample.now;
            self.sample.now += 5 * MS;
            self.look();
        }
    }

    fn told(&self) -> Vec<(&'static str, Cause, &'static str)> {
        let of = |change: &IncidentChange| match change {
            IncidentChange::Opened(_) => "opened",
            IncidentChange::Updated(_) => "updated",
            IncidentChange::Closed(_) => "closed",
        };
        self.changes.iter().map(|c| (of(c), c.incident().cause, c.incident().op.unwrap_or("none"))).collect()
    }

    fn count(&self, what: &str) -> usize {
        self.told().iter().filter(|(told, ..)| *told == what).count()
    }
}

fn runtime_id() -> runtime::Id {
    let runtime = runtime::Builder::new_current_thread().build();
    let Ok(runtime) = runtime else { panic!("a runtime without drivers needs nothing") };
    runtime.handle().id()
}

#[test]
fn nothing_over_a_limit_is_nothing_told() {
    let mut time = Timeline::new(vec![site(1, "call", None)]);
    time.sample.ops[0].queued = 1_000;
    for _ in 0..100 {
        time.sample.ops[0].oldest_queued = Some(time.sample.now.saturating_sub(40 * MS));
        time.pass(5);
    }
    assert_eq!(time.told(), []);
}

#[test]
fn a_call_that_never_starts_is_one_incident_that_doubles_and_ends() {
    let mut time = Timeline::new(vec![site(1, "queued", Some(runtime_id()))]);
    time.pass(100);
    (time.sample.ops[0].queued, time.sample.ops[0].oldest_queued) = (1, Some(100 * MS));
    time.pass(45);
    assert_eq!(time.told(), []);
    time.pass(5);
    assert_eq!(time.told(), [("opened", Cause::Undetermined, "queued")]);
    time.pass(50 * 1023);
    // 50 ms doubled ten times.
    assert_eq!(time.count("updated"), 10);
    (time.sample.ops[0].queued, time.sample.ops[0].oldest_queued) = (0, None);
    time.pass(200);
    assert_eq!((time.count("opened"), time.count("closed")), (1, 1));
    let ids: Vec<_> = time.changes.iter().map(|change| change.incident().id).collect();
    assert!(ids.iter().all(|&id| id == 1));
}

#[test]
fn a_late_observer_opens_nothing_and_an_on_time_one_does() {
    let mut time = Timeline::new(vec![site(1, "poll", None)]);
    time.sample.overdue = vec![Held::new(1, 0)];
    time.sample.late = true;
    time.pass(100);
    assert_eq!(time.told(), []);
    time.sample.late = false;
    time.pass(5);
    assert_eq!(time.told(), [("opened", Cause::LongPoll, "poll")]);
}

#[test]
fn what_ended_in_a_late_look_is_told_in_the_next_unless_the_pause_explains_it() {
    let mut time = Timeline::new(vec![site(1, "stuck", None), site(2, "paused", None)]);
    time.pass(700);
    time.sample.late = true;
    time.sample.pauses.add(500 * MS, 700 * MS);
    (time.sample.ops[0].counted.long_polls, time.sample.ops[0].counted.long_poll_time) = (1, 400 * MS);
    (time.sample.ops[1].counted.long_polls, time.sample.ops[1].counted.long_poll_time) = (1, 201 * MS);
    time.pass(5);
    assert_eq!(time.told(), []);
    time.sample.late = false;
    time.pass(5);
    // What it did nobody has seen, and the machine is one on which it may have had no CPU.
    assert_eq!(time.told(), [("opened", Cause::Undetermined, "stuck")]);
    assert_eq!(time.changes[0].incident().delay.as_millis(), 400);
}

#[test]
fn a_poll_that_ends_while_it_is_looked_at_leaves_no_stuck_worker_behind() {
    let told = |ended_just_now: bool| {
        let id = runtime_id();
        let mut time = Timeline::new(vec![site(1, "poll", Some(id))]);
        time.pass(1_000);
        let frozen = vec![Frozen {
            worker: 0,
            since: 0,
            seen_since: 0,
            started: true,
            one_poll: None,
            one_sleep: None,
            conduct: None,
            whom: None,
        }];
        time.sample.runtimes =
            vec![RuntimeSample { runtime: Some(id), workers: 2, parked: 1, frozen, ..RuntimeSample::default() }];
        time.sample.was_in_poll.extend(ended_just_now.then_some(InPoll { runtime: id, tid: None }));
        time.pass(5);
        time.told()
    };
    assert_eq!(told(true), []);
    assert_eq!(told(false), [("opened", Cause::LongPoll, "none")]);
}

#[test]
fn of_several_polls_one_that_had_no_cpu_speaks_for_those_that_nobody_looked_at() {
    let told = |without_cpu: u64| {
        let mut time = Timeline::new(vec![site(1, "preempted", None)]);
        time.pass(1_000);
        (time.sample.ops[0].counted.long_polls, time.sample.ops[0].counted.long_poll_time) = (3, 600 * MS);
        (time.sample.ops[0].without_cpu, time.sample.ops[0].observed) = (without_cpu * MS, true);
        time.pass(5);
        time.told().contains(&("opened", Cause::LongPoll, "preempted"))
    };
    assert_eq!([told(190), told(60)], [false, true]);
}

#[test]
fn a_poll_that_had_no_cpu_is_not_told() {
    let mut time = Timeline::new(vec![site(1, "preempted", None)]);
    (time.sample.ops[0].counted.long_polls, time.sample.ops[0].counted.long_poll_time) = (1, 330 * MS);
    time.sample.ops[0].without_cpu = 328 * MS;
    time.pass(5);
    time.sample.ops[0].without_cpu = 0;
    time.pass(200);
    assert_eq!(time.told(), []);
}

#[test]
fn a_pool_that_is_full_of_one_op_while_another_waits_names_both() {
    let id = Some(runtime_id());
    let mut time = Timeline::new(vec![site(1, "trace", id), site(2, "eth", id), site(3, "elsewhere", None)]);
    time.sample.executions = vec![Held::new(1, 0); 4];
    time.sample.ops[0].executing = 4;
    time.sample.executions.push(Held::new(3, 0));
    (time.sample.ops[1].queued, time.sample.ops[1].oldest_queued) = (1, Some(0));
    time.pass(60);
    time.sample.ops[0].counted = Counted {
        ended: 4,
        execution_time: 1_200 * MS,
        cpu: 1_190 * MS,
        cpu_known_execution: 1_200 * MS,
        ..Counted::default()
    };
    time.pass(5);
    let Some(last) = time.changes.last() else { panic!("four threads are held and one call waits") };
    let incident = last.incident();
    assert_eq!((incident.cause, incident.detail, incident.op), (Cause::PoolSaturated, Some("cpu"), Some("trace")));
    let culprits: Vec<_> = incident.diagnosis.culprits.iter().map(|c| (c.op, c.count, c.share)).collect();
    assert_eq!(culprits, [("trace", 4, Some(1.0))]);
    assert_eq!(incident.diagnosis.victims.iter().map(|victim| victim.op).collect::<Vec<_>>(), ["eth"]);
    assert_eq!(incident.diagnosis.advice.action.name(), "bound_cpu_pool");
}

#[test]
fn a_pool_whose_threads_get_no_cpu_is_not_told_to_grow() {
    let mut time = Timeline::new(vec![site(1, "call", Some(runtime_id()))]);
    (time.sample.ops[0].executing, time.sample.ops[0].queued) = (1, 10);
    time.sample.ops[0].oldest_queued = Some(0);
    time.sample.executions = vec![Held::new(1, 0)];
    let without_cpu = Share { part: 4 * MS, of: 5 * MS };
    time.sample.threads = vec![OpThread { op: 1, without_cpu, conduct: Conduct::default() }];
    time.sample.ops[0].counted =
        Counted { ended: 2, cpu: 1, cpu_known_execution: 80 * MS, execution_time: 80 * MS, ..Counted::default() };
    time.pass(60);
    let Some(last) = time.changes.last() else { panic!("a call has waited for 60 ms") };
    assert_eq!(last.incident().cause, Cause::CpuContention);
    assert_eq!(last.incident().diagnosis.advice.action.name(), "look_at_host");
    assert!(last.incident().diagnosis.culprits.is_empty());
    // Eight threads on two CPUs have only each other to blame.
    time.sample.ops[0].executing = 8;
    time.sample.executions = vec![Held::new(1, 0); 8];
    time.pass(20);
    let incidents = time.tracker.incidents();
    assert_eq!((incidents[0].cause, incidents[0].detail), (Cause::PoolSaturated, Some("cpu")));
}

#[test]
fn who_only_ran_in_the_end_did_not_make_itself_wait() {
    let mut time = Timeline::new(vec![site(1, "victim", Some(runtime_id()))]);
    (time.sample.ops[0].queued, time.sample.ops[0].oldest_queued) = (5, Some(0));
    time.pass(400);
    (time.sample.ops[0].queued, time.sample.ops[0].executing) = (1, 4);
    time.sample.executions = vec![Held::new(1, time.sample.now); 4];
    time.pass(10);
    (time.sample.ops[0].queued, time.sample.ops[0].executing, time.sample.ops[0].oldest_queued) = (0, 0, None);
    time.sample.executions.clear();
    time.sample.ops[0].counted = Counted {
        ended: 5,
        execution_time: 50 * MS,
        cpu_known_execution: 50 * MS,
        dominated: 5,
        dominated_wait: 2_000 * MS,
        ..Counted::default()
    };
    time.pass(500);
    assert!(time.told().iter().all(|(_, cause, _)| *cause == Cause::Undetermined), "{:?}", time.told());
    assert_eq!(time.count("closed"), 1);
}

/// A pool of two that `first` holds, and then `second`, while `waits` waits.
fn held_by_one_after_the_other() -> Timeline {
    let id = Some(runtime_id());
    let mut time = Timeline::new(vec![site(1, "first", id), site(2, "second", id), site(3, "waits", id)]);
    (time.sample.ops[2].queued, time.sample.ops[2].oldest_queued) = (5, Some(0));
    time.sample.executions = vec![Held::new(1, 0); 2];
    time.sample.ops[0].executing = 2;
    time.pass(60_000);
    time.sample.ops[0].counted = Counted { ended: 2, execution_time: 120_000 * MS, ..Counted::default() };
    time.sample.ops[0].executing = 0;
    time.sample.executions = vec![Held::new(2, time.sample.now); 2];
    time.sample.ops[1].executing = 2;
    time
}

#[test]
fn who_let_go_of_the_threads_is_not_accused_any_more() {
    let mut time = held_by_one_after_the_other();
    time.pass(100);
    let incidents = time.tracker.incidents();
    let culprits: Vec<_> = incidents[0].diagnosis.culprits.iter().map(|c| (c.op, c.count)).collect();
    assert_eq!((incidents[0].op, culprits), (Some("second"), vec![("second", 2)]));
}

#[test]
fn progress_that_is_long_past_is_no_progress() {
    let mut time = held_by_one_after_the_other();
    time.sample.ops[1].counted = Counted { ended: 1, execution_time: 1_000 * MS, ..Counted::default() };
    time.pass(1_000);
    assert_eq!(time.tracker.incidents()[0].cause, Cause::PoolSaturated);
    time.pass(60_000);
    assert_eq!(time.tracker.incidents()[0].cause, Cause::Undetermined);
}

#[test]
fn an_op_that_has_never_given_a_thread_back_leaks_after_a_window_and_not_before() {
    let mut time = held_by_one_after_the_other();
    time.pass(1_000);
    assert_eq!(time.tracker.incidents()[0].cause, Cause::Undetermined);
    time.pass(9_500);
    let incident = &time.tracker.incidents()[0];
    assert_eq!((incident.cause, incident.op), (Cause::PoolLeak, Some("second")));
}

#[test]
fn a_pool_that_has_run_more_at_once_is_held_by_others() {
    let mut time = Timeline::new(vec![site(1, "quick", Some(runtime_id()))]);
    time.sample.ops[0].executing = 8;
    time.pass(20_000);
    (time.sample.ops[0].executing, time.sample.ops[0].queued) = (1, 300);
    time.sample.executions = vec![Held::new(1, 20_000 * MS)];
    time.pass(15_000);
    time.sample.ops[0].oldest_queued = Some(time.sample.now - 80 * MS);
    time.sample.ops[0].counted =
        Counted { ended: 90, cpu: 1, cpu_known_execution: 90 * MS, execution_time: 90 * MS, ..Counted::default() };
    time.pass(10);
    let Some(last) = time.changes.last() else { panic!("a call has waited for 80 ms") };
    assert_eq!(last.incident().cause, Cause::Undetermined);
    assert!(last.incident().diagnosis.evidence.contains("8 watched calls at once before"), "{}", last.incident());
}

#[test]
fn a_job_that_waits_while_other_jobs_execute_does_not_stand_accused_itself() {
    let mut time = Timeline::new(vec![site(1, "hog", None), site(2, "quick", None)]);
    time.sample.ops[0].executing = 3;
    (time.sample.ops[1].executing, time.sample.ops[1].queued) = (1, 20);
    time.sample.executions = vec![Held::new(1, 0); 3];
    time.sample.executions.push(Held::new(2, 0));
    time.sample.ops[1].oldest_queued = Some(0);
    time.sample.ops[1].counted = Counted { ended: 9, execution_time: 9 * MS, ..Counted::default() };
    time.pass(60);
    let Some(last) = time.changes.last() else { panic!("a job has waited for 60 ms") };
    assert_eq!((last.incident().cause, last.incident().op), (Cause::Undetermined, Some("quick")));
    assert!(last.incident().diagnosis.evidence.contains("3 jobs of other ops"), "{}", last.incident());
}

#[test]
fn a_thousand_victims_are_one_incident_and_the_rest_is_counted() {
    let mut time = Timeline::new(vec![site(1, "victim", Some(runtime_id()))]);
    for ended in 1..=1_000 {
        time.sample.ops[0].counted =
            Counted { dominated: ended, dominated_wait: ended * 60 * MS, ended, ..Counted::default() };
        time.pass(5);
    }
    time.pass(300);
    assert_eq!((time.count("opened"), time.count("closed")), (1, 1));
    let Some(IncidentChange::Closed(incident)) = time.changes.last() else { panic!("it is over") };
    assert_eq!((incident.calls, incident.delay.as_millis()), (1_000, 60_000));
    assert_eq!(incident.suppressed, 999);
}

#[test]
fn what_comes_again_and_again_is_reported_five_times_a_minute_and_the_rest_counted() {
    let mut time = Timeline::new(vec![site(1, "again", None)]);
    for again in 1..=40 {
        time.sample.ops[0].counted.long_polls = again;
        time.sample.ops[0].counted.long_poll_time = again * 80 * MS;
        time.pass(1_000);
    }
    assert_eq!((time.count("opened"), time.count("closed")), (OPENINGS, OPENINGS));
    assert_eq!(time.tracker.unreported(), (0, 35));
    time.pass(60_000);
    time.sample.ops[0].counted.long_polls += 1;
    time.sample.ops[0].counted.long_poll_time += 80 * MS;
    time.pass(1_000);
    let Some(IncidentChange::Closed(incident)) = time.changes.last() else { panic!("it is over") };
    assert_eq!((incident.calls, incident.suppressed), (1, 35));
}

#[test]
fn warm_up_opens_nothing_and_what_was_counted_before_the_start_is_ignored() {
    let mut busy = site(1, "early", None);
    busy.counted.long_polls = 7;
    let mut time = Timeline::new(vec![busy]);
    time.tracker.warm = 50 * MS;
    time.sample.overdue = vec![Held::new(1, 0)];
    time.pass(45);
    assert_eq!(time.told(), []);
    time.pass(5);
    assert_eq!(time.count("opened"), 1);
    assert_eq!(time.changes[0].incident().calls, 1);
}

#[test]
fn episodes_at_once_are_bounded_and_the_rest_is_counted() {
    let many = MAX_OPEN as u32 + 10;
    let mut time = Timeline::new((0..many).map(|index| site(index, "many", None)).collect());
    time.sample.overdue = (0..many).map(|op| Held::new(op, 0)).collect();
    time.pass(5);
    assert_eq!((time.count("opened"), time.tracker.unreported().0), (MAX_OPEN, 10));
    let ended = time.tracker.finish(10 * MS);
    assert_eq!(ended.len(), MAX_OPEN);
    assert_eq!(time.tracker.incidents().len(), KEPT);
}
