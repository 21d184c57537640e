//! Which pool is advised.

use super::*;

#[test]
fn the_advised_pool_counts_calls_that_ended_before_the_opening() {
    let mut time = Timeline::new(vec![site(1, "call", Some(runtime_id()))]);
    (time.sample.ops[0].executing, time.sample.ops[0].queued) = (2, 10);
    time.pass(40);
    (time.sample.ops[0].executing, time.sample.ops[0].queued) = (2, 8);
    time.sample.ops[0].counted =
        Counted { ended: 2, cpu: 1, cpu_known_execution: 80 * MS, execution_time: 80 * MS, ..Counted::default() };
    time.sample.executions = vec![Held::new(1, 45 * MS); 2];
    time.sample.ops[0].oldest_queued = Some(0);
    time.pass(20);
    let Some(last) = time.changes.last() else { panic!("a call has waited for 60 ms") };
    assert!(last.incident().diagnosis.advice.text.contains("a pool of 12 "), "{}", last.incident());
}

#[test]
fn a_backlog_of_hundreds_is_not_taken_for_the_pool_that_was_needed() {
    let mut time = Timeline::new(vec![site(1, "call", Some(runtime_id()))]);
    // 100 calls a second of 100 ms each, on 8 threads.
    for look in 1..=2_400_u64 {
        let millis = look * 5;
        let (came, ended) = (millis / 10, (millis * 8 / 100).saturating_sub(8));
        let op = &mut time.sample.ops[0];
        (op.executing, op.queued) = (8.min(came - ended), (came - ended).saturating_sub(8));
        op.oldest_queued = (op.queued > 0).then(|| time.sample.now.saturating_sub(op.queued * 10 * MS));
        let (execution_time, queue_wait) = (ended * 100 * MS, ended * 900 * MS);
        op.counted = Counted {
            ended,
            started: ended,
            execution_time,
            queue_wait,
            cpu: 1,
            cpu_known_execution: execution_time,
            ..Counted::default()
        };
        time.sample.executions = vec![Held::new(1, time.sample.now.saturating_sub(50 * MS)); op.executing as usize];
        time.pass(5);
    }
    assert!(time.sample.ops[0].queued > 200);
    let incidents = time.tracker.incidents();
    let advice = &incidents[0].diagnosis.advice;
    let Some(pool) = advice.pool else { panic!("no number: {}", advice.text) };
    assert!((10..=14).contains(&pool), "{pool}: {}", advice.text);
    let said =
        format!("a pool of {pool} would have let every call start at once: 100.0ms a call on average instead of 1.0s");
    assert!(advice.text.contains(&said), "{}", advice.text);
}
