//! Stacks of threads that are stuck: which are wanted, what was taken, and what it says. Pure: taking them is `reader`'s.

#[cfg(feature = "stacks")]
mod ask;
mod captures;
#[cfg(feature = "stacks")]
mod dump;
mod folded;
mod locks;
#[cfg(feature = "stacks")]
mod reader;
#[cfg(feature = "stacks")]
mod search;
mod told;
mod tree;

#[cfg(feature = "stacks")]
pub(crate) use ask::{Asks, Stuck, Who};
pub(crate) use captures::Captures;
pub use captures::StackGroup;
#[cfg(feature = "stacks")]
pub use dump::{ThreadDump, ThreadGroup, ThreadRole, WatchedThread};
pub(crate) use locks::Locks;
#[cfg(feature = "stacks")]
pub(crate) use reader::Reader;
pub(crate) use told::{Told, What};
pub use tree::StackBranch;

use crate::frame::StackTrace;
use std::sync::Arc;
use tokio::runtime;

/// What a thread is stuck in.
#[cfg_attr(not(feature = "stacks"), allow(dead_code, reason = "only who takes stacks asks"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// A poll of this op.
    Poll(u32),
    /// An execution of this op.
    Execution(u32),
    /// Whatever a worker of this runtime does that nobody wrapped.
    Worker(runtime::Id),
    /// Whatever a thread of this runtime's blocking pool does that nobody wrapped.
    Pool(runtime::Id),
}

/// The stack of a thread, or why there is none.
#[derive(Debug, Clone)]
pub(crate) struct Taken {
    pub(crate) place: Place,
    /// The thread's id as the system calls it, and since when it has been in what it is stuck in: together they are one
    /// stall.
    pub(crate) tid: u32,
    pub(crate) since: u64,
    pub(crate) at: u64,
    /// It slept in a system call. Otherwise it was computing.
    pub(crate) asleep: bool,
    /// The address of the futex that it waited at, if it did.
    pub(crate) futex: Option<u64>,
    pub(crate) trace: Result<Arc<StackTrace>, &'static str>,
}
