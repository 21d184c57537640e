//! What can be set before a detector starts.

use crate::clock::nanos;
use crate::defaults::{DEFAULT_LONG_POLL, DEFAULT_QUEUE_WAIT, DEFAULT_TICK, DEFAULT_WARM_UP, DEFAULT_WINDOW};
use crate::op::{self, OwnLimits};
use crate::sink::Sink;
use std::time::Duration;
use std::{fmt, io};
use tokio::runtime::Handle;

/// Sets up a [`Detector`](crate::Detector). Made by [`Detector::builder`](crate::Detector::builder).
#[must_use = "a detector runs once it is started"]
pub struct Builder {
    pub(crate) long_poll: Duration,
    pub(crate) queue_wait: Duration,
    pub(crate) tick: Duration,
    pub(crate) warm_up: Duration,
    pub(crate) window: Duration,
    pub(crate) own_limits: Vec<OwnLimits>,
    /// A setting of a single op that was given zero.
    pub(crate) zero: Option<&'static str>,
    pub(crate) sinks: Vec<Box<dyn Sink>>,
    pub(crate) handles: Vec<Handle>,
    #[cfg(feature = "stacks")]
    pub(crate) stacks: Stacks,
}

/// Whether the stacks of stuck threads are taken.
#[cfg(feature = "stacks")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stacks {
    /// None are.
    #[default]
    Off,
    /// Those of threads that sleep in a system call: they are read from outside, and the thread does not notice.
    Asleep,
    /// Those of threads that keep computing as well: they are sent the signal SIGURG, whose handler copies the stack.
    ///
    /// A thread that falls asleep in the very moment in which it is signalled may find a sleep or a wait with a timeout
    /// ended early, with `EINTR`.
    WithSignals,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            long_poll: DEFAULT_LONG_POLL,
            queue_wait: DEFAULT_QUEUE_WAIT,
            tick: DEFAULT_TICK,
            warm_up: DEFAULT_WARM_UP,
            window: DEFAULT_WINDOW,
            own_limits: Vec::new(),
            zero: None,
            sinks: Vec::new(),
            handles: Vec::new(),
            #[cfg(feature = "stacks")]
            stacks: Stacks::Off,
        }
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("long_poll", &self.long_poll)
            .field("queue_wait", &self.queue_wait)
            .field("tick", &self.tick)
            .field("warm_up", &self.warm_up)
            .field("window", &self.window)
            .field("own_limits", &self.own_limits)
            .field("sinks", &self.sinks.len())
            .field("runtimes", &self.handles.len())
            .finish()
    }
}

impl Builder {
    /// How long one poll of a watched future, or its drop, may take. Default: [`DEFAULT_LONG_POLL`].
    ///
    /// A poll at or over it is an incident while it still runs. It costs nothing to lower it, but for the observer's
    /// sleep: with nothing in flight it looks once in the shortest limit and a tick.
    pub fn long_poll(mut self, threshold: Duration) -> Self {
        self.long_poll = threshold;
        self
    }

    /// How long a call may wait for a thread, or an `instrument_wait` stay pending. Default: [`DEFAULT_QUEUE_WAIT`].
    ///
    /// A call still queued at this age is an incident. One that has started counts as starved if it waited for at least
    /// this long *and* longer than its op's executions take on average: a tiny call may wait for many times its execution
    /// and nothing is wrong.
    pub fn queue_wait(mut self, floor: Duration) -> Self {
        self.queue_wait = floor;
        self
    }

    /// How often the observer looks while anything is in flight. Default: [`DEFAULT_TICK`].
    ///
    /// An incident opens within its threshold and two ticks. A look costs some microseconds of the observer's own
    /// thread.
    pub fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    /// For how long after the start no incident is opened. Default: [`DEFAULT_WARM_UP`]: none.
    pub fn warm_up(mut self, warm_up: Duration) -> Self {
        self.warm_up = warm_up;
        self
    }

    /// How much of the past a judgement rests on. Default: [`DEFAULT_WINDOW`].
    pub fn window(mut self, window: Duration) -> Self {
        self.window = window;
        self
    }

    /// Another long-poll threshold for the ops of this name, which may be slow on purpose.
    ///
    /// [`Duration::MAX`] means never.
    pub fn long_poll_of(mut self, op: &'static str, threshold: Duration) -> Self {
        self.own_limits_of(op, "long_poll_of", threshold).long_poll = nanos(threshold);
        self
    }

    /// Another queue-wait floor for the ops of this name, which may wait on purpose.
    ///
    /// [`Duration::MAX`] means never.
    pub fn queue_wait_of(mut self, op: &'static str, floor: Duration) -> Self {
        self.own_limits_of(op, "queue_wait_of", floor).queue_wait = nanos(floor);
        self
    }

    fn own_limits_of(&mut self, name: &'static str, setting: &'static str, limit: Duration) -> &mut OwnLimits {
        if limit.is_zero() {
            self.zero = Some(setting);
        }
        let name = op::shown(name);
        let at = self.own_limits.iter().position(|own| own.name == name).unwrap_or_else(|| {
            self.own_limits.push(OwnLimits { name, long_poll: 0, queue_wait: 0 });
            self.own_limits.len() - 1
        });
        &mut self.own_limits[at]
    }

    /// Has the stacks of threads taken that an incident is about. Default: [`Stacks::Off`].
    ///
    /// The verdict then says where in the code a thread is stuck, and what it waits for there: see
    /// [`Incident::stacks`](crate::Incident::stacks) and [`Culprit::stack`](crate::Culprit::stack). They are taken by a thread
    /// of their own, several over the time of a stall, and no more than 600 a minute. Where that is not possible
    /// [`Incident::no_stack`](crate::Incident::no_stack) says why.
    #[cfg(feature = "stacks")]
    pub fn stacks(mut self, stacks: Stacks) -> Self {
        self.stacks = stacks;
        self
    }

    /// Adds a place for reports to go, beside the tracing spans. See [`Sink`].
    pub fn sink(mut self, sink: impl Sink) -> Self {
        self.sinks.push(Box::new(sink));
        self
    }

    /// Attaches the detector to a runtime before it starts; without this it attaches to the current one.
    pub fn attach(mut self, handle: &Handle) -> Self {
        if self.handles.iter().all(|known| known.id() != handle.id()) {
            self.handles.push(handle.clone());
        }
        self
    }
}

/// Why a detector did not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// This setting is zero.
    Zero(&'static str),
    /// A detector runs in this process already.
    AlreadyRunning,
    /// There is no current runtime, and none was attached.
    NoRuntime,
    /// The system refused a thread.
    Thread(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero(what) => {
                write!(f, "`{what}` is zero: give it a duration above zero, or leave it out for the default")
            }
            Self::AlreadyRunning => f.write_str(
                "a detector runs in this process already: share that one and attach further runtimes to it, or drop it \
                 before starting another",
            ),
            Self::NoRuntime => f.write_str(
                "there is no Tokio runtime to attach to: start the detector inside a runtime, or name one with \
                 `Builder::attach`",
            ),
            Self::Thread(error) => {
                write!(f, "the system refused a thread for the detector ({error}): raise the process's thread limit")
            }
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Thread(error) => Some(error),
            _ => None,
        }
    }
}
