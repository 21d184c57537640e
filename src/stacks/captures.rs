//! What was taken of the threads of one episode, merged.

use super::folded::folded;
use super::locks::lock_of;
use super::tree::{self, StackBranch};
use super::{Place, Taken, Told, told};
use crate::frame::{Frame, FrameKind, StackTrace};
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// So many different stacks are kept of an episode, each with so many stalls. What comes beyond is only counted.
const DIFFERENT: usize = 64;
const STALLS: usize = 1_024;
/// So many lines are told of a stack, and so many groups in a text.
const LINES: usize = 6;
const GROUPS: usize = 6;

/// What stands for a function of the user's that has become part of one that runs it.
const NAMELESS: &str = "what is run there (its name is lost in this build: `debug = \"limited\"` keeps it)";

/// Threads that were found stuck at the same place, in an incident.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct StackGroup {
    /// The op that they were busy with; `None` where nobody wrapped what they do.
    pub op: Option<&'static str>,
    /// How many threads, each counted once for each time that it got stuck.
    pub threads: u64,
    /// How many stacks were taken of them.
    pub captures: u64,
    /// They slept in a system call. Otherwise they computed.
    pub asleep: bool,
    /// For how long the one that had been stuck for longest had been so, when its stack was last taken.
    #[cfg_attr(feature = "serde", serde(rename = "oldest_us", serialize_with = "crate::wire::us"))]
    pub oldest: Duration,
    /// The functions that all of these stacks have in common.
    pub stack: StackTrace,
    /// Where further in they were found, of threads that computed.
    pub tree: Vec<StackBranch>,
}

/// One stack, and who was found there.
#[derive(Debug)]
struct Seen {
    place: Place,
    asleep: bool,
    trace: Arc<StackTrace>,
    times: u64,
    stalls: HashSet<(u32, u64)>,
    oldest: u64,
    /// The lock that it was last found waiting for.
    lock: Option<u64>,
}

/// The stacks of an episode.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    seen: Vec<Seen>,
    /// Beyond [`DIFFERENT`].
    others: u64,
    /// Why there are none of some, the last of them.
    failed: Option<&'static str>,
}

impl Captures {
    pub(crate) fn add(&mut self, taken: &Taken) {
        let trace = match &taken.trace {
            Ok(trace) => trace,
            Err(why) => {
                // Of those that are known more is known than of a pool that is searched.
                if self.failed.is_none() || !matches!(taken.place, Place::Pool(_)) {
                    self.failed = Some(why);
                }
                return;
            }
        };
        let is_it = |seen: &Seen| seen.place == taken.place && seen.asleep == taken.asleep && seen.trace == *trace;
        let at = self.seen.iter().position(is_it);
        if at.is_none() && self.seen.len() >= DIFFERENT {
            self.others += 1;
            return;
        }
        let at = at.unwrap_or_else(|| {
            let (trace, stalls) = (Arc::clone(trace), HashSet::new());
            self.seen.push(Seen {
                place: taken.place,
                asleep: taken.asleep,
                trace,
                times: 0,
                stalls,
                oldest: 0,
                lock: None,
            });
            self.seen.len() - 1
        });
        let seen = &mut self.seen[at];
        seen.times += 1;
        seen.lock = lock_of(taken);
        seen.oldest = seen.oldest.max(taken.at.saturating_sub(taken.since));
        if seen.stalls.len() < STALLS {
            seen.stalls.insert((taken.tid, taken.since));
        }
    }

