//! The public handle of the detector.

#[cfg(feature = "stacks")]
use crate::builder::Stacks;
use crate::builder::{Builder, StartError};
use crate::clock::{self, nanos};
use crate::defaults::{LONG_POLL_NANOS, QUEUE_WAIT_NANOS};
use crate::episode::UNREPORTED;
use crate::incident::{Diagnosis, Incident, State};
use crate::probe::errand::Errands;
use crate::runtime::RuntimeSnapshot;
use crate::runtimes::Watched;
#[cfg(feature = "stacks")]
use crate::sample::ObserverFigures;
use crate::sink::Sink;
use crate::sink::channel::{Subscribers, Subscription};
use crate::sink::line::Line;
use crate::sink::spans::Spans;
use crate::snapshot::{ObserverSnapshot, Snapshot};
#[cfg(feature = "stacks")]
use crate::stacks::{Reader, ThreadDump};
use crate::watchdog::{self, Pace, Shared};
use crate::{judge, op};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{fmt, io};
use tokio::runtime::Handle;

/// Watches the process: opens an incident when someone is stuck, closes it when it is over.
///
/// There is one at a time in a process. It sees all that is wrapped, on whichever runtime, and keeps the runtimes apart;
/// those that it is attached to it also asks for their own figures. Dropping it closes what is open, and stops and joins
/// its thread.
///
/// # Performance
///
/// One thread named `starvation` that looks every [`tick`](Builder::tick) while anything is in flight, once in the
/// shortest limit and a tick while nothing is, and after a second of that sleeps until something begins; one thread per
/// sink, asleep until there is something to report. The first detector of a process starts some threads more, which learn for
/// some 10 ms (200 ms on a slow machine) how this system's clock runs and how its waits look. See the benchmark `observer`.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let detector = starvation::Detector::start()?;
/// starvation::instrument_blocking("resize", || ()).await?;
/// for op in detector.snapshot().op("resize") {
///     assert_eq!(op.outcomes.returned, 1);
/// }
/// assert!(detector.incidents().is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Detector {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    handles: Mutex<Vec<Handle>>,
    errands: Arc<Errands>,
    /// The process that it was started in.
    process: u32,
    subscribers: Subscribers,
    started: u64,
    window: Duration,
}

/// Starts the observer's thread, and before it one for each sink.
fn start_threads(sinks: Vec<Box<dyn Sink>>, shared: &Arc<Shared>, pace: Pace) -> io::Result<JoinHandle<()>> {
    for sink in sinks {
        shared.new_lines.push(Line::start(sink, Arc::clone(&shared.figures))?);
    }
    let shared = Arc::clone(shared);
    thread::Builder::new().name("starvation".to_owned()).spawn(move || watchdog::run(&shared, pace))
}

/// Starts the thread that takes stacks, if they are to be taken.
#[cfg(feature = "stacks")]
fn reader_of(stacks: Stacks, figures: &Arc<ObserverFigures>) -> io::Result<Option<Reader>> {
    match stacks {
        Stacks::Off => Ok(None),
        Stacks::Asleep => Reader::start(false, Arc::clone(figures)).map(Some),
        Stacks::WithSignals => Reader::start(true, Arc::clone(figures)).map(Some),
    }
}

/// Gives the process's place for a detector back.
struct Place;

impl Drop for Place {
    fn drop(&mut self) {
        op::set_limits(LONG_POLL_NANOS, QUEUE_WAIT_NANOS, Vec::new());
        op::unobserve();
    }
}

impl Detector {
    /// Starts a detector with the defaults, attached to the current runtime.
    ///
    /// # Errors
    ///
    /// [`StartError`], which says what to do.
    pub fn start() -> Result<Self, StartError> {
        Self::builder().start()
    }

    /// Sets up a detector with other than the defaults.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn from_builder(mut builder: Builder) -> Result<Self, StartError> {
        if builder.handles.is_empty() {
            builder.handles.push(Handle::try_current().map_err(|_| StartError::NoRuntime)?);
        }
        if !op::observe() {
            return Err(StartError::AlreadyRunning);
        }
        // Given back on every way out of here but the last.
        let place = Place;
        let limits = builder.own_limits.iter().flat_map(|own| [own.long_poll, own.queue_wait]).filter(|&own| own > 0);
        let general = [nanos(builder.long_poll), nanos(builder.queue_wait)];
        let pace = Pace {
            started: clock::now(),
            warm_up: nanos(builder.warm_up),
            tick: nanos(builder.tick),
            window: nanos(builder.window),
            long_poll: general[0],
            queue_wait: general[1],
            shortest_limit: limits.chain(general).min().unwrap_or(LONG_POLL_NANOS),
        };
        op::set_limits(general[0], general[1], builder.own_limits);

