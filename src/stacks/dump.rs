//! All watched threads at one moment: what each does, since when, and where in the code it is.

use super::folded::folded;
use super::reader::{Found, take};
use super::told::{self, Told};
use crate::activity::Kind;
use crate::frame::{Frame, FrameKind, StackTrace};
use crate::stack::{CannotCapture, Capturer};
use crate::threads::Role;
use crate::{clock, evidence, op, slot, threads};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// What a thread is to a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum ThreadRole {
    /// A worker of a runtime.
    Worker,
    /// A thread of a runtime's blocking pool.
    Pool,
    /// Any other, or one that has not shown yet what it is.
    Other,
}

/// A watched thread.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct WatchedThread {
    /// Its id as the system calls it.
    pub tid: u32,
    /// The first 15 bytes of its name.
    pub name: Option<String>,
    /// For how long it has been in what it is in; `None` where nobody wrapped that.
    #[cfg_attr(feature = "serde", serde(rename = "since_us", serialize_with = "crate::wire::maybe_us"))]
    pub since: Option<Duration>,
}

/// Threads that do the same at the same place.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ThreadGroup {
    /// What they are to their runtime.
    pub role: ThreadRole,
    /// The op that they poll or execute; `None` where they are in none.
    pub op: Option<&'static str>,
    /// They are asleep in a system call. Otherwise they compute.
    pub asleep: bool,
    /// Those threads, the one that has been in it for longest first.
    pub threads: Vec<WatchedThread>,
    /// Where they are.
    pub stack: StackTrace,
}

/// All watched threads at one moment. Made by [`Detector::stacks`](crate::Detector::stacks).
///
/// Its `Display` is the whole of it as text.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ThreadDump {
    /// Threads at the same place together, the largest group first.
    pub groups: Vec<ThreadGroup>,
    /// Threads whose stack could not be taken, and why.
    #[cfg_attr(feature = "serde", serde(serialize_with = "refusals"))]
    pub refused: Vec<(WatchedThread, CannotCapture)>,
}

#[cfg(feature = "serde")]
fn refusals<S: serde::Serializer>(all: &[(WatchedThread, CannotCapture)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(all.iter().map(|(thread, why)| (thread, why.text())))
}

/// What is known of a thread before its stack is taken.
struct Known {
    role: ThreadRole,
    op: Option<&'static str>,
    since: Option<u64>,
    whom: crate::owner::Whom,
}

/// Each watched thread once, by its id.
fn watched(now: u64) -> BTreeMap<u32, Known> {
    let mut all = BTreeMap::new();
    for thread in threads::all() {
        let Some(whom) = thread.whom else { continue };
        let role = match thread.role {
            Role::Worker => ThreadRole::Worker,
            Role::Pool => ThreadRole::Pool,
            Role::Unknown => ThreadRole::Other,
        };
        all.insert(whom.tid, Known { role, op: None, since: None, whom });
    }
    for slot in slot::all() {
        let Some(whom) = slot.whom() else { continue };
        let known = all.entry(whom.tid).or_insert(Known { role: ThreadRole::Other, op: None, since: None, whom });
        // The innermost says most closely what it does.
        if let Some(activity) = slot.activities().into_iter().flatten().last() {
            known.op = op::get(activity.op()).map(|op| op.name);
            known.since = Some(activity.start(now));
            if known.role == ThreadRole::Other && activity.kind() == Kind::Execution {
                known.role = ThreadRole::Pool;
            }
        }
    }
    all
}

/// Takes the stacks of all watched threads but the calling one, which is none of them.
pub(super) fn of_all(capturer: &mut Capturer) -> ThreadDump {
    let now = clock::now();
    let mut dump = ThreadDump { groups: Vec::new(), refused: Vec::new() };
    for (tid, known) in watched(now) {
        let Known { role, op, since, whom } = known;
        let since = since.map(|since| Duration::from_nanos(now.saturating_sub(since)));
        let thread = WatchedThread { tid, name: evidence::thread_name(tid), since };
        match take(capturer, &whom) {
            Ok(Found { trace: stack, asleep, .. }) => {
                dump.add(ThreadGroup { role, op, asleep, threads: vec![thread], stack });
            }
            // One that has ended is not watched any more.
            Err(CannotCapture::Gone) => {}
            Err(why) => dump.refused.push((thread, why)),
        }
    }
    dump.groups.sort_by_key(|group| (std::cmp::Reverse(group.threads.len()), group.role));
    for group in &mut dump.groups {
        group.threads.sort_by_key(|thread| std::cmp::Reverse(thread.since));
    }
    dump
}

impl ThreadDump {
    fn add(&mut self, mut one: ThreadGroup) {
        let same = |group: &&mut ThreadGroup| {
            (group.role, group.op, group.asleep) == (one.role, one.op, one.asleep) && group.stack == one.stack
        };
        match self.groups.iter_mut().find(same) {
            Some(group) => group.threads.append(&mut one.threads),
            None => self.groups.push(one),
        }
    }
}

impl fmt::Display for ThreadRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Worker => "worker",
            Self::Pool => "pool thread",
            Self::Other => "thread",
        })
    }
}

impl fmt::Display for WatchedThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.tid, self.name.as_deref().unwrap_or("without a name"))?;
        self.since.map_or(Ok(()), |since| write!(f, " for {since:.1?}"))
    }
}

/// How many of the inner frames tell what a thread does: up to the last that is the user's, or else a few.
fn shown(stack: &StackTrace) -> usize {
    const FEW: usize = 3;
    let may_be_yours = |frame: &Frame| matches!(frame.kind, FrameKind::User | FrameKind::Unknown);
    let last = stack.frames.iter().rposition(may_be_yours).or(stack.culprit);
    let inner = || if told::runs_something(&stack.frames) { told::within_runner(&stack.frames).len() } else { FEW };
    last.map_or_else(inner, |last| last + 1).min(stack.frames.len())
}

/// The groups, each with its threads and the inner part of its stack.
impl fmt::Display for ThreadDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// No more threads of one group are told by name.
        const TOLD: usize = 8;
        for group in &self.groups {
            let count = group.threads.len();
            let is_somewhere =
                Told::by(&group.stack, group.asleep).is_some() || told::runs_something(&group.stack.frames);
            let does = match (group.asleep, is_somewhere, group.op) {
                (true, false, None) => "idle",
                (true, ..) => "asleep",
                (false, ..) => "computing",
            };
            write!(f, "{count} {}{} {does}", group.role, if count == 1 { "" } else { "s" })?;
            if let Some(op) = group.op {
                write!(f, " in `{op}`")?;
            }
            let told: Vec<String> = group.threads.iter().take(TOLD).map(ToString::to_string).collect();
            let more = if count > TOLD { ", ..." } else { "" };
            writeln!(f, ": {}{more}", told.join(", "))?;
            let shown = shown(&group.stack);
            for line in folded(group.stack.frames[..shown].iter().map(ToString::to_string)) {
                writeln!(f, "    {line}")?;
            }
            match group.stack.frames.len() - shown {
                0 => writeln!(f)?,
                outer => writeln!(f, "    ... and {outer} further out\n")?,
            }
        }
        for (thread, why) in &self.refused {
            writeln!(f, "thread {thread}: no stack, because {why}")?;
        }
        Ok(())
    }
}
