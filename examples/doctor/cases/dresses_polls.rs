//! Faults of polls, schedules and hosts in other dresses than the reports.

use crate::case::{Case, Expected};
use crate::host::{pipe, stopper};
use crate::http;
use crate::tools::{block, burn, heartbeat, ms, repeat};
use crate::ward::Ward;
use axum::Router;
use axum::routing::get;
use futures_util::future::join_all;
use starvation::{instrument_blocking, instrument_future};
use std::io::{Read, Write};
use std::process::Command;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};

const LONG_POLL: Expected =
    Expected::fault(&["long_poll"]).actions(&["offload", "yield", "go_async", "bound_cpu_pool"]);

pub(crate) const CASES: &[Case] = &[
    Case::new(
        "join_all_cpu",
        "400 futures that compute for 1 ms each, all in one task",
        join_all_cpu,
        LONG_POLL.detail(&["computing"]).culprit(&["report"]),
    )
    .hooks(),
    Case::new(
        "slow_write_under_lock",
        "a lock is held over a write that takes long, and others want it",
        slow_write_under_lock,
        LONG_POLL.detail(&["locked", "blocked"]).culprit(&["flush", "append"]).actions(&["shorten_lock", "offload"]),
    ),
    Case::new(
        "rayon_wait",
        "a task waits for another pool's answer without await",
        rayon_wait,
        LONG_POLL.detail(&["blocked", "locked"]).culprit(&["search"]),
    )
    .hooks(),
    Case::new(
        "child_output",
        "a task waits for a child process without await",
        child_output,
        LONG_POLL.detail(&["blocked"]).culprit(&["convert"]),
    ),
    Case::new(
        "blocks_in_drop",
        "a future that blocks when it is dropped, not when it is polled",
        blocks_in_drop,
        LONG_POLL.detail(&["blocked"]).culprit(&["session"]),
    ),
    Case::new(
        "single_thread_hash",
        "passwords are hashed on the only thread of a server",
        single_thread_hash,
        LONG_POLL.detail(&["computing"]).culprit(&["login"]),
    )
    .hooks(),
    Case::new(
        "two_faults",
        "a handler blocks its worker, and elsewhere a pool is full",
        two_faults,
        Expected::fault(&["long_poll", "pool_saturated"])
            .culprit(&["handler", "upload"])
            .incidents(&[("long_poll", "handler"), ("pool_saturated", "upload")]),
    ),
    Case::new(
        "many_small_tasks",
        "20,000 tasks of 50 us at once: no poll is long, and all wait",
        many_small_tasks,
        Expected::fault(&["overloaded"]),
    ),
    Case::new(
        "catch_up_burst",
        "after a stop an interval makes up for every tick that it missed",
        catch_up_burst,
        Expected::fault(&["process_paused"])
            .nobody()
            .effects(&["catch_up_burst"])
            .actions(&["skip_missed_ticks", "look_at_host"]),
    ),
    Case::new(
        "lifo_woken",
        "a task wakes another and then parses; the other waits though workers are idle",
        lifo_woken,
        LONG_POLL.detail(&["computing"]).culprit(&["parse"]).victim("release").effects(&["lifo_victim"]),
    ),
    Case::new(
        "driver_blocked",
        "one of two workers waits for timers and sockets, and makes a blocking call",
        driver_blocked,
        LONG_POLL.detail(&["blocked"]).culprit(&["sync_call"]).effects(&["driver_held"]),
    ),
    Case::new(
        "lock_of_a_thread",
        "a lock that another thread holds for long, wanted in a poll",
        lock_of_a_thread,
        LONG_POLL.detail(&["locked", "blocked"]).culprit(&["read_cache"]).actions(&["shorten_lock", "offload"]),
    )
    .hooks(),
];

fn join_all_cpu(ward: &'static Ward) {
    let report = async {
        for _ in 0..4 {
            join_all((0..400).map(|_| async { burn(ms(1)) })).await;
            sleep(ms(100)).await;
        }
    };
    ward.current_thread(16).block_on(async {
        heartbeat("ping", ms(10));
        tokio::spawn(instrument_future("report", report)).await.unwrap();
    });
}

fn slow_write_under_lock(ward: &'static Ward) {
    let (mut reader, writer) = pipe();
    // A disk that takes what it is given in 150 ms.
    thread::spawn(move || {
        let mut taken = vec![0; 64 << 10];
        while reader.read_exact(&mut taken).is_ok() {
            block(ms(150));
        }
    });
    let log = Arc::new(Mutex::new(writer));
    ward.runtime(4, 16).block_on(async {
        let flush_log = Arc::clone(&log);
        let flush = repeat(ms(60_000), async move || {
            flush_log.lock().unwrap().write_all(&[0; 64 << 10]).unwrap();
            sleep(ms(30)).await;
        });
        tokio::spawn(instrument_future("flush", flush));
        for _ in 0..4 {
            let log = Arc::clone(&log);
            let append = repeat(ms(60_000), async move || {
                log.lock().unwrap().write_all(b"a line\n").unwrap();
                sleep(ms(5)).await;
            });
            tokio::spawn(instrument_future("append", append));
        }
        thread::sleep(ms(3_000));
    });
}

