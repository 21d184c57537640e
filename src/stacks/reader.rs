//! The thread that takes stacks: the observer says whose, and goes on looking. To name the functions of a stack can take
//! longer than a look may, the first time that a program's tables are read.

use super::ask::A_MINUTE;
use super::dump::{self, ThreadDump};
use super::{Place, Stuck, Taken, Who, search};
use crate::clock;
use crate::figures::count;
use crate::frame::StackTrace;
use crate::owner::Whom;
use crate::sample::ObserverFigures;
use crate::stack::{CannotCapture, Capturer, Way};
use crossbeam_queue::{ArrayQueue, SegQueue};
use std::fmt;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// So many can be asked for and not taken yet.
const WAITING: usize = 64;
/// After a search for threads of which nobody has told comes a rest of so many times as long.
const RESTS: u64 = 20;
const LONGEST_REST: u64 = 1_000_000_000;
/// What was asked for so long ago is not searched for any more.
const STALE: u64 = 1_000_000_000;
/// And for each that was found so long: no more are taken than a minute may have.
const REST_FOR_ONE: u64 = 60_000_000_000 / A_MINUTE as u64;
/// Why there is no stack where this crate is at fault.
const FAILED: &str = "taking or naming it failed, by a fault of the detector's own";
/// The thread is given so long to end; what it is in the middle of may take longer.
const FAREWELL: Duration = Duration::from_millis(100);

/// Four times as much as reading debug info may take: what the program sets for its own threads may be less.
const STACK: usize = 2 << 20;

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
        let builder = thread::Builder::new().name("starvation-dump".to_owned()).stack_size(STACK);
        let thread = builder.spawn(move || of_thread.run(signals))?;
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
        self.shared.left_out(more);
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
    fn left_out(&self, more: u64) {
        count(&self.figures.stacks_left_out, more);
    }

    fn run(&self, signals: bool) {
        let mut capturer = Capturer::new(signals);
        // What is to be searched for and when that was asked, and before when nothing is.
        let (mut wanted, mut rested) = (Vec::<(Stuck, u64)>::new(), 0);
        // Acquire: pairs with the Release of the drop.
        while !self.over.load(Ordering::Acquire) {
            // What is stuck comes first: who asks for dumps all the time keeps nobody from it.
            if let Some(stuck) = self.asked.pop() {
                match stuck.who {
                    Who::Known(whom) => self.take_known(&mut capturer, signals, &stuck, whom),
                    Who::Among { .. } | Who::OfPool { .. } => {
                        // One of the same place that is asked for again is the same.
                        wanted.retain(|(other, _)| other.place != stuck.place);
                        wanted.push((stuck, clock::now()));
                    }
                }
            } else if let Some((stuck, asked)) = (rested <= clock::now()).then(|| wanted.pop()).flatten() {
                let at = clock::now();
                // What was stuck that long ago may be over, and another be found for it.
                if at.saturating_sub(asked) > STALE {
                    self.left_out(1);
                    continue;
                }
                let found = self.search(&mut capturer, signals, &stuck);
                let now = clock::now();
                let rest = now.saturating_sub(at).saturating_mul(RESTS).min(LONGEST_REST);
                rested = now.saturating_add(rest.max(found.saturating_mul(REST_FOR_ONE)));
            } else if let Some(answer) = self.dumps.pop() {
                // Who asked may have given up. Without an answer he need not wait until he does.
                if let Some(dump) = self.guarded(&mut capturer, signals, dump::of_all) {
                    let _ = answer.send(dump);
                }
            } else {
                // The next will be of another time.
                let _ = self.guarded(&mut capturer, signals, Capturer::refresh);
                match wanted.is_empty() {
                    true => thread::park(),
                    false => thread::park_timeout(Duration::from_nanos(rested.saturating_sub(clock::now()))),
                }
            }
        }
    }

    fn take_known(&self, capturer: &mut Capturer, signals: bool, stuck: &Stuck, whom: Whom) {
        let at = clock::now();
        let answer = self.guarded(capturer, signals, |capturer| {
            let found = take(capturer, &whom);
            // It has been in there until now, or else its stack is of something that came later.
            if stuck.is_still() { found } else { found.and(Err(CannotCapture::Over)) }
        });
        self.tell(stuck, whom.tid, at, answer.map(|found| found.map_err(CannotCapture::text)));
    }

    /// Takes the stacks of those of whom nobody has told, if it follows which they are. Returns how many.
    fn search(&self, capturer: &mut Capturer, signals: bool, stuck: &Stuck) -> u64 {
        let at = clock::now();
        let found = self.guarded(capturer, signals, |capturer| match (stuck.who, stuck.place) {
            (Who::Among { stuck, workers }, _) => search::stuck_workers(capturer, stuck, workers),
            (Who::OfPool { workers }, Place::Pool(runtime)) => search::pool_threads(capturer, runtime, workers),
            _ => Ok(Vec::new()),
        });
        let count = found.as_ref().map_or(0, |found| found.as_ref().map_or(0, Vec::len));
        match found {
            Some(Ok(found)) => found.into_iter().for_each(|(tid, found)| self.tell(stuck, tid, at, Some(Ok(found)))),
            Some(Err(why)) => self.tell(stuck, 0, at, Some(Err(why))),
            None => self.tell(stuck, 0, at, None),
        }
        count as u64
    }

    /// What has to do with memory and files of any kind may have a fault that nobody has met yet. It must not end the thread:
    /// it is counted, and the next stack is taken from scratch.
    fn guarded<T>(&self, capturer: &mut Capturer, signals: bool, work: impl FnOnce(&mut Capturer) -> T) -> Option<T> {
        // What a panic leaves half done in the capturer is thrown away with it.
        let done = panic::catch_unwind(AssertUnwindSafe(|| work(capturer)));
        if done.is_err() {
            count(&self.figures.stacks_failed, 1);
            *capturer = Capturer::new(signals);
        }
        done.ok()
    }

    /// `None`: taking it has failed.
    fn tell(&self, stuck: &Stuck, tid: u32, at: u64, answer: Option<Result<Found, &'static str>>) {
        let Stuck { place, since, .. } = *stuck;
        let found = answer.as_ref().and_then(|answer| answer.as_ref().ok());
        let (asleep, futex) = found.map_or((false, None), |found| (found.asleep, found.futex));
        let trace = match answer {
            Some(answer) => {
                let kind = if answer.is_ok() { &self.figures.stacks_taken } else { &self.figures.stacks_refused };
                count(kind, 1);
                answer.map(|found| Arc::new(found.trace))
            }
            None => Err(FAILED),
        };
        self.taken.push(Taken { place, tid, since, at, asleep, futex, trace });
    }
}

