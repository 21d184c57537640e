//! Reports of polls that hold their worker: computing, blocked, locked, or waiting for what only they could do.

use crate::case::{Case, Expected};
use crate::host::{make_fifo, stdout_into_unread_pipe};
use crate::tools::{block, burn, foreign_block_on, heartbeat, ms, repeat, scratch};
use crate::ward::Ward;
use crate::{http, tools};
use axum::Router;
use axum::routing::get;
use futures_util::{StreamExt, stream};
use starvation::{instrument_blocking, instrument_future};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::thread;
use tokio::task::LocalSet;
use tokio::time::sleep;

const BLOCKED: Expected = Expected::fault(&["long_poll"]).detail(&["blocked"]).actions(&["offload"]);
const COMPUTING: Expected =
    Expected::fault(&["long_poll"]).detail(&["computing"]).actions(&["offload", "yield", "bound_cpu_pool"]);
const LOCKED: Expected = Expected::fault(&["long_poll"]).detail(&["locked"]).actions(&["shorten_lock", "offload"]);

pub(crate) const CASES: &[Case] = &[
    Case::new(
        "foreign_block_on",
        "a block_on inside a task has used up the task's budget and never wakes",
        foreign_block_on_in_task,
        Expected::fault(&["long_poll"]).detail(&["block_on"]).culprit(&["import"]).actions(&["go_async", "offload"]),
    )
    .judged_after(2_500),
    Case::new(
        "serialising",
        "one answer in ten is serialised on the worker for 150 ms",
        serialising,
        COMPUTING.culprit(&["large_answer"]),
    )
    .hooks(),
    Case::new(
        "always_ready",
        "a stream that is always ready is read without a pause",
        always_ready,
        COMPUTING.culprit(&["query"]),
    ),
    Case::new(
        "driver_held",
        "the worker that waits for timers and sockets computes; seven others are idle",
        driver_held,
        COMPUTING.culprit(&["resize"]).effects(&["driver_held"]),
    )
    .hooks(),
    Case::new(
        "blocking_handler",
        "half of the handlers call a synchronous database",
        blocking_handler,
        BLOCKED.culprit(&["lookup"]),
    ),
    Case::new(
        "fifo_open",
        "opening a named pipe waits until somebody opens the other end",
        fifo_open,
        BLOCKED.culprit(&["open_pipe"]),
    )
    .hooks(),
    Case::new(
        "periodic_collector",
        "a collector blocks a worker at an even period",
        periodic_collector,
        BLOCKED.culprit(&["collector"]).period_ms(500).actions(&["offload", "dedicated_thread"]),
    ),
    Case::new(
        "full_stdout",
        "all that log wait for the lock of a stdout that nobody reads",
        full_stdout,
        // The last worker is either blocked, too, or sleeps because a blocked one has the driver.
        LOCKED.culprit(&["read_order", "write_order"]).any_effect(&["workers_blocked", "driver_held"]),
    )
    .hooks()
    .judged_after(2_500),
    Case::new(
        "lock_across_await",
        "a lock is held across an await, and the only thread waits for it",
        lock_across_await,
        LOCKED.culprit(&["cache_read", "cache_update"]),
    )
    .judged_after(2_500),
    Case::new(
        "lifo_child",
        "a task spawns a child and computes; the child waits though other workers are idle",
        lifo_child,
        COMPUTING.culprit(&["parse"]).victim("release").effects(&["lifo_victim"]),
    )
    .hooks(),
];

fn foreign_block_on_in_task(ward: &'static Ward) {
    let import = async {
        for _ in 0..1_000 {
            foreign_block_on(instrument_blocking("read_block", || ())).unwrap();
        }
    };
    ward.runtime(2, 16).block_on(async { tokio::spawn(instrument_future("import", import)).await.unwrap() });
}

fn serialising(ward: &'static Ward) {
    let small = || instrument_future("small_answer", async { burn(ms(1)) });
    let large = || instrument_future("large_answer", async { burn(ms(150)) });
    let paths = &["/small", "/small", "/small", "/small", "/large", "/small", "/small", "/small", "/small", "/small"];
    let runtime = ward.runtime(2, 16);
    let router = Router::new().route("/small", get(small)).route("/large", get(large));
    let address = runtime.block_on(http::serve(router));
    for client in http::clients(address, 4, paths, ms(10), ms(3_000)) {
        client.join().unwrap();
    }
}