        let shared = Shared::default();
        #[cfg(feature = "stacks")]
        let shared = {
            let stacks = reader_of(builder.stacks, &shared.figures).map_err(StartError::Thread)?;
            Shared { stacks, ..shared }
        };
        let shared = Arc::new(shared);
        let subscribers = Subscribers::default();
        builder.sinks.push(Box::new(Spans::new()));
        builder.sinks.push(Box::new(subscribers.courier(Arc::clone(&shared.figures))));
        let errands = Arc::new(Errands::start().map_err(StartError::Thread)?);
        for handle in &builder.handles {
            shared.new_runtimes.push(Watched::of(handle, &errands));
        }
        let thread = start_threads(builder.sinks, &shared, pace).map_err(|error| {
            // Those that did start are not left behind.
            std::iter::from_fn(|| shared.new_lines.pop()).for_each(|line| line.close());
            StartError::Thread(error)
        })?;
        std::mem::forget(place);
        let handles = Mutex::new(builder.handles);
        let (started, window) = (pace.started, builder.window);
        Ok(Self {
            shared,
            thread: Some(thread),
            handles,
            errands,
            process: std::process::id(),
            subscribers,
            started,
            window,
        })
    }

    /// Attaches the detector to one more runtime.
    ///
    /// # Errors
    ///
    /// [`AttachError`] if it is attached to that one already.
    pub fn attach(&self, handle: &Handle) -> Result<(), AttachError> {
        let mut handles = self.live_handles();
        if handles.iter().any(|known| known.id() == handle.id()) {
            return Err(AttachError::AlreadyAttached);
        }
        handles.push(handle.clone());
        drop(handles);
        self.shared.new_runtimes.push(Watched::of(handle, &self.errands));
        Ok(())
    }

    /// The handles of the runtimes that have not shut down, as far as the observer has seen: a handle keeps what is left of
    /// one in memory, with its file descriptors.
    fn live_handles(&self) -> MutexGuard<'_, Vec<Handle>> {
        let mut handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(ended) = self.shared.ended_runtimes.pop() {
            handles.retain(|known| known.id() != ended);
        }
        handles
    }

    /// Lets go of a runtime; tells whether the detector was attached to it.
    ///
    /// One that has shut down it lets go of by itself, within a second or so.
    pub fn detach(&self, handle: &Handle) -> bool {
        let mut handles = self.live_handles();
        let before = handles.len();
        handles.retain(|known| known.id() != handle.id());
        let was_attached = handles.len() < before;
        if was_attached {
            self.shared.gone_runtimes.push(handle.id());
        }
        was_attached
    }

    /// All figures as they are now. For those of an interval take two and call [`Snapshot::since`].
    ///
    /// # Performance
    ///
    /// Reads on the calling thread, without holding anybody up; some 10 us an op and thread that polls it.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let handles = self.live_handles().clone();
        let runtimes = handles.iter().map(RuntimeSnapshot::of).collect();
        Snapshot::take(runtimes, ObserverSnapshot::of(&self.shared.figures))
    }

    /// The incidents that are open and the 64 most recent that are closed, in the order of their opening.
    ///
    /// As of the observer's last look that changed one; the figures of open ones are at most ten ticks old.
    #[must_use]
    pub fn incidents(&self) -> Vec<Arc<Incident>> {
        self.all_incidents().into_iter().filter(|incident| incident.id != UNREPORTED).collect()
    }

    /// What is wrong now, or was within the last [`window`](Builder::window): of what has delayed others for longest, all
    /// incidents of the same cause and op taken together, the latest diagnosis, with the victims and effects of all of
    /// them. Where there was none, or none that harmed anybody, it is [`Cause::Healthy`](crate::Cause::Healthy), or what
    /// there is to say without any: slow work, dispatch overhead.
    #[must_use]
    pub fn diagnose(&self) -> Diagnosis {
        let now = Duration::from_nanos(clock::now().saturating_sub(self.started));
        let within = |incident: &Arc<Incident>| {
            incident.state == State::Open
                || (incident.opened_after + incident.duration).saturating_add(self.window) >= now
        };
        let incidents: Vec<_> = self.all_incidents().into_iter().filter(within).collect();
        judge::diagnose(&incidents, || self.shared.facts.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    fn all_incidents(&self) -> Vec<Arc<Incident>> {
        self.shared.incidents.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The stacks of all watched threads as they are now, those at the same place together: a thread dump. Watched are the
    /// workers and pool threads of attached runtimes that have shown themselves, and every thread that has run anything
    /// wrapped.
    ///
    /// # Errors
    ///
    /// [`StacksError`], which says what to do.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use starvation::{Detector, Stacks, instrument_blocking};
    ///
    /// let detector = Detector::builder().stacks(Stacks::Asleep).start()?;
    /// instrument_blocking("load", || ()).await?;
    /// println!("{}", instrument_blocking("dump", move || detector.stacks()).await??);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Performance
    ///
    /// Waits for the thread that takes them: some 50 us a thread, 4 ms for one that computes, and up to a second the first
    /// time, when the program's tables of names are read. So in async code call it in a blocking call.
    #[cfg(feature = "stacks")]
    pub fn stacks(&self) -> Result<ThreadDump, StacksError> {
        /// As long as the dump of a thousand threads may take that all refuse to answer.
        const PATIENCE: Duration = Duration::from_secs(30);
        let reader = self.shared.stacks.as_ref().ok_or(StacksError::NotAskedFor)?;
        reader.dump(PATIENCE).ok_or(StacksError::NoAnswer)
    }

    /// A receiver of all incident changes from now on.
    pub fn subscribe(&self) -> Subscription {
        self.subscribers.add()
    }
}

impl Builder {
    /// Starts the detector.
    ///
    /// # Errors
    ///
    /// [`StartError`], which says what to do: a duration of zero, a detector that runs already, no runtime to attach
    /// to, a thread that the system refuses.
    pub fn start(self) -> Result<Detector, StartError> {
        for (what, duration) in [
            ("long_poll", self.long_poll),
            ("queue_wait", self.queue_wait),
            ("tick", self.tick),
            ("window", self.window),
        ] {
            if duration.is_zero() {
                return Err(StartError::Zero(what));
            }
        }
        if let Some(what) = self.zero {
            return Err(StartError::Zero(what));
        }
        Detector::from_builder(self)
    }
}

impl Drop for Detector {
    fn drop(&mut self) {
        // Release: pairs with the observer's Acquire.
        self.shared.stop.store(true, Ordering::Release);
        // A fork has copied the handle and not the thread.
        let thread = self.thread.take().filter(|_| self.process == std::process::id());
        if let Some(thread) = thread {
            thread.thread().unpark();
            // The observer runs nobody else's code; should it have panicked all the same, that is not the owner's.
            let _ = thread.join();
        }
        drop(Place);
    }
}

/// Why there is no thread dump.
#[cfg(feature = "stacks")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StacksError {
    /// The detector was not started with [`Builder::stacks`].
    NotAskedFor,
    /// The thread that takes stacks did not answer within 30 s, or is not there: a fork does not copy it. Or taking them failed,
    /// which [`ObserverSnapshot::stacks_failed`](crate::ObserverSnapshot::stacks_failed) counts.
    NoAnswer,
}

#[cfg(feature = "stacks")]
impl fmt::Display for StacksError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAskedFor => {
                "stacks are off: start the detector with `Builder::stacks(Stacks::Asleep)` or `WithSignals`"
            }
            Self::NoAnswer => {
                "the thread that takes stacks did not answer: it had no CPU for 30 s, this is a fork of its process, or \
                 it failed, which `ObserverSnapshot::stacks_failed` counts"
            }
        })
    }
}

#[cfg(feature = "stacks")]
impl std::error::Error for StacksError {}

/// Why a runtime was not attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttachError {
    /// The detector is attached to it already.
    AlreadyAttached,
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the detector is attached to this runtime already: once is enough")
    }
}

impl std::error::Error for AttachError {}