/// The stack of a thread with the functions on it.
pub(super) struct Found {
    pub(super) trace: StackTrace,
    /// It slept in a system call, and at which futex, if it was that.
    pub(super) asleep: bool,
    pub(super) futex: Option<u64>,
}

pub(super) fn take(capturer: &mut Capturer, whom: &Whom) -> Result<Found, CannotCapture> {
    let capture = capturer.capture(whom.tid, whom.stack(), &|| whom.is_there())?;
    let (asleep, futex) = (capture.way == Way::Asleep, capture.futex);
    Ok(Found { trace: capturer.tell(&capture), asleep, futex })
}

#[cfg(all(test, not(any(starvation_loom, starvation_elsewhere))))]
mod tests {
    use super::*;
    use crate::owner::Owner;

    #[test]
    fn a_fault_is_counted_and_told_and_the_next_stack_is_taken() {
        static THIS: Owner = Owner::new();
        THIS.enter();
        let figures = Arc::<ObserverFigures>::default();
        let shared = Shared {
            asked: ArrayQueue::new(WAITING),
            dumps: SegQueue::new(),
            taken: SegQueue::new(),
            figures: Arc::clone(&figures),
            over: AtomicBool::new(false),
        };
        let whom = THIS.whom().unwrap_or_else(|| panic!("this thread is known"));
        let stuck = Stuck { place: Place::Poll(1), who: Who::Known(whom), since: 1 };
        let mut capturer = Capturer::new(false);
        // The hook of a panic prints.
        let fault = |_: &mut Capturer| panic::resume_unwind(Box::new("a fault"));
        let answer = shared.guarded(&mut capturer, false, fault);
        shared.tell(&stuck, 7, 2, answer);
        assert_eq!(shared.taken.pop().and_then(|taken| taken.trace.err()), Some(FAILED));
        let answer = shared.guarded(&mut capturer, false, |_| Err(CannotCapture::Computing.text()));
        shared.tell(&stuck, 7, 2, answer);
        assert_eq!(shared.taken.pop().and_then(|taken| taken.trace.err()), Some(CannotCapture::Computing.text()));
        let read = |figure: &std::sync::atomic::AtomicU64| figure.load(Ordering::Relaxed);
        let counted = (read(&figures.stacks_failed), read(&figures.stacks_refused), read(&figures.stacks_taken));
        assert_eq!(counted, (1, 1, 0));
    }
}