    /// Why no stack could be taken, where none was.
    pub(crate) fn failed(&self) -> Option<&'static str> {
        self.failed.filter(|_| self.seen.is_empty())
    }

    /// Threads that sleep at the same place, and threads that compute in the same op, those first that are most. `name` tells
    /// the name of an op.
    pub(crate) fn groups(&self, name: impl Fn(u32) -> Option<&'static str>) -> Vec<StackGroup> {
        let mut groups: Vec<StackGroup> = self.asleep().chain(self.computing()).map(|of| group(&of, &name)).collect();
        groups.sort_by_key(|group| std::cmp::Reverse((group.threads, group.captures)));
        groups
    }

    fn asleep(&self) -> impl Iterator<Item = Vec<&Seen>> {
        self.seen.iter().filter(|seen| seen.asleep).map(|seen| vec![seen])
    }

    fn computing(&self) -> impl Iterator<Item = Vec<&Seen>> {
        let mut places: Vec<Place> = Vec::new();
        for seen in self.seen.iter().filter(|seen| !seen.asleep) {
            if !places.contains(&seen.place) {
                places.push(seen.place);
            }
        }
        let of = move |place| self.seen.iter().filter(|seen| !seen.asleep && seen.place == place).collect();
        places.into_iter().map(of)
    }

    /// What most of the stacks say that are of threads which sleep, or else which compute.
    pub(crate) fn told(&self, asleep: bool) -> Option<Told> {
        let all = if asleep { self.asleep().collect::<Vec<_>>() } else { self.computing().collect() };
        let most = all.into_iter().max_by_key(|of| of.iter().map(|seen| seen.times).sum::<u64>())?;
        Told::by(&merged(&most).0, asleep)
    }

    /// The lock that most of those that sleep wait for.
    pub(crate) fn lock(&self) -> Option<u64> {
        self.seen.iter().filter(|seen| seen.asleep).max_by_key(|seen| seen.times)?.lock
    }

    /// How many places in the code sleep in the same way as most do.
    pub(crate) fn places(&self) -> Vec<String> {
        let mut places: Vec<String> = Vec::new();
        for seen in self.seen.iter().filter(|seen| seen.asleep) {
            let Some(told) = Told::by(&seen.trace, true) else { continue };
            if !places.contains(&told.place) && places.len() < GROUPS {
                places.push(told.place);
            }
        }
        places
    }

    /// Where most threads of a pool are that are in what nobody wrapped, and how many those are.
    pub(crate) fn unwrapped(&self) -> Option<(u64, String)> {
        let of_pool = |of: &Vec<&Seen>| matches!(of.first().map(|seen| seen.place), Some(Place::Pool(_)));
        let groups = self.asleep().chain(self.computing()).filter(of_pool).map(|of| group(&of, |_| None));
        let most = groups.max_by_key(|group| (group.threads, group.captures))?;
        Some((most.threads, Told::by(&most.stack, most.asleep)?.place))
    }

    /// The stack of most threads of an op as lines, the innermost first: what was called, and the functions of the user's.
    pub(crate) fn lines(&self, op: u32) -> Option<Vec<String>> {
        let of_op = |seen: &&Seen| matches!(seen.place, Place::Poll(of) | Place::Execution(of) if of == op);
        let most = self.asleep().chain(self.computing()).filter(|of| of.first().is_some_and(of_op));
        let most = most.max_by_key(|of| of.iter().map(|seen| seen.times).sum::<u64>())?;
        Some(lines(&merged(&most).0))
    }
}

/// The outermost functions that the stacks have in common, and the tree of the rest.
fn merged(of: &[&Seen]) -> (StackTrace, Vec<StackBranch>) {
    let traces: Vec<(Arc<StackTrace>, u64)> = of.iter().map(|seen| (Arc::clone(&seen.trace), seen.times)).collect();
    let Some((most, _)) = traces.iter().max_by_key(|(_, times)| *times) else {
        return (StackTrace { frames: Vec::new(), culprit: None, complete: false }, Vec::new());
    };
    if traces.len() == 1 {
        return (StackTrace::clone(most), Vec::new());
    }
    let common = tree::in_common(&traces);
    let frames = most.frames[most.frames.len() - common..].to_vec();
    let culprit = frames.iter().position(|frame| frame.kind == FrameKind::User);
    let tree = tree::branches(&traces, common);
    let shared = StackTrace { frames, culprit, complete: most.complete };
    // Where nothing of the user's is common to them, the most frequent says more.
    (if Told::by(&shared, false).is_some() { shared } else { StackTrace::clone(most) }, tree)
}

