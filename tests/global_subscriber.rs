//! A program with a subscriber of its own and, on one thread, another: neither gets the other's spans, and no call fails.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod support;

use starvation::{instrument_blocking_on, instrument_future};
use support::capture::subscriber;
use support::{current_thread, multi_thread};
use tracing::Level;

#[test]
fn a_scoped_subscriber_beside_the_global_one_gets_its_own_spans_and_harms_no_call() {
    let (global, of_all) = subscriber(Level::TRACE);
    tracing::subscriber::set_global_default(global).unwrap();
    let pool = current_thread(1);
    let runtime = multi_thread(1, 1);

    // A span of the program's own, open all the time: a wrong release would close it.
    let long = tracing::info_span!("long");
    let (scoped, of_thread) = subscriber(Level::TRACE);
    tracing::subscriber::with_default(scoped, || {
        for _ in 0..10 {
            let request = tracing::info_span!("request");
            let call = request.in_scope(|| instrument_blocking_on(pool.handle(), "global::scoped", || 5));
            let watched = request.in_scope(|| instrument_future("global::scoped_future", call));
            let result = runtime.block_on(async { tokio::spawn(watched).await.unwrap() });
            assert_eq!(result.unwrap(), 5);
        }
    });
    drop((pool, runtime));
    let names: Vec<_> = of_all.log().spans.iter().map(|span| span.name).collect();
    assert_eq!(names, ["long"]);
    assert!(of_all.only("long").1.closed.is_none());
    drop(long);
    assert!(of_all.only("long").1.closed.is_some());
    let log = of_thread.log();
    assert_eq!(log.spans.iter().filter(|span| span.name == "blocking_call").count(), 10);
    let open: Vec<_> = log.spans.iter().filter(|span| span.closed.is_none()).map(|span| span.name).collect();
    assert!(open.is_empty(), "{open:?} are still open");
}
