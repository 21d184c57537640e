//! Reports of what is handed out: permits, connections, turns.

use crate::case::{Case, Expected};
use crate::tools::{block, ms, repeat};
use crate::ward::Ward;
use starvation::{instrument_blocking, instrument_future, instrument_wait};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::sleep;

pub(crate) const CASES: &[Case] = &[
    Case::new(
        "biased_select",
        "a biased select takes from a channel that is never empty, and never from the other",
        biased_select,
        Expected::fault(&["unfair"]).culprit(&["control", "orders"]).actions(&["none", "yield", "look_downstream"]),
    )
    .hooks(),
    Case::new(
        "biased_unwrapped",
        "the same, with nothing wrapped that could show it: it is nobody else's fault",
        biased_unwrapped,
        Expected::healthy(&["healthy", "undetermined"]),
    ),
    Case::new(
        "permit_holder",
        "the only consumer of a channel waits for a permit before it receives",
        permit_holder,
        Expected::fault(&["downstream_limit"])
            .culprit(&["cpu_budget", "queue_slot"])
            .incidents(&[("downstream_limit", "cpu_budget")])
            .actions(&["look_downstream"]),
    ),
    Case::new(
        "few_permits",
        "64 tasks share four permits",
        few_permits,
        Expected::fault(&["downstream_limit"]).culprit(&["permit"]).actions(&["look_downstream"]),
    )
    .hooks(),
    Case::new(
        "connections_in_jobs",
        "blocking jobs wait for a connection while they hold a thread, and others for the thread",
        connections_in_jobs,
        Expected::fault(&["pool_saturated"]).detail(&["io"]).culprit(&["query"]).victim("render").actions(&[
            "separate_pool",
            "look_downstream",
            "raise_pool",
            // A connection that one at a time may have is a lock.
            "shorten_lock",
        ]),
    ),
];

/// A consumer of two channels that always looks at the first one first, and it is never empty.
async fn consume(watched: bool) {
    let (orders, mut next_order) = mpsc::channel(64);
    let (control, mut next_control) = mpsc::channel(64);
    let consumer = async move {
        if watched {
            let mut control = pin!(instrument_wait("control", next_control.recv()));
            loop {
                tokio::select! {
                    biased;
                    _ = instrument_wait("orders", next_order.recv()) => sleep(ms(1)).await,
                    _ = &mut control => break,
                }
            }
        } else {
            loop {
                tokio::select! {
                    biased;
                    _ = next_order.recv() => sleep(ms(1)).await,
                    _ = next_control.recv() => break,
                }
            }
        }
    };
    let session = tokio::spawn(instrument_future("session", consumer));
    // Both have been found empty once before the flood.
    sleep(ms(100)).await;
    tokio::spawn(async move { while orders.send(()).await.is_ok() {} });
    sleep(ms(100)).await;
    control.send(()).await.unwrap();
    let _ = tokio::time::timeout(ms(2_500), session).await;
}

fn biased_select(ward: &'static Ward) {
    ward.runtime(2, 16).block_on(consume(true));
}

fn biased_unwrapped(ward: &'static Ward) {
    ward.runtime(2, 16).block_on(consume(false));
}

fn permit_holder(ward: &'static Ward) {
    ward.runtime(2, 16).block_on(async {
        let budget = Arc::new(Semaphore::new(1));
        let (send, mut receive) = mpsc::channel(8);
        let optimiser_budget = Arc::clone(&budget);
        let optimise = async move {
            loop {
                let _permit = optimiser_budget.acquire().await.unwrap();
                sleep(ms(1_000)).await;
            }
        };
        tokio::spawn(instrument_future("optimiser", optimise));
        for _ in 0..20 {
            let send = send.clone();
            let sender = repeat(ms(60_000), async move || {
                instrument_wait("queue_slot", send.send(())).await.unwrap();
            });
            tokio::spawn(instrument_future("sender", sender));
        }
        let consumer = async move {
            loop {
                let permit = instrument_wait("cpu_budget", budget.acquire()).await.unwrap();
                receive.recv().await.unwrap();
                drop(permit);
            }
        };
        tokio::spawn(instrument_future("consumer", consumer));
        sleep(ms(3_500)).await;
    });
}

fn few_permits(ward: &'static Ward) {
    ward.runtime(2, 16).block_on(async {
        let permits = Arc::new(Semaphore::new(4));
        let upload = |permits: Arc<Semaphore>| async move {
            let _permit = instrument_wait("permit", permits.acquire()).await.unwrap();
            sleep(ms(200)).await;
        };
        let uploads: Vec<_> =
            (0..64).map(|_| tokio::spawn(instrument_future("upload", upload(Arc::clone(&permits))))).collect();
        for upload in uploads {
            upload.await.unwrap();
        }
    });
}

fn connections_in_jobs(ward: &'static Ward) {
    ward.runtime(2, 4).block_on(async {
        let connection = Arc::new(Mutex::new(()));
        for _ in 0..8 {
            let connection = Arc::clone(&connection);
            tokio::spawn(repeat(ms(60_000), async move || {
                let connection = Arc::clone(&connection);
                let query = move || {
                    let _connection = connection.lock();
                    block(ms(150));
                };
                instrument_blocking("query", query).await.unwrap();
            }));
        }
        repeat(ms(3_000), async || {
            tokio::spawn(instrument_blocking("render", || block(ms(1))));
            sleep(ms(100)).await;
        })
        .await;
    });
}
