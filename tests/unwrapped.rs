//! What is seen of what nobody wrapped.

#![cfg(all(target_os = "linux", not(starvation_elsewhere)))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod support;

use starvation::{Cause, Detector};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use support::{eventually, exclusive, until_started};
use tokio::runtime::Builder;

/// Threads that never come back: every caller hangs, so that nothing goes on any more.
#[test]
fn a_pool_that_dies_is_found_though_all_is_idle_by_then() {
    let _one = exclusive();
    for hooked in [true, false] {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(2).max_blocking_threads(4).enable_all();
        if hooked {
            starvation::hooks(&mut builder);
        }
        let runtime = builder.build().unwrap();
        let detector = Detector::builder().attach(runtime.handle()).start().unwrap();
        // It has worked before.
        runtime.block_on(async {
            for _ in 0..30 {
                tokio::task::spawn_blocking(|| ()).await.unwrap();
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        for _ in 0..4 {
            let released = Arc::clone(&released);
            runtime.spawn_blocking(move || released.lock().unwrap().recv().is_ok());
        }
        let incident = eventually("the pool", || {
            detector.incidents().into_iter().find(|incident| incident.cause == Cause::PoolSaturated)
        });
        assert_eq!(incident.op, None, "{incident}");
        let told = detector.diagnose().to_string();
        assert!(!told.contains("of the detector's own got a thread"), "{told}");
        drop(release);
    }
}

/// Lets those that compute come to an end, also where a test fails.
struct Over(Arc<AtomicBool>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Beside threads that want all the CPUs there are, and have them only in turns with it.
#[test]
fn workers_that_compute_are_found_on_a_busy_machine() {
    let _one = exclusive();
    let mut builder = Builder::new_multi_thread();
    let runtime = starvation::hooks(builder.worker_threads(2).enable_all()).build().unwrap();
    let detector = Detector::builder().attach(runtime.handle()).start().unwrap();
    until_started(&runtime);
    let over = Arc::new(AtomicBool::new(false));
    let _over = Over(Arc::clone(&over));
    let computes = || {
        let over = Arc::clone(&over);
        move || while !over.load(Ordering::Relaxed) {}
    };
    let others: Vec<_> = (0..4).map(|_| std::thread::spawn(computes())).collect();
    // On both workers, so that it is not known which thread is which.
    for _ in 0..2 {
        let work = computes();
        runtime.spawn(async move { work() });
    }
    let incident = eventually("the worker", || {
        // What the threads do is not known while it is not known which they are.
        let is_it = |cause| matches!(cause, Cause::LongPoll | Cause::Undetermined);
        detector.incidents().into_iter().find(|incident| is_it(incident.cause))
    });
    over.store(true, Ordering::Relaxed);
    others.into_iter().for_each(|other| other.join().unwrap());
    assert!(incident.op.is_none() && incident.to_string().contains("nobody wrapped"), "{incident}");
}

/// Each of them is short, and there are always more of them than the workers can do.
#[test]
fn a_runtime_that_is_crowded_with_short_tasks_is_not_healthy() {
    let _one = exclusive();
    let mut builder = Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().unwrap();
    let detector = Detector::builder().attach(runtime.handle()).start().unwrap();
    until_started(&runtime);
    let over = Arc::new(AtomicBool::new(false));
    let _over = Over(Arc::clone(&over));
    let again = Arc::clone(&over);
    let crowd = async move {
        let computes = || async {
            let began = std::time::Instant::now();
            while began.elapsed() < Duration::from_millis(2) {}
        };
        while !again.load(Ordering::Relaxed) {
            let tasks: Vec<_> = (0..200).map(|_| tokio::spawn(computes())).collect();
            for task in tasks {
                task.await.unwrap();
            }
        }
    };
    runtime.spawn(crowd);
    let incident = eventually("the crowd", || {
        detector.incidents().into_iter().find(|incident| incident.cause == Cause::Overloaded)
    });
    assert!(incident.op.is_none() && incident.diagnosis.culprits.is_empty(), "{incident}");
    let told = detector.diagnose().to_string();
    assert!(told.starts_with("overloaded"), "{told}");
}
