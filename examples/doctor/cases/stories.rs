//! The two incidents that this crate exists for, twenty times as fast, and the same worker with other faults or none.

use crate::case::{Case, Expected};
use crate::host::stopper;
use crate::http;
use crate::tools::{block, burn, heartbeat, ms};
use crate::ward::Ward;
use axum::Router;
use axum::routing::get;
use starvation::{instrument_blocking, instrument_future};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::time::sleep;

const SATURATED: Expected = Expected::fault(&["pool_saturated"]).culprit(&["model_call"]).victim("model_call");
const TOO_SMALL: Expected =
    SATURATED.detail(&["io"]).actions(&["raise_pool", "go_async"]).pool_at_least(JOBS as u64).suspects(5);

/// Up to so many jobs at once.
const JOBS: usize = 20;

pub(crate) const CASES: &[Case] = &[
    Case::new("story_a_6", "20 jobs at once, each with a hidden blocking call, and 6 threads", story_a_6, TOO_SMALL),
    Case::new("story_a_8", "the same with 8 threads", story_a_8, TOO_SMALL).hooks(),
    Case::new("story_a_40", "the same with 40 threads: the fix", story_a_40, Expected::healthy(&["healthy"])),
    Case::new(
        "story_a_cpu",
        "the same with calls that compute: a bigger pool would only move the wait",
        story_a_cpu,
        SATURATED.detail(&["cpu"]).actions(&["bound_cpu_pool", "separate_pool"]),
    )
    .hooks(),
    Case::new(
        "story_a_decoy",
        "the pool has room, and the answers themselves take longer in steps",
        story_a_decoy,
        Expected::fault(&["slow_work"]).culprit(&["model_call", "job"]).actions(&["look_downstream", "none"]),
    ),
    Case::new(
        "story_b",
        "a server is stopped at an even period",
        story_b,
        Expected::fault(&["process_paused"])
            .detail(&["stopped"])
            .nobody()
            .period_ms(700)
            .actions(&["look_at_host", "none"]),
    )
    .hooks(),
];

/// A worker with so many pool threads and jobs at once, each of which makes a call and then a little work of its own.
fn worker(ward: &'static Ward, pool: usize, jobs: usize, call: fn(usize)) {
    ward.runtime(2, pool).block_on(async {
        let start = Instant::now();
        let number = Arc::new(AtomicUsize::new(0));
        let work = |number: Arc<AtomicUsize>| async move {
            while start.elapsed() < Duration::from_secs(4) {
                // Relaxed: a number for each call is all that is wanted.
                let number = number.fetch_add(1, Ordering::Relaxed);
                let job = async move {
                    instrument_blocking("model_call", move || call(number)).await.unwrap();
                    burn(Duration::from_micros(200));
                };
                instrument_future("job", job).await;
            }
        };
        futures_util::future::join_all((0..jobs).map(|_| tokio::spawn(work(Arc::clone(&number))))).await;
    });
}

fn story_a_6(ward: &'static Ward) {
    worker(ward, 6, JOBS, |_| block(ms(230)));
}

fn story_a_8(ward: &'static Ward) {
    worker(ward, 8, JOBS, |_| block(ms(230)));
}

fn story_a_40(ward: &'static Ward) {
    worker(ward, 40, JOBS, |_| block(ms(230)));
}

fn story_a_cpu(ward: &'static Ward) {
    worker(ward, 8, JOBS, |_| burn(ms(50)));
}

fn story_a_decoy(ward: &'static Ward) {
    // The first fifty are as they should be; then come those that went through one to three fallbacks.
    worker(ward, 40, 6, |number| block(ms(if number < 50 { 100 } else { 100 + 750 * (1 + number as u64 % 3) })));
}

fn story_b(ward: &'static Ward) {
    let runtime = ward.runtime(1, 8);
    let answer = || instrument_future("ingest", async { burn(Duration::from_micros(200)) });
    let address = runtime.block_on(http::serve(Router::new().route("/", get(answer))));
    let clients = http::clients(address, 2, &["/"], ms(5), ms(7_000));
    runtime.block_on(async {
        heartbeat("ping", ms(10));
        let mut stopper = stopper(8, ms(700), ms(200));
        while stopper.try_wait().unwrap().is_none() {
            sleep(ms(20)).await;
        }
        sleep(ms(100)).await;
    });
    drop(clients);
}