fn group(of: &[&Seen], name: impl Fn(u32) -> Option<&'static str>) -> StackGroup {
    let (stack, tree) = merged(of);
    let stalls: HashSet<_> = of.iter().flat_map(|seen| &seen.stalls).collect();
    let first = of.first();
    StackGroup {
        op: first.and_then(|first| match first.place {
            Place::Poll(op) | Place::Execution(op) => name(op),
            Place::Worker(_) | Place::Pool(_) => None,
        }),
        threads: stalls.len() as u64,
        captures: of.iter().map(|seen| seen.times).sum(),
        asleep: first.is_some_and(|first| first.asleep),
        oldest: Duration::from_nanos(of.iter().map(|seen| seen.oldest).max().unwrap_or(0)),
        stack,
        tree,
    }
}

/// What was called from the culprit frame, that frame, and those of the user's around it. Without one, what was called from
/// whatever runs the user's code, which the compiler has put in there.
fn lines(trace: &StackTrace) -> Vec<String> {
    let mut lines = match Told::by(trace, true) {
        Some(told) => {
            let is_told = |frame: &&Frame| matches!(frame.kind, FrameKind::User | FrameKind::Unknown);
            let outer = trace.frames[told.at + 1..].iter().filter(is_told).map(ToString::to_string);
            folded(told.inside.into_iter().chain([told.place]).chain(outer))
        }
        None => {
            let lost = told::runs_something(&trace.frames).then(|| NAMELESS.to_owned());
            folded(told::within_runner(&trace.frames).iter().map(ToString::to_string).take(LINES - 1).chain(lost))
        }
    };
    lines.truncate(LINES);
    lines
}

