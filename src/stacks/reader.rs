//! The thread that takes stacks: the observer says whose, and goes on looking. To name the functions of a stack can take
//! longer than a look may, the first time that a program's tables are read.

use super::dump::{self, ThreadDump};
use super::{Stuck, Taken};
use crate::clock;
use crate::figures::count;
use crate::frame::StackTrace;
use crate::owner::Whom;
use crate::sample::ObserverFigures;
use crate::stack::{CannotCapture, Capturer, Way};
use crossbeam_queue::{ArrayQueue, SegQueue};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// So many can be asked for and not taken yet.
const WAITING: usize = 64;
/// The thread is given so long to end; what it is in the middle of may take longer.
const FAREWELL: Duration = Duration::from_millis(100);

type Dumped = mpsc::SyncSender<ThreadDump>;

struct Shared {
    asked: ArrayQueue<Stuck>,
    dumps: SegQueue<Dumped>,
    taken: SegQueue<Taken>,
    figures: Arc<ObserverFigures>,
    over: AtomicBool,
}

/// The other end of that thread. Dropping it ends the thread.
pub(crate) struct Reader {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The process that it was started in.
    process: u32,
}

impl Reader {
    /// `signals`: threads that keep computing are sent one.
    pub(crate) fn start(signals: bool, figures: Arc<ObserverFigures>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            asked: ArrayQueue::new(WAITING),
            dumps: SegQueue::new(),
            taken: SegQueue::new(),
            figures,
            over: AtomicBool::new(false),
        });
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new().name("starvation-dump".to_owned()).spawn(move || of_thread.run(signals))?;
        Ok(Self { shared, thread: Some(thread), process: std::process::id() })
    }

    /// Has a stack taken, without waiting. What finds no room is counted as left out.
    pub(crate) fn ask(&self, stuck: Stuck) {
        if self.shared.asked.push(stuck).is_err() {
            self.left_out(1);
        }
        self.wake();
    }

    /// One that has been taken, or not, since.
    pub(crate) fn pop(&self) -> Option<Taken> {
        self.shared.taken.pop()
    }

    /// Has the stacks of all watched threads taken, and waits for them for so long.
    pub(crate) fn dump(&self, patience: Duration) -> Option<ThreadDump> {
        // A fork has copied the handle and not the thread.
        if self.process != std::process::id() {
            return None;
        }
        let (answer, answered) = mpsc::sync_channel(1);
        self.shared.dumps.push(answer);
        self.wake();
        answered.recv_timeout(patience).ok()
    }

    pub(crate) fn left_out(&self, more: u64) {
        count(&self.shared.figures.stacks_left_out, more);
    }

    fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Release: pairs with the Acquire of `run`.
        self.shared.over.store(true, Ordering::Release);
        // A fork has copied the handle and not the thread.
        let Some(thread) = self.thread.take().filter(|_| self.process == std::process::id()) else { return };
        thread.thread().unpark();
        let deadline = Instant::now() + FAREWELL;
        while !thread.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        if thread.is_finished() {
            // Had it panicked, that is not the owner's.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("waiting", &self.shared.asked.len()).finish_non_exhaustive()
    }
}

impl Shared {
    fn run(&self, signals: bool) {
        let mut capturer = Capturer::new(signals);
        // Acquire: pairs with the Release of the drop.
        while !self.over.load(Ordering::Acquire) {
            // What is stuck comes first: who asks for dumps all the time keeps nobody from it.
            if let Some(stuck) = self.asked.pop() {
                self.take(&mut capturer, stuck);
            } else if let Some(answer) = self.dumps.pop() {
                // Who asked may have given up.
                let _ = answer.send(dump::of_all(&mut capturer));
            } else {
                // The next will be of another time.
                capturer.refresh();
                thread::park();
            }
        }
    }

    fn take(&self, capturer: &mut Capturer, stuck: Stuck) {
        let at = clock::now();
        let Stuck { place, whom, since } = stuck;
        let answer = take(capturer, &whom);
        let asleep = answer.as_ref().is_ok_and(|(_, asleep)| *asleep);
        let trace = answer.map(|(trace, _)| Arc::new(trace)).map_err(CannotCapture::text);
        count(if trace.is_ok() { &self.figures.stacks_taken } else { &self.figures.stacks_refused }, 1);
        self.taken.push(Taken { place, tid: whom.tid, since, at, asleep, trace });
    }
}

/// The stack of a thread with the functions on it, and whether it slept in a system call.
pub(super) fn take(capturer: &mut Capturer, whom: &Whom) -> Result<(StackTrace, bool), CannotCapture> {
    let capture = capturer.capture(whom.tid, whom.stack(), &|| whom.is_there())?;
    Ok((capturer.tell(&capture), capture.way == Way::Asleep))
}
