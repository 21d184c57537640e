//! Names what is stuck by the types that a runtime's function is made for: where a function of the user's has been merged into
//! that, nothing else tells of it.

use super::{Tail, kind, readable, split, without_tail};
use crate::frame::{Frame, FrameKind};

/// How deep types are looked into.
const DEEPEST: usize = 12;

/// The name of the user's future or closure that a function of somebody else runs.
pub(crate) fn named_by_type(frame: &Frame) -> Option<String> {
    named_by_type_of(frame.symbol.as_deref()?, frame.kind)
}

pub(super) fn named_by_type_of(symbol: &str, of: FrameKind) -> Option<String> {
    if matches!(of, FrameKind::User | FrameKind::System) {
        return None;
    }
    // Other types can be of what is sent or locked; a task's is what runs.
    let runs_tasks = symbol.contains("runtime::task::") || symbol.contains("drop_in_place");
    let found = closure(symbol, DEEPEST).or_else(|| if runs_tasks { any(symbol, DEEPEST) } else { None })?;
    Some(readable(found, !symbol.contains("BlockingTask") && is_polled(symbol, found)))
}

/// Whether the type is one that the function polls: a closure of a thread or of a pool is called.
fn is_polled(symbol: &str, found: &str) -> bool {
    let (stem, _) = without_tail(symbol);
    let stem = split::without_arguments(stem);
    let last = stem.rsplit_once("::").map_or(&*stem, |(_, last)| last);
    without_tail(found).1 != Tail::None && (last.starts_with("poll") || symbol.contains("runtime::task::"))
}

/// The first type that is a closure or future of the user's.
fn closure(text: &str, depth: usize) -> Option<&str> {
    let depth = depth.checked_sub(1)?;
    split::arguments(text).into_iter().find_map(|part| {
        let is_closure = without_tail(part).1 != Tail::None;
        if is_closure && kind::of_path(part) == Some(FrameKind::User) {
            Some(plain(part))
        } else {
            closure(part, depth)
        }
    })
}

/// The first type that is the user's at all.
fn any(text: &str, depth: usize) -> Option<&str> {
    let depth = depth.checked_sub(1)?;
    split::arguments(text).into_iter().find_map(|part| {
        if kind::of_path(part) == Some(FrameKind::User) { Some(plain(part)) } else { any(part, depth) }
    })
}

/// A type without how it is referred to.
fn plain(part: &str) -> &str {
    part.trim_start_matches(['&', '*', ' ']).trim_start_matches("mut ").trim_start_matches("const ")
}

/// The frame that tells most of who is stuck: the user's innermost function, or else the innermost of others that runs a future
/// or closure of the user's, by `named_by_type`.
pub(crate) fn culprit(frames: &[Frame]) -> Option<usize> {
    let users = frames.iter().position(|frame| frame.kind == FrameKind::User && frame.function.is_some());
    users.or_else(|| frames.iter().position(|frame| named_by_type(frame).is_some()))
}

/// What a culprit is to be called.
pub(crate) fn name_of(frame: &Frame) -> Option<String> {
    named_by_type(frame).or_else(|| frame.function.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(symbol: &str) -> Option<String> {
        named_by_type_of(symbol, kind::of(Some(symbol), "app", None))
    }

    #[test]
    fn the_type_of_a_task_names_it() {
        let name = |symbol: &str| named(symbol).unwrap_or_default();
        assert_eq!(
            name("tokio::runtime::task::raw::poll::<my_app::handler::{closure#0}, alloc::sync::Arc<tokio::X>>"),
            "my_app::handler (async)"
        );
        assert_eq!(
            name(
                "<tokio::runtime::task::core::Core<tokio::runtime::blocking::task::BlockingTask<my_app::main::{closure#0}::{closure#1}>, S>>::poll"
            ),
            "my_app::main::{closure}"
        );
        assert_eq!(
            name(
                "tokio::runtime::task::raw::poll::<tracing::instrument::Instrumented<<my_app::T<u8> as my_app::Run>::run::{closure#0}>, S>"
            ),
            "<my_app::T<…> as my_app::Run>::run (async)"
        );
        assert_eq!(
            name("std::sys::backtrace::__rust_begin_short_backtrace::<my_app::start::{closure#0}, ()>"),
            "my_app::start::{closure}"
        );
        assert_eq!(name("<tokio::runtime::task::core::Core<my_app::Fut, S>>::poll"), "my_app::Fut");
        assert_eq!(
            name("<core::pin::Pin<&mut my_app::work::{closure#0}> as core::future::future::Future>::poll"),
            "my_app::work (async)"
        );
    }

    #[test]
    fn what_is_sent_or_locked_names_nobody() {
        assert_eq!(named("<std::sync::poison::mutex::Mutex<my_app::State>>::lock"), None);
        assert_eq!(named("tokio::runtime::task::raw::poll"), None);
        assert_eq!(named("tokio::runtime::task::raw::poll::<tokio::net::X, alloc::sync::Arc<tokio::Y>>"), None);
        assert_eq!(named("my_app::run::<my_app::f::{closure#0}>"), None);
    }

    #[test]
    fn the_users_innermost_function_comes_first() {
        let frame = |symbol: &str| Frame {
            function: Some(symbol.to_owned()),
            symbol: Some(symbol.to_owned()),
            kind: kind::of(Some(symbol), "app", None),
            ..Frame::unknown("app", 0)
        };
        let by_type = "tokio::runtime::task::raw::poll::<my_app::handler::{closure#0}, S>";
        let frames = [frame("std::thread::sleep"), frame(by_type), frame("my_app::main")];
        assert_eq!(culprit(&frames), Some(2));
        assert_eq!(culprit(&frames[..2]), Some(1));
        assert_eq!(culprit(&frames[..1]), None);
        assert_eq!(culprit(&[Frame::unknown("app", 1)]), None, "a name is wanted");
    }
}
