//! Programs with nothing wrong in them. Whatever is said of these but the host's own trouble is a false alarm.

use crate::case::{Case, Expected};
use crate::host::{pin_to, preempter, stopper};
use crate::http;
use crate::tools::{block, burn, heartbeat, ms, repeat};
use crate::ward::Ward;
use axum::Router;
use axum::routing::get;
use starvation::{instrument_blocking, instrument_future, instrument_wait};
use std::sync::{Arc, Mutex};
use tokio::sync::Semaphore;
use tokio::time::sleep;

const SILENCE: Expected = Expected::healthy(&["healthy"]);

pub(crate) const CASES: &[Case] = &[
    Case::new(
        "long_job",
        "a long blocking job where it belongs, and a root future that waits for it",
        long_job,
        SILENCE,
    ),
    Case::new(
        "stopped",
        "the whole process is stopped, as by a debugger, with all sorts of work in flight",
        stopped,
        Expected::healthy(&["healthy", "process_paused"]),
    )
    .hooks(),
    Case::new(
        "preempted",
        "a thread is preempted for 200 ms in the middle of its short polls",
        preempted,
        Expected::healthy(&["healthy", "cpu_contention"]),
    ),
    Case::new("short_mutex", "a lock in async code, held briefly and not across an await", short_mutex, SILENCE)
        .hooks(),
    Case::new("tiny_jobs", "tiny blocking jobs that wait for many times their execution", tiny_jobs, SILENCE),
    Case::new(
        "block_in_place",
        "polls that compute and block for long, having given their worker away",
        block_in_place,
        SILENCE,
    ),
    Case::new(
        "lone_start_poll",
        "one poll of 500 ms at the start, which nobody waits for",
        lone_start_poll,
        SILENCE.meanwhile(&[("long_poll", "warm_cache")]),
    ),
    Case::new("cpu_jobs", "one computing job at a time, where it belongs", cpu_jobs, SILENCE).hooks(),
    Case::new("brisk_permits", "permits that are waited for briefly, all the time", brisk_permits, SILENCE),
    Case::new(
        "busy_server",
        "a server that is well used: short polls, small jobs, no waits to speak of",
        busy_server,
        SILENCE,
    )
    .hooks(),
    Case::new(
        "short_blocks",
        "tasks that nobody wrapped, always ready, each of whose polls blocks for 2 ms",
        short_blocks,
        SILENCE,
    )
    .hooks(),
    Case::new("burst_of_jobs", "200 jobs at once, for which the pool has room", burst_of_jobs, SILENCE),
];

fn long_job(ward: &'static Ward) {
    ward.runtime(2, 16).block_on(async {
        let long = instrument_blocking("export", || block(ms(3_000)));
        repeat(ms(2_800), async || instrument_blocking("small", || block(ms(10))).await.unwrap()).await;
        long.await.unwrap();
    });
}

fn stopped(ward: &'static Ward) {
    ward.runtime(2, 4).block_on(async {
        heartbeat("ping", ms(10));
        let permits = Arc::new(Semaphore::new(2));
        for _ in 0..4 {
            let permits = Arc::clone(&permits);
            tokio::spawn(repeat(ms(60_000), async move || {
                let _permit = instrument_wait("permit", permits.acquire()).await.unwrap();
                instrument_blocking("read", || block(ms(10))).await.unwrap();
            }));
            tokio::spawn(repeat(ms(60_000), async || {
                instrument_future("request", async { burn(ms(2)) }).await;
                sleep(ms(10)).await;
            }));
        }
        let mut stopper = stopper(2, ms(900), ms(600));
        while stopper.try_wait().unwrap().is_none() {
            sleep(ms(20)).await;
        }
        sleep(ms(300)).await;
    });
}

fn preempted(ward: &'static Ward) {
    let runtime = ward.current_thread(4);
    // From here on, for the detector's thread is to be free to run elsewhere.
    pin_to(0);
    let _preempter = preempter(0, ms(500), ms(200));
    runtime.block_on(repeat(ms(4_000), async || {
        instrument_future("request", async { burn(ms(5)) }).await;
        sleep(ms(5)).await;
    }));
}

fn short_mutex(ward: &'static Ward) {
    ward.runtime(2, 16).block_on(async {
        let cache = Arc::new(Mutex::new(0));
        for _ in 0..16 {
            let cache = Arc::clone(&cache);
            let request = repeat(ms(60_000), async move || {
                *cache.lock().unwrap() += 1;
                sleep(ms(1)).await;
            });
            tokio::spawn(instrument_future("request", request));
        }
        sleep(ms(2_000)).await;
    });
}

fn tiny_jobs(ward: &'static Ward) {
    ward.runtime(2, 16).block_on(repeat(ms(2_000), async || {
        instrument_blocking("tiny", || ()).await.unwrap();
        sleep(ms(5)).await;
    }));
}

fn block_in_place(ward: &'static Ward) {
    ward.runtime(2, 16).block_on(async {
        heartbeat("ping", ms(10));
        let convert = async {
            for _ in 0..4 {
                tokio::task::block_in_place(|| burn(ms(200)));
                tokio::task::block_in_place(|| block(ms(200)));
                sleep(ms(50)).await;
            }
        };
        tokio::spawn(instrument_future("convert", convert)).await.unwrap();
    });
}

fn lone_start_poll(ward: &'static Ward) {
    ward.runtime(4, 16).block_on(async {
        tokio::spawn(instrument_future("warm_cache", async { burn(ms(500)) })).await.unwrap();
        tokio::spawn(repeat(ms(1_500), async || {
            instrument_future("request", async { burn(ms(1)) }).await;
            sleep(ms(10)).await;
        }))
        .await
        .unwrap();
    });
}

fn cpu_jobs(ward: &'static Ward) {
    ward.runtime(2, 4).block_on(async {
        heartbeat("ping", ms(10));
        repeat(ms(2_000), async || instrument_blocking("hash", || burn(ms(100))).await.unwrap()).await;
    });
}

fn brisk_permits(ward: &'static Ward) {
    ward.runtime(2, 16).block_on(async {
        let permits = Arc::new(Semaphore::new(2));
        for _ in 0..8 {
            let permits = Arc::clone(&permits);
            tokio::spawn(repeat(ms(60_000), async move || {
                let _permit = instrument_wait("permit", permits.acquire()).await.unwrap();
                sleep(ms(4)).await;
            }));
        }
        sleep(ms(2_000)).await;
    });
}

fn busy_server(ward: &'static Ward) {
    let page = || {
        instrument_future("page", async {
            burn(ms(1));
            instrument_blocking("read", || block(ms(3))).await.unwrap();
        })
    };
    let runtime = ward.runtime(2, 64);
    let address = runtime.block_on(http::serve(Router::new().route("/", get(page))));
    for client in http::clients(address, 8, &["/"], ms(10), ms(2_500)) {
        client.join().unwrap();
    }
}

fn short_blocks(ward: &'static Ward) {
    ward.runtime(4, 16).block_on(async {
        heartbeat("ping", ms(10));
        for _ in 0..2 {
            tokio::spawn(repeat(ms(60_000), async || {
                block(ms(2));
                tokio::task::yield_now().await;
            }));
        }
        sleep(ms(2_500)).await;
    });
}

fn burst_of_jobs(ward: &'static Ward) {
    ward.runtime(2, 512).block_on(async {
        for _ in 0..3 {
            let jobs: Vec<_> = (0..200).map(|_| instrument_blocking("fetch", || block(ms(300)))).collect();
            for job in jobs {
                job.await.unwrap();
            }
            sleep(ms(200)).await;
        }
    });
}
