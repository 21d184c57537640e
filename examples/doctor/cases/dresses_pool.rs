//! Faults of pools in other dresses than the reports: the rule is to be right, not the case.

use crate::case::{Case, Expected};
use crate::host::{limit_address_space, make_fifo};
use crate::tools::{block, burn, ms, repeat, scratch};
use crate::ward::Ward;
use starvation::{instrument_blocking, instrument_future, instrument_job, instrument_wait};
use std::sync::{Arc, Barrier};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{sleep, timeout};

const SATURATED: Expected = Expected::fault(&["pool_saturated"]);
const DEADLOCK: Expected = Expected::fault(&["pool_deadlock"]).actions(&["avoid_nested", "separate_pool", "go_async"]);
const LEAK: Expected = Expected::fault(&["pool_leak"]).culprit(&["listener"]).actions(&["dedicated_thread"]);

pub(crate) const CASES: &[Case] = &[
    Case::new(
        "unwrapped_pool",
        "jobs that nobody wrapped hold the pool; the one that is wrapped is innocent",
        unwrapped_pool,
        SATURATED.innocent(&["thumbnail", "page"]).victim("thumbnail"),
    ),
    Case::new(
        "nested_three_deep",
        "a job waits for a job that waits for a job",
        nested_three_deep,
        DEADLOCK.detail(&["nested"]).culprit(&["outer", "middle"]).victim("inner"),
    )
    .judged_after(2_000),
    Case::new(
        "nested_once",
        "a job waits for another of its own pool; it does not hang yet",
        nested_once,
        DEADLOCK.detail(&["nested"]).culprit(&["resolve"]).low_confidence(),
    )
    .hooks(),
    Case::new(
        "circular_oneshot",
        "jobs that hold all threads wait for a message that a queued job is to send",
        circular_oneshot,
        DEADLOCK.detail(&["circular"]).culprit(&["reader"]).victim("writer"),
    )
    .hooks()
    .judged_after(2_500),
    Case::new("leak_of_one", "one of four threads never comes back, and the others still suffice", leak_of_one, LEAK)
        .window(1_000),
    Case::new(
        "leak_of_three",
        "three of four threads never come back, and calls queue for the last one",
        leak_of_three,
        LEAK.victim("query"),
    )
    .hooks()
    .window(1_000),
    Case::new(
        "abandoned_calls",
        "callers give up after 100 ms, and their calls still run, one after the other",
        abandoned_calls,
        SATURATED
            .detail(&["io"])
            .culprit(&["report"])
            .effects(&["abandoned_work"])
            .actions(&["cancel_abandoned", "raise_pool"]),
    ),
    Case::new(
        "thread_limit",
        "the system refuses further threads, and the pool says nothing",
        thread_limit,
        Expected::fault(&["pool_stalled"]).detail(&["no_thread"]).nobody().victim("render").actions(&["check_limits"]),
    ),
    Case::new(
        "hand_off_lost",
        "block_in_place has nobody to give the worker to, for the pool is full",
        hand_off_lost,
        Expected::fault(&["long_poll", "pool_saturated"]).culprit(&["convert", "export"]).effects(&["hand_off_lost"]),
    )
    .hooks(),
    Case::new(
        "rayon_queue",
        "a pool that is not Tokio's has more computing jobs than threads",
        rayon_queue,
        SATURATED.detail(&["cpu"]).culprit(&["resize"]).actions(&["bound_cpu_pool", "separate_pool", "none"]),
    ),
    Case::new(
        "wrapped_connection_wait",
        "blocking jobs hold their threads while they wait for a connection, and say so",
        wrapped_connection_wait,
        Expected::fault(&["pool_saturated", "downstream_limit"])
            .culprit(&["query", "connection"])
            .incidents(&[("pool_saturated", "query")])
            .actions(&["separate_pool", "look_downstream", "raise_pool"]),
    )
    .hooks(),
    Case::new(
        "files_hold_pool",
        "files that take for ever to open hold the pool, and nobody sees them; the waiting job is innocent",
        files_hold_pool,
        Expected::fault(&["pool_saturated", "pool_leak"]).innocent(&["thumbnail", "page"]).victim("thumbnail"),
    )
    .judged_after(2_500),
    Case::new(
        "pool_mixed",
        "jobs that compute for a while and wait for a while fill their pool",
        pool_mixed,
        SATURATED.detail(&["mixed"]).culprit(&["render"]).victim("render"),
    )
    .hooks(),
];

fn unwrapped_pool(ward: &'static Ward) {
    ward.runtime(2, 4).block_on(async {
        for _ in 0..8 {
            tokio::spawn(repeat(ms(60_000), async || tokio::task::spawn_blocking(|| block(ms(300))).await.unwrap()));
        }
        sleep(ms(50)).await;
        let page = repeat(ms(3_000), async || {
            instrument_blocking("thumbnail", || block(ms(1))).await.unwrap();
        });
        tokio::spawn(instrument_future("page", page)).await.unwrap();
    });
}

fn nested_three_deep(ward: &'static Ward) {
    fn wait_for(middle: impl FnOnce() + Send + 'static, op: &'static str) {
        Handle::current().block_on(instrument_blocking(op, middle)).unwrap();
    }
    ward.runtime(2, 4).block_on(async {
        // All threads are held before the first waits for an inner call.
        let all = Arc::new(Barrier::new(2));
        let chain = || {
            let all = Arc::clone(&all);
            let middle = move || {
                all.wait();
                wait_for(|| (), "inner");
            };
            instrument_blocking("outer", move || wait_for(middle, "middle"))
        };
        for job in (0..2).map(|_| chain()).collect::<Vec<_>>() {
            job.await.unwrap();
        }
    });
}

