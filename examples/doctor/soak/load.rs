//! The load: requests over real sockets, files, timers, locks, permits, and blocking jobs from 1 ms to 20 s.

use crate::http;
use crate::tools::{block, burn, heartbeat, ms, scratch};
use axum::Router;
use axum::routing::get;
use starvation::{instrument_blocking, instrument_future, instrument_wait};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::time::sleep;

/// How many blocking jobs there are at once, at most.
const JOBS: u64 = 24;

/// The pool has room for all jobs, and for the files.
pub(crate) const POOL: usize = 64;

/// Numbers that look random and are the same in each run.
#[derive(Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// At least `low` and below `high`.
    pub(crate) const fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        low + (self.0 >> 11) % (high - low)
    }
}

/// Runs it for so long. How many requests were answered.
pub(crate) async fn run(duration: Duration) -> u64 {
    let file = scratch("page");
    std::fs::write(&file, vec![b'x'; 64 << 10]).unwrap();
    let clients = http::clients(
        http::serve(routes(file.clone())).await,
        4,
        &["/page", "/file", "/thumbnail", "/page", "/permit"],
        ms(7),
        duration,
    );
    heartbeat("ping", ms(10));
    let start = Instant::now();
    for number in 0..JOBS {
        tokio::spawn(jobs(number));
    }
    sleep(duration.saturating_sub(start.elapsed())).await;
    let answered = tokio::task::spawn_blocking(|| clients.into_iter().map(|client| client.join().unwrap()).sum());
    let answered = answered.await.unwrap();
    std::fs::remove_file(file).unwrap();
    answered
}

fn routes(file: PathBuf) -> Router {
    let visits = Arc::new(Mutex::new(0_u64));
    let permits = Arc::new(Semaphore::new(8));
    let page = move || {
        let visits = Arc::clone(&visits);
        instrument_future("page", async move {
            *visits.lock().unwrap() += 1;
            sleep(ms(2)).await;
            burn(Duration::from_micros(500));
        })
    };
    let read = move || {
        let file = file.clone();
        instrument_future("file", async move { tokio::fs::read(file).await.unwrap() })
    };
    let thumbnail =
        || instrument_future("thumbnail", async { instrument_blocking("shrink", || burn(ms(3))).await.unwrap() });
    let permit = move || {
        let permits = Arc::clone(&permits);
        instrument_future("upload", async move {
            let _permit = instrument_wait("permit", permits.acquire()).await.unwrap();
            sleep(ms(5)).await;
        })
    };
    Router::new()
        .route("/page", get(page))
        .route("/file", get(read))
        .route("/thumbnail", get(thumbnail))
        .route("/permit", get(permit))
}

/// One job after the other, each line of them with a mix of its own: short ones, long ones, now and then a very long one.
async fn jobs(number: u64) {
    let mut dice = Dice::new(number + 1);
    loop {
        let (op, shortest, longest) = match (number % 4, dice.between(0, 100)) {
            (0, _) => ("index", 1, 20),
            (1, _) => ("fetch", 50, 2_000),
            (2, 0..90) => ("export", 5, 50),
            (2, _) => ("export", 2_000, 20_000),
            (_, 0..95) => ("backup", 500, 5_000),
            _ => ("backup", 15_000, 20_000),
        };
        let length = ms(dice.between(shortest, longest));
        let job = async move { instrument_blocking(op, move || block(length)).await.unwrap() };
        instrument_future("job", job).await;
        sleep(ms(dice.between(5, 100))).await;
    }
}