/// One line for the group, and one for each function that is told of.
impl fmt::Display for StackGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let threads = if self.threads == 1 { "1 thread" } else { &format!("{} threads", self.threads) };
        let does = if self.asleep { "asleep" } else { "computing" };
        write!(f, "{threads} {does}")?;
        match self.op {
            Some(op) => write!(f, " in `{op}`")?,
            None => f.write_str(" in what nobody wrapped")?,
        }
        write!(f, ", for up to {:.1?}:", self.oldest)?;
        for line in lines(&self.stack) {
            write!(f, "\n    {line}")?;
        }
        for branch in &self.tree {
            write!(f, "\n    {:3} % {:indent$}{}", branch.percent, "", branch.function, indent = 2 * branch.depth)?;
        }
        Ok(())
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::super::What;
    use super::super::told::tests::{stripped, trace};
    use super::*;

    fn taken(tid: u32, asleep: bool, functions: &[&str]) -> Taken {
        Taken {
            place: Place::Execution(1),
            tid,
            since: 5,
            at: 25,
            asleep,
            futex: None,
            trace: Ok(Arc::new(trace(functions))),
        }
    }

    const SLEEPS: [&str; 3] = ["clock_nanosleep", "std::thread::sleep", "app::fetch"];

    #[test]
    fn equal_stacks_are_one_group_with_a_count() {
        let mut captures = Captures::default();
        for tid in [1, 2, 3, 3] {
            captures.add(&taken(tid, true, &SLEEPS));
        }
        captures.add(&taken(4, true, &["read", "std::fs::read", "app::load"]));
        let groups = captures.groups(|op| (op == 1).then_some("op"));
        let told: Vec<_> = groups.iter().map(|group| (group.op, group.threads, group.captures)).collect();
        assert_eq!(told, [(Some("op"), 3, 4), (Some("op"), 1, 1)]);
        assert_eq!(groups[0].oldest, Duration::from_nanos(20));
        assert_eq!(captures.lines(1), Some(vec!["std::thread::sleep".to_owned(), "app::fetch".to_owned()]));
        assert_eq!(captures.lines(2), None);
        assert_eq!(captures.told(true).and_then(|told| told.what), Some(What::Call));
        assert_eq!(captures.told(false), None);
        assert_eq!(captures.places(), ["app::fetch", "app::load"]);
        assert!(groups[0].to_string().contains("3 threads asleep in `op`"), "{}", groups[0]);
    }

    #[test]
    fn of_code_that_was_put_into_what_runs_it_what_it_has_called_is_told() {
        let mut captures = Captures::default();
        captures.add(&taken(
            1,
            true,
            &["read", "std::fs::read", "tokio::runtime::task::raw::poll", "std::thread::start"],
        ));
        assert_eq!(captures.lines(1), Some(vec!["read".to_owned(), "std::fs::read".to_owned(), NAMELESS.to_owned()]));
    }

    #[test]
    fn who_computes_is_where_all_captures_agree() {
        let mut captures = Captures::default();
        for _ in 0..3 {
            captures.add(&taken(1, false, &["app::hash", "app::work", "app::handler"]));
        }
        captures.add(&taken(1, false, &["app::parse", "app::work", "app::handler"]));
        let groups = captures.groups(|_| None);
        assert_eq!(groups.len(), 1);
        let (stack, tree) = (&groups[0].stack, &groups[0].tree);
        assert_eq!(stack.frames.len(), 2);
        assert_eq!(captures.told(false).map(|told| told.place), Some("app::work".to_owned()));
        assert_eq!(tree.iter().map(|branch| branch.percent).collect::<Vec<_>>(), [75, 25]);
    }

    #[test]
    fn a_function_without_a_name_is_one_wherever_in_it_a_thread_was_found() {
        let mut captures = Captures::default();
        for number in 0..4 {
            let system: &[&str] = if number == 3 { &["memcpy"] } else { &[] };
            let trace = stripped(system, &[(100, 110 + number), (200, 210), (300, 310)]);
            captures.add(&Taken { trace: Ok(Arc::new(trace)), ..taken(1, false, &[]) });
        }
        let place = captures.told(false).map(|told| told.place).unwrap_or_default();
        assert!(place.starts_with("app+0x71 [1d] ("), "{place}");
        assert_eq!(captures.groups(|_| None)[0].stack.frames.len(), 3);
        let lines = captures.lines(1).unwrap_or_default();
        assert_eq!((lines.len(), lines[0].as_str(), lines[1].as_str()), (3, place.as_str(), "app+0xd2 [1d]"));
    }

    #[test]
    fn recursion_is_told_in_a_line() {
        let mut functions = vec!["read", "app::leaf"];
        functions.extend(["app::descend"; 300]);
        functions.push("app::handler");
        let mut captures = Captures::default();
        captures.add(&taken(1, true, &functions));
        let lines = captures.lines(1).unwrap_or_default();
        assert_eq!(lines, ["read", "app::leaf", "app::descend, 300 times", "app::handler"]);
        let group = &captures.groups(|_| None)[0];
        assert_eq!(group.stack.frames.len(), functions.len());
        assert!(group.to_string().contains("app::descend, 300 times\n    app::handler"), "{group}");
    }

    #[test]
    fn memory_is_bounded_and_a_reason_is_kept_where_there_is_no_stack() {
        let mut captures = Captures::default();
        let refused = Taken { trace: Err("because"), ..taken(1, true, &SLEEPS) };
        captures.add(&refused);
        assert_eq!(captures.failed(), Some("because"));
        // That a search for others found none says nothing of this one.
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().build() else { panic!("it needs nothing") };
        let searched = Taken { place: Place::Pool(runtime.handle().id()), trace: Err("none found"), ..refused };
        captures.add(&searched);
        assert_eq!(captures.failed(), Some("because"));
        for number in 0..10_000 {
            captures.add(&taken(number, true, &["read", &format!("app::f{number}")]));
        }
        assert_eq!((captures.seen.len(), captures.others), (DIFFERENT, 10_000 - DIFFERENT as u64));
        assert_eq!(captures.failed(), None);
    }
}