fn rayon_wait(ward: &'static Ward) {
    let search = async {
        for _ in 0..6 {
            let (found, result) = mpsc::channel();
            rayon::spawn(move || {
                burn(ms(250));
                let _ = found.send(());
            });
            result.recv().unwrap();
            sleep(ms(100)).await;
        }
    };
    ward.runtime(2, 16).block_on(async {
        heartbeat("ping", ms(10));
        tokio::spawn(instrument_future("search", search)).await.unwrap();
    });
}

fn child_output(ward: &'static Ward) {
    let convert = async {
        for _ in 0..5 {
            Command::new("sleep").arg("0.3").output().unwrap();
            sleep(ms(100)).await;
        }
    };
    ward.runtime(2, 16).block_on(async {
        heartbeat("ping", ms(10));
        tokio::spawn(instrument_future("convert", convert)).await.unwrap();
    });
}

/// Says goodbye over a slow line.
struct Goodbye;

impl Drop for Goodbye {
    fn drop(&mut self) {
        block(ms(200));
    }
}

fn blocks_in_drop(ward: &'static Ward) {
    ward.runtime(2, 16).block_on(async {
        heartbeat("ping", ms(10));
        for _ in 0..6 {
            let session = async {
                let _goodbye = Goodbye;
                sleep(ms(60_000)).await;
            };
            let session = tokio::spawn(instrument_future("session", session));
            sleep(ms(100)).await;
            session.abort();
            assert!(session.await.unwrap_err().is_cancelled());
        }
    });
}

fn single_thread_hash(ward: &'static Ward) {
    let runtime = ward.current_thread(16);
    let login = || instrument_future("login", async { burn(ms(80)) });
    let page = || instrument_future("page", async { "a page" });
    let router = Router::new().route("/login", get(login)).route("/page", get(page));
    let address = runtime.block_on(http::serve(router));
    let clients = http::clients(address, 2, &["/page", "/page", "/login", "/page"], ms(20), ms(2_500));
    runtime.block_on(async { sleep(ms(2_600)).await });
    drop(clients);
}

fn two_faults(ward: &'static Ward) {
    ward.runtime(2, 4).block_on(async {
        for _ in 0..12 {
            tokio::spawn(repeat(ms(60_000), async || instrument_blocking("upload", || block(ms(200))).await.unwrap()));
        }
        let handler = repeat(ms(3_000), async || {
            block(ms(120));
            sleep(ms(100)).await;
        });
        tokio::spawn(instrument_future("handler", handler)).await.unwrap();
    });
}

fn many_small_tasks(ward: &'static Ward) {
    ward.runtime(2, 16).block_on(async {
        heartbeat("ping", ms(10));
        for _ in 0..3 {
            let mut tasks = JoinSet::new();
            for _ in 0..20_000 {
                tasks.spawn(instrument_future("event", async { burn(Duration::from_micros(50)) }));
            }
            tasks.join_all().await;
        }
    });
}

fn catch_up_burst(ward: &'static Ward) {
    ward.runtime(2, 16).block_on(async {
        let mut ticks = interval(ms(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let sample = async move {
            loop {
                ticks.tick().await;
                // Little enough that even a poll of as many as a task may do at once is short.
                burn(Duration::from_micros(100));
            }
        };
        tokio::spawn(instrument_future("sample", sample));
        let mut stopper = stopper(2, ms(1_600), ms(1_000));
        while stopper.try_wait().unwrap().is_none() {
            sleep(ms(20)).await;
        }
        sleep(ms(400)).await;
    });
}

fn lifo_woken(ward: &'static Ward) {
    ward.runtime(4, 16).block_on(async {
        let wanted = Arc::new(Notify::new());
        let release_wanted = Arc::clone(&wanted);
        let release = async move {
            loop {
                release_wanted.notified().await;
            }
        };
        tokio::spawn(instrument_future("release", release));
        let parse = async move {
            for _ in 0..6 {
                sleep(ms(50)).await;
                wanted.notify_one();
                burn(ms(300));
            }
        };
        tokio::spawn(instrument_future("parse", parse)).await.unwrap();
    });
}

fn driver_blocked(ward: &'static Ward) {
    let sync_call = async {
        for _ in 0..8 {
            sleep(ms(20)).await;
            block(ms(300));
        }
    };
    ward.runtime(2, 16).block_on(async {
        heartbeat("ping", ms(20));
        tokio::spawn(instrument_future("sync_call", sync_call)).await.unwrap();
    });
}

fn lock_of_a_thread(ward: &'static Ward) {
    let cache = Arc::new(Mutex::new(()));
    let refreshed = Arc::clone(&cache);
    // It is no thread of the runtime that holds it.
    thread::spawn(move || {
        loop {
            let held = refreshed.lock().unwrap();
            block(ms(200));
            drop(held);
            block(ms(100));
        }
    });
    ward.runtime(2, 16).block_on(async {
        heartbeat("ping", ms(10));
        let read = repeat(ms(3_000), async move || {
            drop(cache.lock().unwrap());
            sleep(ms(10)).await;
        });
        tokio::spawn(instrument_future("read_cache", read)).await.unwrap();
    });
}
