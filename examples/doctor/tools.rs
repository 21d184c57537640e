//! What the cases are built of: threads that compute, threads that sleep, and futures to go with them.

use std::future::Future;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Holds the thread without a CPU, as a read, a lock or a call to another machine does.
pub(crate) fn block(duration: Duration) {
    thread::sleep(duration);
}

/// Computes until this thread has been on a CPU for so long, however long that takes on a busy machine.
pub(crate) fn burn(cpu: Duration) {
    let end = thread_cpu() + cpu;
    while thread_cpu() < end {
        (0..1_000).for_each(|_| std::hint::spin_loop());
    }
}

fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

/// Runs `round` again and again for so long.
pub(crate) async fn repeat(duration: Duration, mut round: impl AsyncFnMut()) {
    let start = Instant::now();
    while start.elapsed() < duration {
        round().await;
    }
}

/// A `block_on` that Tokio knows nothing of, as other libraries bring their own.
pub(crate) fn foreign_block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// A task that does a little every few milliseconds, and is late when its runtime is.
pub(crate) fn heartbeat(op: &'static str, every: Duration) {
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(every).await;
            starvation::instrument_future(op, tokio::task::yield_now()).await;
        }
    });
}

/// A name in the directory for temporary files that no other process uses.
pub(crate) fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("doctor-{}-{name}", std::process::id()))
}
