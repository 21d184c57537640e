//! What is seen of what nobody wrapped.

#![cfg(all(target_os = "linux", not(starvation_elsewhere)))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod support;

use starvation::{Cause, Detector};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use support::{eventually, exclusive};
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