fn nested_once(ward: &'static Ward) {
    ward.runtime(2, 4).block_on(repeat(ms(2_000), async || {
        let resolve = || Handle::current().block_on(instrument_blocking("read_file", || block(ms(20)))).unwrap();
        instrument_blocking("resolve", resolve).await.unwrap();
        sleep(ms(20)).await;
    }));
}

fn circular_oneshot(ward: &'static Ward) {
    ward.runtime(2, 2).block_on(async {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..2).map(|_| oneshot::channel::<()>()).unzip();
        let read = |message: oneshot::Receiver<()>| instrument_blocking("reader", || message.blocking_recv());
        let readers: Vec<_> = receivers.into_iter().map(read).collect();
        sleep(ms(50)).await;
        for sender in senders {
            instrument_blocking("writer", || sender.send(())).await.unwrap().unwrap();
        }
        drop(readers);
    });
}

/// Takes so many of four threads for good, and then asks the rest for more than one can do, but not for more than two.
fn leak(ward: &'static Ward, lost: usize) {
    ward.runtime(2, 4).block_on(async {
        for _ in 0..lost {
            drop(instrument_blocking("listener", || {
                loop {
                    block(ms(10));
                }
            }));
        }
        for _ in 0..4 {
            tokio::spawn(repeat(ms(60_000), async || {
                instrument_blocking("query", || block(ms(40))).await.unwrap();
                sleep(ms(20)).await;
            }));
        }
        sleep(ms(6_000)).await;
    });
}

fn leak_of_one(ward: &'static Ward) {
    leak(ward, 1);
}

fn leak_of_three(ward: &'static Ward) {
    leak(ward, 3);
}

fn abandoned_calls(ward: &'static Ward) {
    ward.runtime(2, 2).block_on(repeat(ms(3_500), async || {
        tokio::spawn(timeout(ms(100), instrument_blocking("report", || block(ms(250)))));
        sleep(ms(60)).await;
    }));
}

fn thread_limit(ward: &'static Ward) {
    let runtime = ward.build(Builder::new_multi_thread().worker_threads(2).thread_stack_size(512 << 20));
    runtime.block_on(async {
        // With no thread at all Tokio panics; with one it goes on without a word.
        instrument_blocking("render", || block(ms(1))).await.unwrap();
        limit_address_space(256 << 20);
        for _ in 0..6 {
            tokio::spawn(repeat(ms(60_000), async || {
                instrument_blocking("render", || block(ms(100))).await.unwrap();
            }));
        }
        sleep(ms(3_000)).await;
    });
}

fn hand_off_lost(ward: &'static Ward) {
    // The workers themselves run on threads of the pool, beyond its limit.
    ward.runtime(1, 1).block_on(async {
        let export = instrument_blocking("export", || block(ms(2_500)));
        let convert = async {
            sleep(ms(100)).await;
            for _ in 0..4 {
                tokio::task::block_in_place(|| block(ms(400)));
                sleep(ms(50)).await;
            }
        };
        let convert = tokio::spawn(instrument_future("convert", convert));
        tokio::spawn(repeat(ms(60_000), async || {
            sleep(ms(10)).await;
            instrument_future("request", tokio::task::yield_now()).await;
        }));
        convert.await.unwrap();
        export.await.unwrap();
    });
}

fn rayon_queue(ward: &'static Ward) {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    ward.runtime(2, 4).block_on(repeat(ms(3_000), async || {
        let (done, finished) = oneshot::channel();
        let last = Arc::new(std::sync::Mutex::new(Some(done)));
        let left = Arc::new(std::sync::atomic::AtomicUsize::new(12));
        for _ in 0..12 {
            let (last, left) = (Arc::clone(&last), Arc::clone(&left));
            pool.spawn(instrument_job("resize", move || {
                burn(ms(100));
                // SeqCst: nothing here is worth a thought about less.
                if left.fetch_sub(1, std::sync::atomic::Ordering::SeqCst) == 1 {
                    let _ = last.lock().unwrap().take().map(|done| done.send(()));
                }
            }));
        }
        finished.await.unwrap();
    }));
}

fn wrapped_connection_wait(ward: &'static Ward) {
    ward.runtime(2, 4).block_on(async {
        let connections = Arc::new(Semaphore::new(1));
        for _ in 0..8 {
            let connections = Arc::clone(&connections);
            tokio::spawn(repeat(ms(60_000), async move || {
                let connections = Arc::clone(&connections);
                let query = move || {
                    let connection = instrument_wait("connection", connections.acquire());
                    let _connection = Handle::current().block_on(connection).unwrap();
                    block(ms(150));
                };
                instrument_blocking("query", query).await.unwrap();
            }));
        }
        sleep(ms(3_000)).await;
    });
}

fn files_hold_pool(ward: &'static Ward) {
    let path = scratch("never-opened");
    make_fifo(&path);
    ward.runtime(2, 2).block_on(async {
        for _ in 0..2 {
            tokio::spawn(tokio::fs::File::open(path.clone()));
        }
        sleep(ms(50)).await;
        let page = async { instrument_blocking("thumbnail", || block(ms(1))).await.unwrap() };
        let page = tokio::spawn(instrument_future("page", page));
        sleep(ms(100)).await;
        // Those who have it open already need no name.
        std::fs::remove_file(&path).unwrap();
        page.await.unwrap();
    });
}

fn pool_mixed(ward: &'static Ward) {
    ward.runtime(2, 2).block_on(async {
        for _ in 0..8 {
            tokio::spawn(repeat(ms(60_000), async || {
                let render = || {
                    burn(ms(40));
                    block(ms(60));
                };
                instrument_blocking("render", render).await.unwrap();
            }));
        }
        sleep(ms(3_000)).await;
    });
}
