//! Workers that have more to do than they can.

use super::{MS, Timeline, runtime_id, site};
use crate::cause::Cause;
use crate::sample::RuntimeSample;

#[test]
fn a_runtime_that_nobody_wrapped_is_crowded_when_a_task_has_to_wait_while_no_worker_is_ever_free() {
    let told = |parked_at: u64, waits: u64, current_thread: bool| {
        let mut time = Timeline::new(vec![site(1, "rests", None)]);
        let seen = RuntimeSample {
            runtime: Some(runtime_id()),
            workers: 2,
            parked: 2,
            current_thread,
            ..RuntimeSample::default()
        };
        time.sample.runtimes = vec![seen];
        time.pass(8_000);
        // So short a time after ten seconds of rest.
        for at in 0..160 {
            time.sample.runtimes[0].parked = u64::from(at == parked_at);
            time.sample.runtimes[0].probe = Some(waits * MS).filter(|_| at >= 100);
            time.pass(5);
        }
        time.told()
    };
    assert_eq!(told(0, 120, false), [("opened", Cause::Overloaded, "none")]);
    // One was free in between; or the task came through; or nobody may drive the runtime.
    assert_eq!([told(90, 120, false), told(0, 20, false), told(0, 120, true)], [[], [], []]);
}
