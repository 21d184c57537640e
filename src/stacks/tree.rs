//! Where a thread that computes was found how often.

use crate::frame::{Frame, StackTrace};
use std::sync::Arc;

/// One function of the tree of those in which a thread was found, and how often.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct StackBranch {
    /// How far in: a branch is called by the last one before it that is one less deep.
    pub depth: usize,
    /// In how many of a hundred captures it was there.
    pub percent: u64,
    /// The function, with its file and line where they are known.
    pub function: String,
}

/// Branches that were there less often are left out, in percent; and so are those beyond so many.
const SELDOM: u64 = 10;
const LARGEST: usize = 16;

/// Whether two frames are of one function: at whichever line of it.
pub(super) fn same_function(one: &Frame, other: &Frame) -> bool {
    let named = |frame: &Frame| frame.symbol.is_some() || frame.function.is_some();
    let same_name = one.symbol == other.symbol && one.function == other.function;
    // What was stripped of its names is told apart by where its functions begin.
    let place = |frame: &Frame| frame.start.unwrap_or(frame.offset);
    one.module == other.module && if named(one) { same_name } else { same_name && place(one) == place(other) }
}

/// How many of the outermost frames all stacks have in common.
pub(super) fn in_common(traces: &[(Arc<StackTrace>, u64)]) -> usize {
    let Some(((first, _), others)) = traces.split_first() else { return 0 };
    let outward =
        |trace: &StackTrace, at: usize| trace.frames.len().checked_sub(at + 1).map(|at| trace.frames[at].clone());
    (0..first.frames.len())
        .take_while(|&at| {
            let one = outward(first, at);
            let same =
                |other: &StackTrace| one.iter().zip(outward(other, at)).any(|(one, other)| same_function(one, &other));
            others.iter().all(|(other, _)| same(other))
        })
        .count()
}

/// The tree of what lies further in than the outermost `common` frames, the most frequent first.
pub(super) fn branches(traces: &[(Arc<StackTrace>, u64)], common: usize) -> Vec<StackBranch> {
    let all = traces.iter().map(|(_, times)| times).sum::<u64>().max(1);
    let stacks: Vec<(Vec<&Frame>, u64)> =
        traces.iter().map(|(trace, times)| (further_in(trace, common), *times)).collect();
    let mut told = Vec::new();
    let all_of: Vec<usize> = (0..stacks.len()).collect();
    grow(&stacks, &all_of, 0, all, &mut told);
    told
}

/// The frames within the outermost ones, from the outside in. A function that calls itself is there once.
fn further_in(trace: &StackTrace, common: usize) -> Vec<&Frame> {
    let calls_itself =
        |at: usize| trace.frames.get(at + 1).is_some_and(|outer| same_function(outer, &trace.frames[at]));
    let inward = (0..trace.frames.len()).rev().skip(common);
    inward.filter(|&at| !calls_itself(at)).map(|at| &trace.frames[at]).collect()
}

fn grow(stacks: &[(Vec<&Frame>, u64)], of: &[usize], depth: usize, all: u64, told: &mut Vec<StackBranch>) {
    let mut kinds: Vec<(&Frame, Vec<usize>, u64)> = Vec::new();
    for &stack in of {
        let (frames, times) = &stacks[stack];
        let Some(frame) = frames.get(depth) else { continue };
        match kinds.iter_mut().find(|(known, ..)| same_function(known, frame)) {
            Some((_, members, sum)) => {
                members.push(stack);
                *sum += times;
            }
            None => kinds.push((frame, vec![stack], *times)),
        }
    }
    kinds.sort_by_key(|(.., sum)| std::cmp::Reverse(*sum));
    for (frame, members, sum) in kinds {
        let percent = sum * 100 / all;
        if percent < SELDOM || told.len() >= LARGEST {
            return;
        }
        told.push(StackBranch { depth, percent, function: frame.to_string() });
        grow(stacks, &members, depth + 1, all, told);
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::super::told::tests::trace;
    use super::*;

    #[test]
    fn what_is_in_common_is_where_it_is_stuck_and_the_rest_is_a_tree() {
        let traces: Vec<(Arc<StackTrace>, u64)> = [
            (&["app::parse", "app::work", "app::handler", "tokio::poll"][..], 6),
            (&["app::hash", "app::mix", "app::work", "app::handler", "tokio::poll"], 3),
            (&["app::seldom", "app::work", "app::handler", "tokio::poll"], 1),
        ]
        .map(|(functions, times)| (Arc::new(trace(functions)), times))
        .into();
        assert_eq!(in_common(&traces), 3);
        let told: Vec<_> = branches(&traces, 3).into_iter().map(|it| (it.depth, it.percent, it.function)).collect();
        let expected = [(0, 60, "app::parse"), (0, 30, "app::mix"), (1, 30, "app::hash"), (0, 10, "app::seldom")];
        assert_eq!(told, expected.map(|(depth, percent, name)| (depth, percent, name.to_owned())));
        assert_eq!(in_common(&[]), 0);
        assert_eq!(in_common(&traces[..1]), 4);
    }

    #[test]
    fn a_function_that_calls_itself_is_one_branch() {
        let deep = |times: usize| {
            let functions = [vec!["app::leaf"], vec!["app::descend"; times], vec!["app::work"]].concat();
            (Arc::new(trace(&functions)), 1)
        };
        let traces = [deep(3), deep(5), deep(40)];
        assert_eq!(in_common(&traces), 4);
        let told: Vec<_> = branches(&traces, 4).into_iter().map(|it| (it.depth, it.function)).collect();
        assert_eq!(told, [(0, "app::leaf".to_owned())]);
        let told: Vec<_> = branches(&traces, 1).into_iter().map(|it| (it.depth, it.function)).collect();
        assert_eq!(told, [(0, "app::descend".to_owned()), (1, "app::leaf".to_owned())]);
    }

    #[test]
    fn a_tree_stays_small() {
        let many: Vec<(Arc<StackTrace>, u64)> = (0..100)
            .map(|number| {
                let deep: Vec<String> = (0..50).map(|level| format!("app::f{level}_{}", number % 7)).collect();
                (Arc::new(trace(&deep.iter().map(String::as_str).collect::<Vec<_>>())), 1)
            })
            .collect();
        assert!(branches(&many, 0).len() <= LARGEST);
    }
}
