//! A thread that goes into the runtimes on the observer's behalf.
//!
//! To submit a job takes the lock of the pool's queue, under which the pool also starts threads and calls the function of
//! the user's that names them; to spawn a task takes others, and calls back where the user has asked for it. Whoever holds
//! such a lock may be preempted. The observer waits for none of that: this thread does, and if it hangs that shows as a
//! job that was never submitted.

use crossbeam_queue::SegQueue;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};

type Errand = Box<dyn FnOnce() + Send>;

struct Shared {
    errands: SegQueue<Errand>,
    over: AtomicBool,
}

/// The observer's end. Dropping it ends the thread, which is not waited for: it may be waiting itself.
pub(crate) struct Errands {
    shared: Arc<Shared>,
    thread: Thread,
}

impl Errands {
    pub(crate) fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared { errands: SegQueue::new(), over: AtomicBool::new(false) });
        let of_thread = Arc::clone(&shared);
        let run = move || of_thread.run();
        let thread = thread::Builder::new().name("starvation-probe".to_owned()).spawn(run)?.thread().clone();
        Ok(Self { shared, thread })
    }

    /// Has something done, without waiting. It must not panic. Whoever sends sends a next one only after that.
    pub(crate) fn send(&self, errand: impl FnOnce() + Send + 'static) {
        self.shared.errands.push(Box::new(errand));
        self.thread.unpark();
    }
}

impl Shared {
    fn run(&self) {
        // Acquire: pairs with the Release of the drop. What was sent before it need not be done any more.
        while !self.over.load(Ordering::Acquire) {
            match self.errands.pop() {
                Some(errand) => errand(),
                None => thread::park(),
            }
        }
    }
}

impl Drop for Errands {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl fmt::Debug for Errands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Errands").field("waiting", &self.shared.errands.len()).finish()
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use std::sync::mpsc;

    #[test]
    fn errands_are_done_in_order_by_one_thread_that_ends_when_they_do() {
        let (tell, told) = mpsc::channel();
        let errands = Errands::start().unwrap();
        for number in 0..3 {
            let tell = tell.clone();
            errands.send(move || tell.send((number, thread::current().id())).unwrap());
        }
        let done: Vec<_> = (0..3).map(|_| told.recv().unwrap()).collect();
        assert_eq!(done.iter().map(|&(number, _)| number).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(done.iter().all(|&(_, id)| id == done[0].1 && id != thread::current().id()));
        let held = Arc::downgrade(&errands.shared);
        drop(errands);
        let patience = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while held.strong_count() > 0 {
            assert!(std::time::Instant::now() < patience, "the thread goes on");
            thread::yield_now();
        }
    }

    #[test]
    fn nobody_waits_for_one_that_hangs() {
        let (release, released) = mpsc::channel::<()>();
        let errands = Errands::start().unwrap();
        errands.send(move || assert!(released.recv().is_err()));
        errands.send(|| ());
        drop(errands);
        drop(release);
    }
}