fn always_ready(ward: &'static Ward) {
    let query = || async {
        let mut rows = stream::iter(0..400);
        while rows.next().await.is_some() {
            burn(ms(1));
        }
        sleep(ms(100)).await;
    };
    ward.current_thread(16).block_on(async {
        heartbeat("ping", ms(10));
        let queries = async move { repeat(ms(2_000), query).await };
        tokio::spawn(instrument_future("query", queries)).await.unwrap();
    });
}

fn driver_held(ward: &'static Ward) {
    let resize = async {
        for _ in 0..6 {
            sleep(ms(10)).await;
            burn(ms(400));
        }
    };
    ward.runtime(8, 16).block_on(async {
        heartbeat("ping", ms(20));
        tokio::spawn(instrument_future("resize", resize)).await.unwrap();
    });
}

fn blocking_handler(ward: &'static Ward) {
    let lookup = || instrument_future("lookup", async { block(ms(40)) });
    let health = || instrument_future("health", async { "fine" });
    let runtime = ward.runtime(2, 16);
    let router = Router::new().route("/lookup", get(lookup)).route("/health", get(health));
    let address = runtime.block_on(http::serve(router));
    for client in http::clients(address, 2, &["/lookup", "/health"], ms(20), ms(2_500)) {
        client.join().unwrap();
    }
}

fn fifo_open(ward: &'static Ward) {
    let path = scratch("fifo");
    make_fifo(&path);
    let writer_path = path.clone();
    thread::spawn(move || {
        loop {
            block(ms(300));
            drop(OpenOptions::new().write(true).open(&writer_path));
        }
    });
    ward.current_thread(16).block_on(async {
        heartbeat("ping", ms(10));
        for _ in 0..5 {
            instrument_future("open_pipe", async { File::open(&path).unwrap() }).await;
            sleep(ms(150)).await;
        }
    });
    std::fs::remove_file(path).unwrap();
}

fn periodic_collector(ward: &'static Ward) {
    let collect = async {
        let mut ticks = tokio::time::interval(ms(500));
        for _ in 0..11 {
            ticks.tick().await;
            block(ms(60));
        }
    };
    ward.runtime(2, 16).block_on(async {
        heartbeat("ping", ms(10));
        tokio::spawn(instrument_future("collector", collect)).await.unwrap();
    });
}

fn full_stdout(ward: &'static Ward) {
    stdout_into_unread_pipe();
    let print = || std::io::stdout().write_all(&[b'x'; 200]).unwrap();
    ward.runtime(4, 16).block_on(async {
        for _ in 0..4 {
            tokio::spawn(instrument_future(
                "read_order",
                repeat(ms(60_000), async move || {
                    print();
                    sleep(ms(1)).await;
                }),
            ));
            tokio::spawn(instrument_future(
                "write_order",
                repeat(ms(60_000), async move || {
                    print();
                    sleep(ms(1)).await;
                }),
            ));
        }
        sleep(ms(60_000)).await;
    });
}

#[expect(clippy::await_holding_lock, reason = "this is the fault")]
fn lock_across_await(ward: &'static Ward) {
    let cache = Arc::new(Mutex::new(()));
    let hold = async |cache: Arc<Mutex<()>>| {
        let held = cache.lock().unwrap();
        sleep(ms(20)).await;
        drop(held);
    };
    let local = LocalSet::new();
    local.spawn_local(instrument_future("cache_update", hold(Arc::clone(&cache))));
    local.spawn_local(instrument_future("cache_read", hold(cache)));
    ward.current_thread(16).block_on(local);
}

fn lifo_child(ward: &'static Ward) {
    let parse = async {
        for _ in 0..6 {
            let release = tokio::spawn(instrument_future("release", tokio::task::yield_now()));
            tools::burn(ms(300));
            release.await.unwrap();
            sleep(ms(50)).await;
        }
    };
    ward.runtime(4, 16).block_on(async { tokio::spawn(instrument_future("parse", parse)).await.unwrap() });
}
