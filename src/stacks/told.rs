//! What a stack says of a thread that sleeps: for what, and from where.

use crate::frame::{Frame, FrameKind, StackTrace};

/// What a thread that sleeps waits for, by the functions that it is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// A lock.
    Lock,
    /// A future that it runs by hand.
    BlockOn,
    /// Something else: it has called a function that blocks.
    Call,
}

/// What the stack of a thread says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Told {
    /// None where it computes.
    pub(crate) what: Option<What>,
    /// The function that it has called and not come back from, where that is not yours.
    pub(crate) inside: Option<String>,
    /// Where in your code that is, and where that was called from, if that is yours, too.
    pub(crate) place: String,
    pub(crate) caller: Option<String>,
}

/// Parts of the names of functions that wait for a lock, in `std`, `parking_lot`, `tokio` and the C library.
const LOCKS: [&str; 19] = [
    "sync::mutex::",
    "poison::mutex::",
    "sync::rwlock::",
    "poison::rwlock::",
    "reentrant_lock::",
    "sync::once::",
    "poison::once::",
    "once_lock::",
    "lazy_lock::",
    "raw_mutex::",
    "raw_rwlock::",
    "remutex::",
    "RawMutex",
    "RawRwLock",
    "blocking_lock",
    "blocking_read",
    "blocking_write",
    "pthread_mutex_",
    "pthread_rwlock_",
];
const BLOCK_ON: &str = "block_on";
/// What waits at a condition gives its lock back: it waits for something else.
const CONDITIONS: [&str; 3] = ["condvar", "Condvar", "pthread_cond_"];

fn is_named(frame: &Frame, parts: &[&str]) -> bool {
    let names = [&frame.symbol, &frame.function];
    names.into_iter().flatten().any(|name| parts.iter().any(|part| name.contains(part)))
}

impl Told {
    /// `asleep` in a system call, or else computing. None where no function of yours is on the stack.
    pub(crate) fn by(trace: &StackTrace, asleep: bool) -> Option<Self> {
        let at = trace.culprit?;
        let inner = trace.frames.get(..at)?;
        let what = asleep.then(|| {
            let is = |parts: &[&str]| inner.iter().any(|frame| is_named(frame, parts));
            if is(&[BLOCK_ON]) {
                What::BlockOn
            } else if is(&LOCKS) && !is(&CONDITIONS) {
                What::Lock
            } else {
                What::Call
            }
        });
        let called = inner.iter().rev().find(|frame| frame.function.is_some() && !is_glue(frame));
        let inside = called.and_then(|frame| frame.function.clone());
        let place = trace.frames.get(at)?.to_string();
        let yours = |frame: &&Frame| frame.kind == FrameKind::User && frame.function != trace.frames[at].function;
        let caller = trace.frames[at..].iter().find(yours).map(ToString::to_string);
        Some(Self { what, inside, place, caller })
    }
}

/// Functions that stand between a call and what was called without saying anything.
fn is_glue(frame: &Frame) -> bool {
    const GLUE: [&str; 4] = ["ops::function::Fn", "call_once", "catch_unwind", "core::ptr::drop_in_place"];
    frame.kind == FrameKind::Std && is_named(frame, &GLUE)
}

#[cfg(all(test, not(starvation_loom)))]
pub(super) mod tests {
    use super::*;

    pub(in crate::stacks) fn frame(function: &str, kind: FrameKind) -> Frame {
        Frame {
            function: Some(function.to_owned()),
            symbol: None,
            file: None,
            line: None,
            module: "app".to_owned(),
            offset: function.len() as u64,
            build_id: None,
            kind,
            inlined: false,
        }
    }

    /// Functions from the innermost; those of the crate `app` are the user's.
    pub(in crate::stacks) fn trace(functions: &[&str]) -> StackTrace {
        let kind = |name: &str| match name.split("::").next() {
            Some("app") => FrameKind::User,
            Some("std" | "core") => FrameKind::Std,
            Some("tokio" | "futures_executor" | "parking_lot" | "dashmap" | "pollster") => FrameKind::Runtime,
            _ => FrameKind::System,
        };
        let frames: Vec<Frame> = functions.iter().map(|name| frame(name, kind(name))).collect();
        let culprit = frames.iter().position(|frame| frame.kind == FrameKind::User);
        StackTrace { frames, culprit, complete: true }
    }

    #[test]
    fn what_a_sleeper_waits_for_is_told_by_what_it_has_called() {
        let what = |functions: &[&str]| Told::by(&trace(functions), true).and_then(|told| told.what);
        let poll = "tokio::runtime::task::raw::poll";
        assert_eq!(
            what(&["syscall", "std::sys::sync::mutex::futex::Mutex::lock_contended", "app::load", poll]),
            Some(What::Lock)
        );
        assert_eq!(what(&["syscall", "parking_lot::raw_mutex::RawMutex::lock_slow", "app::load"]), Some(What::Lock));
        let of_map = ["syscall", "dashmap::lock::RawRwLock::lock_shared_slow", "dashmap::DashMap::get", "app::load"];
        assert_eq!(what(&of_map), Some(What::Lock));
        assert_eq!(what(&["syscall", "pollster::Signal::wait", "pollster::block_on", "app::x"]), Some(What::BlockOn));
        assert_eq!(what(&["__lll_lock_wait", "pthread_mutex_lock", "app::ffi"]), Some(What::Lock));
        assert_eq!(
            what(&["syscall", "std::thread::park", "futures_executor::local_pool::block_on", "app::wrapper"]),
            Some(What::BlockOn)
        );
        assert_eq!(what(&["clock_nanosleep", "std::thread::sleep", "app::handler", poll]), Some(What::Call));
        // A condition is waited for with a lock that is given back.
        assert_eq!(
            what(&[
                "syscall",
                "std::sync::poison::condvar::Condvar::wait",
                "std::sync::poison::mutex::x",
                "app::queue"
            ]),
            Some(What::Call)
        );
        // Who blocks around all of it, as `main` does, is not what it waits in.
        assert_eq!(
            what(&["read", "std::fs::read", "app::handler", poll, "tokio::runtime::Runtime::block_on"]),
            Some(What::Call)
        );
        assert_eq!(what(&["syscall", "tokio::runtime::park"]), None);
    }

    #[test]
    fn where_it_is_and_what_it_has_called_are_told() {
        let told = Told::by(
            &trace(&["read", "std::fs::read", "core::ops::function::FnOnce::call_once", "app::load", "app::main"]),
            true,
        );
        let told = told.unwrap_or_else(|| panic!("there is a function of the user's"));
        assert_eq!((told.inside.as_deref(), told.place.as_str()), (Some("std::fs::read"), "app::load"));
        assert_eq!(told.caller.as_deref(), Some("app::main"));
        let computes = Told::by(&trace(&["app::hash", "app::main"]), false);
        assert_eq!(computes.map(|told| (told.what, told.inside)), Some((None, None)));
    }
}
