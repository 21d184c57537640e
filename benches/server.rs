//! Requests per second of a small HTTP server with and without instrumentation, end to end.
//!
//! An axum server on loopback, on a runtime of its own, has two handlers, each bare and instrumented: one that only computes
//! its answer, and one that awaits a small blocking call. Eight keep-alive clients in the same process send one request
//! after the other. Short rounds go to the bare and to the instrumented path in turn, over the same connections; the figure is
//! the median over the rounds of instrumented over bare. A detector runs all the time. No budget is held against it: it
//! shows what the other benchmarks' figures come to in a program.
//!
//! ```text
//! cargo bench --bench server
//! ```

#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::hint::black_box;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::{Router, routing::get};
use futures_util::future::join_all;
use support::{Budgets, Scale, interleave, median, spread, start_detector};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::time::timeout;

const CLIENTS: usize = 8;
const PATIENCE: Duration = Duration::from_secs(20);

fn main() {
    let scale = Scale::from_args();
    let server = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let client = Builder::new_current_thread().enable_all().build().unwrap();
    let detector = start_detector(&server);

    let listener = server.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    server.spawn(async move { axum::serve(listener, app()).await });

    let mut connections = client.block_on(connect(address));
    let mut budgets = Budgets::default();
    for (name, paths) in [
        ("plain handler", ["/bare/plain", "/instrumented/plain"]),
        ("handler with a blocking call", ["/bare/call", "/instrumented/call"]),
    ] {
        let requests = scale.pick(60, 40, 2);
        let mut round =
            |variant: usize| client.block_on(requests_per_second(&mut connections, paths[variant], requests));
        interleave::<2>(scale.pick(10, 2, 1), &mut round);
        let [bare, instrumented] = interleave::<2>(scale.pick(200, 20, 1), &mut round);
        let ratios: Vec<_> = instrumented.iter().zip(&bare).map(|(i, b)| i / b).collect();
        println!("{name}: requests per second, median (95 % sure)");
        println!("  bare          {}", spread(&bare, "/s"));
        println!("  instrumented  {}", spread(&instrumented, "/s"));
        budgets.note(format!("{name}: instrumented / bare"), median(&ratios), "x");
    }
    budgets.print("Requests per second, as a multiple of the bare server's", scale);

    drop(connections);
    drop(detector);
    server.shutdown_background();
}

fn app() -> Router {
    Router::new()
        .route("/bare/plain", get(plain))
        .route("/instrumented/plain", get(|| starvation::instrument_future("plain", plain())))
        .route("/bare/call", get(async || tokio::task::spawn_blocking(work).await.unwrap()))
        .route(
            "/instrumented/call",
            get(|| {
                starvation::instrument_future("handler", async {
                    starvation::instrument_blocking("work", work).await.unwrap()
                })
            }),
        )
}

async fn plain() -> String {
    work()
}

/// A few microseconds of computing.
fn work() -> String {
    let sum = (0..5_000_u64).fold(0, |sum: u64, n| sum.rotate_left(5) ^ black_box(n));
    format!("{sum:016x}")
}

async fn connect(address: SocketAddr) -> Vec<TcpStream> {
    let mut connections = Vec::new();
    for _ in 0..CLIENTS {
        let connection = timeout(PATIENCE, TcpStream::connect(address)).await.expect("connects in time").unwrap();
        connection.set_nodelay(true).unwrap();
        connections.push(connection);
    }
    connections
}

async fn requests_per_second(connections: &mut [TcpStream], path: &str, requests: usize) -> f64 {
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let clients = connections.len();
    let start = Instant::now();
    let all = join_all(connections.iter_mut().map(|connection| {
        let request = request.as_bytes();
        async move {
            for _ in 0..requests {
                exchange(connection, request).await;
            }
        }
    }));
    timeout(PATIENCE, all).await.expect("the server answers in time");
    (requests * clients) as f64 / start.elapsed().as_secs_f64()
}

/// One request and its whole answer. The answers have no body but the sixteen digits.
async fn exchange(connection: &mut TcpStream, request: &[u8]) {
    connection.write_all(request).await.unwrap();
    let mut answer = [0; 1024];
    let mut filled = 0;
    loop {
        let read = connection.read(&mut answer[filled..]).await.unwrap();
        assert!(read > 0, "the server closed the connection");
        filled += read;
        let end_of_head = answer[..filled].windows(4).position(|four| four == b"\r\n\r\n");
        if end_of_head.is_some_and(|head| filled == head + 4 + 16) {
            assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer[..filled]));
            return;
        }
    }
}
