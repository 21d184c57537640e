//! The shortest way to see the crate at work: a pool that is too small, and a report that says so.
//!
//! ```text
//! cargo run --example quickstart
//! ```

#![allow(clippy::print_stdout, reason = "an example shows what it found")]

use std::{error::Error, thread, time::Duration};
use tracing_subscriber::fmt::format::debug_fn;

fn main() -> Result<(), Box<dyn Error>> {
    // Whatever subscriber you have will do. This one shows the sentence of each report without its many fields.
    let sentence = debug_fn(|out, field, value| match field.name() {
        "message" => write!(out, "{value:?}"),
        _ => Ok(()),
    });
    tracing_subscriber::fmt().fmt_fields(sentence).with_target(false).init();

    // Two threads for all blocking calls, and twelve requests at once that make one each.
    let runtime = tokio::runtime::Builder::new_multi_thread().max_blocking_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let _detector = starvation::Detector::start()?;
        let requests: Vec<_> = (0..12).map(|_| tokio::spawn(request())).collect();
        for request in requests {
            let ledger = request.await?;
            println!("a request took {:.0?}, of that {:.0?} queued for a thread", ledger.total, ledger.blocking_queue);
        }
        Ok(())
    })
}

/// One request, and where its time went.
async fn request() -> starvation::Ledger {
    let query = async { starvation::instrument_blocking("query", || thread::sleep(Duration::from_millis(40))).await };
    let (_done, ledger) = starvation::instrument_future("request", query).timed().await;
    ledger
}
