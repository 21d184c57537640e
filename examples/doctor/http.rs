//! Requests over real sockets, from threads that are not in the runtime.

use axum::Router;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

/// Serves `router` on the current runtime.
pub(crate) async fn serve(router: Router) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// One request; whether it was answered.
pub(crate) fn get(address: SocketAddr, path: &str) -> bool {
    let Ok(mut stream) = TcpStream::connect(address) else { return false };
    let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
    let request = format!("GET {path} HTTP/1.1\r\nHost: doctor\r\nConnection: close\r\n\r\n");
    let mut answer = Vec::new();
    stream.write_all(request.as_bytes()).is_ok() && stream.read_to_end(&mut answer).is_ok() && !answer.is_empty()
}

/// So many clients that each ask for the paths in turn with a pause in between, for so long.
pub(crate) fn clients(
    address: SocketAddr,
    count: usize,
    paths: &'static [&'static str],
    pause: Duration,
    duration: Duration,
) -> Vec<JoinHandle<u64>> {
    let client = move |first: usize| {
        let start = Instant::now();
        let mut answered = 0;
        for path in paths.iter().cycle().skip(first * 3) {
            if start.elapsed() >= duration {
                break;
            }
            answered += u64::from(get(address, path));
            thread::sleep(pause);
        }
        answered
    };
    (0..count).map(|first| thread::spawn(move || client(first))).collect()
}
