//! Reports of blocking pools: full, too small, waiting for themselves, never given back, or asked too often.

use crate::case::{Case, Expected};
use crate::tools::{block, burn, ms, repeat};
use crate::ward::Ward;
use starvation::{instrument_blocking, instrument_blocking_on, instrument_future};
use std::sync::{Arc, Barrier};
use tokio::runtime::Handle;

pub(crate) const CASES: &[Case] = &[
    Case::new(
        "pool_cpu_trace",
        "long computing jobs keep small ones out of the pool that they share",
        pool_cpu_trace,
        Expected::fault(&["pool_saturated"])
            .detail(&["cpu"])
            .culprit(&["trace"])
            .victim("eth")
            .actions(&["separate_pool", "bound_cpu_pool"]),
    )
    .hooks(),
    Case::new(
        "undersized_runtime",
        "reads are sent to a runtime whose pool has one thread, and a long job on it",
        undersized_runtime,
        Expected::fault(&["pool_saturated"])
            .detail(&["io"])
            .culprit(&["optimise"])
            .victim("read")
            .actions(&["raise_pool", "separate_pool"]),
    ),
    Case::new(
        "nested_block_on",
        "jobs that hold all threads wait for jobs behind them",
        nested_block_on,
        Expected::fault(&["pool_deadlock"]).detail(&["nested"]).culprit(&["outer"]).victim("inner").actions(&[
            "avoid_nested",
            "separate_pool",
            "go_async",
        ]),
    )
    .hooks()
    .judged_after(2_000),
    Case::new(
        "endless_loops",
        "loops that never end hold all threads",
        endless_loops,
        Expected::fault(&["pool_leak"]).culprit(&["runner"]).victim("job").actions(&["dedicated_thread"]),
    )
    .window(1_500)
    .judged_after(4_000),
    Case::new(
        "tiny_calls",
        "thousands of tiny calls, one after the other, each a trip through the pool",
        tiny_calls,
        Expected::fault(&["dispatch_overhead"]).culprit(&["metadata", "walk"]).actions(&["batch"]),
    ),
    Case::new(
        "hidden_dns",
        "a name lookup and a file wait for threads that other jobs hold, and nobody wrapped them",
        hidden_dns,
        Expected::fault(&["pool_saturated"])
            .detail(&["io"])
            .culprit(&["thumbnail"])
            .actions(&["raise_pool", "separate_pool"]),
    )
    .hooks(),
];

fn pool_cpu_trace(ward: &'static Ward) {
    ward.runtime(2, 4).block_on(async {
        for _ in 0..8 {
            tokio::spawn(async {
                loop {
                    instrument_blocking("trace", || burn(ms(300))).await.unwrap();
                }
            });
        }
        repeat(ms(3_000), async || {
            tokio::spawn(instrument_blocking("eth", || burn(ms(1))));
            tokio::time::sleep(ms(50)).await;
        })
        .await;
    });
}

fn undersized_runtime(ward: &'static Ward) {
    let serving = ward.runtime(2, 64);
    let updating = ward.runtime(1, 1).handle();
    serving.block_on(async {
        let optimise = instrument_blocking_on(updating, "optimise", || block(ms(3_000)));
        tokio::time::sleep(ms(50)).await;
        let reads: Vec<_> = (0..10).map(|_| instrument_blocking_on(updating, "read", || block(ms(1)))).collect();
        optimise.await.unwrap();
        for read in reads {
            instrument_future("request", read).await.unwrap();
        }
    });
}

fn nested_block_on(ward: &'static Ward) {
    ward.runtime(2, 4).block_on(async {
        // All threads are held before the first waits.
        let all = Arc::new(Barrier::new(4));
        let outer = || {
            let all = Arc::clone(&all);
            instrument_blocking("outer", move || {
                all.wait();
                Handle::current().block_on(instrument_blocking("inner", || ()))
            })
        };
        for job in (0..4).map(|_| outer()).collect::<Vec<_>>() {
            job.await.unwrap().unwrap();
        }
    });
}

fn endless_loops(ward: &'static Ward) {
    ward.runtime(2, 4).block_on(async {
        for _ in 0..4 {
            drop(instrument_blocking("runner", || {
                loop {
                    block(ms(10));
                }
            }));
        }
        tokio::time::sleep(ms(100)).await;
        instrument_future("request", instrument_blocking("job", || block(ms(1)))).await.unwrap();
    });
}

fn tiny_calls(ward: &'static Ward) {
    let walk = async {
        repeat(ms(2_000), async || {
            instrument_blocking("metadata", || std::fs::metadata("/")).await.unwrap().unwrap();
        })
        .await;
    };
    ward.runtime(2, 64).block_on(async { tokio::spawn(instrument_future("walk", walk)).await.unwrap() });
}

fn hidden_dns(ward: &'static Ward) {
    ward.runtime(2, 4).block_on(async {
        for _ in 0..4 {
            let jobs: Vec<_> = (0..4).map(|_| instrument_blocking("thumbnail", || block(ms(780)))).collect();
            let fetch = async {
                tokio::time::sleep(ms(20)).await;
                let _ = tokio::net::lookup_host("localhost:80").await;
                let _ = tokio::fs::metadata("/").await;
            };
            tokio::spawn(instrument_future("fetch", fetch)).await.unwrap();
            for job in jobs {
                job.await.unwrap();
            }
        }
    });
}
