//! Reports of processes that get no CPU, or are not running at all: no op is to blame.

use crate::case::{Case, Expected};
use crate::host::{fork_and_exit, limit_cpu, spare_memory, spinners, throttled_percent, touched_memory};
use crate::tools::{burn, heartbeat, ms, repeat};
use crate::ward::Ward;
use starvation::{instrument_blocking, instrument_future};
use tokio::time::sleep;

const CONTENTION: Expected = Expected::fault(&["cpu_contention"]).nobody();

pub(crate) const CASES: &[Case] = &[
    Case::new(
        "big_fork",
        "a process of 4 GB forks: all of its threads wait for the page tables to be copied",
        big_fork,
        Expected::fault(&["process_paused"]).detail(&["memory", "unknown"]).nobody().actions(&[
            "look_at_host",
            "none",
            "check_limits",
        ]),
    ),
    Case::new(
        "cpu_quota",
        "eight busy workers share half a CPU",
        cpu_quota,
        CONTENTION.detail(&["quota"]).actions(&["fit_workers_to_quota", "look_at_host", "check_limits"]),
    )
    .hooks(),
    Case::new(
        "neighbours",
        "other processes use every CPU",
        neighbours,
        CONTENTION.detail(&["neighbours"]).actions(&["look_at_host"]),
    ),
];

fn big_fork(ward: &'static Ward) {
    touched_memory(spare_memory().min(4 << 30));
    ward.runtime(2, 16).block_on(async {
        heartbeat("ping", ms(1));
        for _ in 0..6 {
            instrument_blocking("spawn_child", fork_and_exit).await.unwrap();
            sleep(ms(200)).await;
        }
    });
}

fn cpu_quota(ward: &'static Ward) {
    let limited = limit_cpu(ms(50));
    let _spinners = (!limited).then(|| {
        ward.expect_instead(CONTENTION.detail(&["neighbours"]).actions(&["look_at_host"]));
        spinners(16)
    });
    ward.runtime(8, 16).block_on(async {
        for _ in 0..8 {
            tokio::spawn(repeat(ms(60_000), async || {
                instrument_future("request", async { burn(ms(6)) }).await;
                sleep(ms(14)).await;
            }));
        }
        sleep(ms(3_000)).await;
    });
    // Where other processes leave it even less than its quota that holds nothing back.
    if limited && throttled_percent().is_some_and(|percent| percent < 70) {
        ward.expect_instead(CONTENTION.detail(&["quota", "neighbours"]).actions(&[
            "fit_workers_to_quota",
            "look_at_host",
            "check_limits",
        ]));
    }
}

fn neighbours(ward: &'static Ward) {
    let _spinners = spinners(24);
    ward.runtime(2, 16).block_on(async {
        heartbeat("ping", ms(10));
        for _ in 0..2 {
            tokio::spawn(repeat(ms(60_000), async || {
                instrument_future("request", async { burn(ms(8)) }).await;
                sleep(ms(5)).await;
            }));
        }
        sleep(ms(4_000)).await;
    });
}
