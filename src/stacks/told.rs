//! What a stack says of a thread that sleeps: for what, and from where.

use crate::frame::{Frame, FrameKind, StackTrace};

/// What a thread that sleeps waits for, by the functions that it is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// A lock.
    Lock,
    /// A future that it runs by hand.
    BlockOn,
    /// To be woken, by whom does not show: a future run by hand with a function of one's own looks like this, too.
    Park,
    /// Something else: it has called a function that blocks.
    Call,
    /// The functions that would tell have no names.
    Nameless,
}

/// What the stack of a thread says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Told {
    /// None where it computes.
    pub(crate) what: Option<What>,
    /// Which of the frames is the place.
    pub(crate) at: usize,
    /// The function that it has called and not come back from, where that is not yours.
    pub(crate) inside: Option<String>,
    /// Where in your code that is, and where that was called from, if that is yours, too.
    pub(crate) place: String,
    pub(crate) caller: Option<String>,
}

/// Parts of the names of functions that wait for a lock, in `std`, `parking_lot`, `tokio` and the C library.
const LOCKS: [&str; 25] = [
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
    "lock_api::",
    "remutex::",
    "RawMutex",
    "RawRwLock",
    "parking_lot::once::",
    "once_cell::imp::",
    "lock_blocking",
    "read_blocking",
    "write_blocking",
    "blocking_lock",
    "blocking_read",
    "blocking_write",
    "pthread_mutex_",
    "pthread_rwlock_",
];
const BLOCK_ON: [&str; 3] = ["block_on", "LocalPool::run", "local_pool::run_executor"];
/// Where a runtime is entered.
const ENTRIES: [&str; 3] = ["block_on", "enter_runtime", "CoreGuard"];
/// Parts of the names of functions that run what others have made: tasks, calls of a pool.
const RUNNERS: [&str; 7] = [
    "::task::",
    "Future>::poll",
    "Stream>::poll",
    "::worker::",
    "::blocking::pool",
    "::blocking::task",
    "block_in_place",
];
/// What would have to be otherwise for a program to have names.
const STRIPPED: &str =
    "(stripped of its names: a build with `strip = false` and `debug = \"line-tables-only\"` has them)";
/// What waits at a condition gives its lock back: it waits for something else.
const CONDITIONS: [&str; 3] = ["condvar", "Condvar", "pthread_cond_"];
const PARKS: [&str; 5] = ["thread::park", "functions::park", "thread::Thread::park", "condvar", "Condvar"];

/// By the path alone: types among the arguments say nothing of what a function does.
fn is_named(frame: &Frame, parts: &[&str]) -> bool {
    frame.function.as_ref().is_some_and(|name| parts.iter().any(|part| name.contains(part)))
}

/// It stands between what a thread is in and whoever has brought that to it.
fn is_runner(frame: &Frame) -> bool {
    frame.kind == FrameKind::Detector || frame.kind == FrameKind::Runtime && is_named(frame, &RUNNERS)
}

/// Whether a runtime runs something on the thread, rather than waits for something to run.
pub(super) fn runs_something(frames: &[Frame]) -> bool {
    const WAITS: [&str; 2] = ["::worker::", "::blocking::pool"];
    frames.iter().any(|frame| is_runner(frame) && (frame.kind == FrameKind::Detector || !is_named(frame, &WAITS)))
}

/// What a thread does inside Tokio's worker; none where it is no worker. A worker is itself run by the blocking pool.
#[cfg(any(feature = "stacks", test))]
pub(super) fn inside_worker(frames: &[Frame]) -> Option<&[Frame]> {
    inside(frames, "multi_thread::worker::")
}

/// What a thread of a blocking pool does there; none where it is not of one.
#[cfg(any(feature = "stacks", test))]
pub(super) fn inside_pool(frames: &[Frame]) -> Option<&[Frame]> {
    inside(frames, "::blocking::pool")
}

#[cfg(any(feature = "stacks", test))]
fn inside<'a>(frames: &'a [Frame], outer: &str) -> Option<&'a [Frame]> {
    let is_it = |frame: &Frame| frame.kind == FrameKind::Runtime && is_named(frame, &[outer]);
    frames.iter().rposition(is_it).map(|at| &frames[..at])
}

/// What lies within the innermost function that runs what others have made.
pub(super) fn within_runner(frames: &[Frame]) -> &[Frame] {
    let at = frames.iter().position(is_runner).filter(|&at| at > 0);
    &frames[..at.unwrap_or(frames.len())]
}

/// The crate that a function is of.
fn crate_of(frame: &Frame) -> Option<&str> {
    frame.function.as_ref()?.trim_start_matches('<').split("::").next()
}

/// Whether the frame at `at` is within something that is run: otherwise it is where the thread itself was given to a runtime.
fn is_within(frames: &[Frame], at: usize) -> bool {
    let Some((frame, outer)) = frames.get(at..).and_then(<[Frame]>::split_first) else { return false };
    let of_another = |outer: &Frame| is_named(outer, &BLOCK_ON) && crate_of(outer) != crate_of(frame);
    outer.iter().any(|outer| is_runner(outer) || outer.kind == FrameKind::Runtime && of_another(outer))
}

/// What the code of the culprit frame has called. The compiler may have put that code into functions of the runtime which run
/// it, and then the culprit is further out than those.
fn called(frames: &[Frame], culprit: usize) -> &[Frame] {
    let is_base = |at: usize| is_named(&frames[at], &ENTRIES) && !is_within(frames, at);
    let until = (0..culprit).find(|&at| is_runner(&frames[at]) || is_base(at));
    &frames[..until.unwrap_or(culprit)]
}

/// The outermost of these functions that says anything.
fn entered(called: &[Frame]) -> Option<&Frame> {
    called.iter().rev().find(|frame| frame.function.is_some() && !is_glue(frame))
}

impl What {
    /// By the functions that have been called, the innermost first.
    fn of(called: &[Frame]) -> Self {
        let is = |parts: &[&str]| called.iter().any(|frame| is_named(frame, parts));
        if is(&BLOCK_ON) {
            Self::BlockOn
        } else if is(&LOCKS) && !is(&CONDITIONS) {
            Self::Lock
        } else if entered(called).is_some_and(|frame| is_named(frame, &PARKS)) {
            Self::Park
        } else {
            Self::Call
        }
    }
}

impl Told {
    /// `asleep` in a system call, or else computing. None where no function of yours is on the stack.
    pub(crate) fn by(trace: &StackTrace, asleep: bool) -> Option<Self> {
        let Some(at) = trace.culprit else { return Self::nameless(trace, asleep) };
        let called = called(&trace.frames, at);
        let what = asleep.then(|| What::of(called));
        let inside = entered(called).and_then(|frame| frame.function.clone());
        let place = trace.frames.get(at)?.to_string();
        let yours = |frame: &&Frame| frame.kind == FrameKind::User && frame.function != trace.frames[at].function;
        let caller = trace.frames[at..].iter().find(yours).map(ToString::to_string);
        Some(Self { what, at, inside, place, caller })
    }

    /// In a program that was stripped of its names: where it has called the system, or computes. Whose that is nobody knows.
    fn nameless(trace: &StackTrace, asleep: bool) -> Option<Self> {
        let at = trace.frames.iter().position(|frame| frame.kind != FrameKind::System)?;
        let frame = trace.frames.get(at).filter(|frame| frame.kind == FrameKind::Unknown)?;
        let inner = trace.frames.get(..at)?;
        let what = asleep.then(|| match What::of(inner) {
            What::Call | What::Park => What::Nameless,
            // The C library keeps its names.
            known => known,
        });
        let inside = inner.iter().rev().find_map(|frame| frame.function.clone());
        Some(Self { what, at, inside, place: format!("{frame} {STRIPPED}"), caller: None })
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
            start: None,
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
        assert_eq!(
            what(&["syscall", "pollster::Signal::wait", "pollster::block_on", "app::x", poll]),
            Some(What::BlockOn)
        );
        assert_eq!(what(&["__lll_lock_wait", "pthread_mutex_lock", "app::ffi"]), Some(What::Lock));
        assert_eq!(
            what(&["syscall", "std::thread::park", "futures_executor::local_pool::block_on", "app::wrapper", poll]),
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

    /// A stack of a stripped program: the system's functions, and where the others begin and are.
    pub(in crate::stacks) fn stripped(system: &[&str], places: &[(u64, u64)]) -> StackTrace {
        let nameless = |&(start, offset): &(u64, u64)| Frame {
            function: None,
            offset,
            start: Some(start),
            build_id: Some("1d".to_owned()),
            ..frame("", FrameKind::Unknown)
        };
        let frames = system.iter().map(|name| frame(name, FrameKind::System)).chain(places.iter().map(nameless));
        StackTrace { frames: frames.collect(), culprit: None, complete: true }
    }

    #[test]
    fn of_a_stripped_program_the_place_is_told_and_what_would_give_it_a_name() {
        let told = |system: &[&str]| Told::by(&stripped(system, &[(16, 20), (32, 40)]), true);
        let sleeps = told(&["clock_nanosleep"]).unwrap_or_else(|| panic!("there is a place"));
        assert_eq!(
            (sleeps.what, sleeps.at, sleeps.inside.as_deref()),
            (Some(What::Nameless), 1, Some("clock_nanosleep"))
        );
        assert!(sleeps.place.starts_with("app+0x14 [1d] (") && sleeps.place.contains("`strip = false`"), "{sleeps:?}");
        assert_eq!(told(&["__lll_lock_wait", "pthread_mutex_lock"]).and_then(|told| told.what), Some(What::Lock));
        let computes = Told::by(&stripped(&[], &[(16, 20)]), false);
        assert_eq!(computes.map(|told| (told.what, told.inside)), Some((None, None)));
        // What has names, and none of the user's among them, is nowhere.
        let mut idle = trace(&["epoll_wait", "tokio::runtime::park"]);
        idle.frames.extend(stripped(&[], &[(8, 9)]).frames);
        assert_eq!(Told::by(&idle, true), None);
    }

    #[test]
    fn a_function_that_is_put_into_the_runtime_that_runs_it_is_not_taken_for_a_runner_itself() {
        let told = |functions: &[&str]| Told::by(&trace(functions), true).map(|told| (told.what, told.inside));
        let entry = "tokio::runtime::context::runtime::enter_runtime";
        let base = "tokio::runtime::scheduler::current_thread::CurrentThread::block_on";
        let open = "std::fs::OpenOptions::open";
        let call = |inside: &str| Some((Some(What::Call), Some(inside.to_owned())));
        assert_eq!(told(&["openat", open, base, entry, "app::main"]), call(open));
        assert_eq!(told(&["openat", open, entry, "app::main"]), call(open));
        let local = "tokio::task::local::LocalSet::tick";
        assert_eq!(told(&["openat", open, local, base, entry, "app::main"]), call(open));
        let lock = "std::sys::sync::mutex::futex::Mutex::lock_contended";
        let locked = told(&["syscall", lock, local, base, "app::main"]);
        assert_eq!(locked, Some((Some(What::Lock), Some(lock.to_owned()))));
        // One of another crate in there, and one that a call of the pool has made, are run by hand.
        let by_hand = |functions: &[&str]| told(functions).and_then(|(what, _)| what) == Some(What::BlockOn);
        let foreign = "futures_executor::local_pool::block_on";
        assert!(by_hand(&["syscall", "std::thread::park", foreign, base, entry, "app::main"]));
        let driver = ["epoll_wait", "mio::poll::Poll::poll", "tokio::runtime::io::driver::Driver::turn", base, entry];
        let pool = ["app::import", "tokio::runtime::blocking::pool::Inner::run"];
        assert!(by_hand(&[&driver[..], &pool].concat()));
        assert!(by_hand(&[&driver[..], &["tokio::runtime::blocking::pool::Inner::run", "app::main"]].concat()));
        assert!(!by_hand(&[&driver[..], &["app::main"]].concat()));
    }

    #[test]
    fn a_thread_of_a_pool_is_idle_only_while_nothing_is_run_on_it() {
        let start = "std::sys::thread::unix::Thread::new::thread_start";
        let pool = "tokio::runtime::blocking::pool::Inner::run";
        let idle = trace(&["syscall", "parking_lot::condvar::Condvar::wait_for", pool, start]);
        assert!(!runs_something(&idle.frames));
        let opens = trace(&["open", "std::fs::read", "tokio::runtime::task::raw::poll", pool, start]);
        assert!(runs_something(&opens.frames));
        assert_eq!(within_runner(&opens.frames).len(), 2);
        let parked = trace(&["epoll_wait", "tokio::runtime::scheduler::multi_thread::worker::Context::park", start]);
        assert!(!runs_something(&parked.frames));
    }

    #[test]
    fn a_worker_is_told_from_a_thread_of_the_pool_which_it_is_as_well() {
        let base = [
            "tokio::runtime::scheduler::multi_thread::worker::run",
            "tokio::runtime::blocking::task::BlockingTask::poll",
            "tokio::runtime::task::raw::poll",
            "tokio::runtime::blocking::pool::Inner::run",
        ];
        let in_poll = |inner: &[&str]| {
            let trace = trace(&[inner, &base].concat());
            inside_worker(&trace.frames).map(runs_something)
        };
        assert_eq!(in_poll(&["epoll_wait", "tokio::runtime::io::driver::Driver::turn"]), Some(false));
        assert_eq!(
            in_poll(&["syscall", "tokio::runtime::scheduler::multi_thread::worker::Context::park"]),
            Some(false)
        );
        let run = "tokio::runtime::scheduler::multi_thread::worker::Context::run_task";
        assert_eq!(in_poll(&["read", "app::load", "tokio::runtime::task::raw::poll", run]), Some(true));
        let job = trace(&["read", "app::load", base[1], base[2], base[3]]);
        assert!(inside_worker(&job.frames).is_none());
        assert!(inside_pool(&job.frames).is_some_and(runs_something));
        let idle = trace(&["syscall", "parking_lot::condvar::Condvar::wait_for", base[3]]);
        assert_eq!(inside_pool(&idle.frames).map(runs_something), Some(false));
    }

    #[test]
    fn who_parks_may_run_a_future_by_a_function_of_its_own() {
        let poll = "tokio::runtime::task::raw::poll";
        let what = |functions: &[&str]| Told::by(&trace(functions), true).and_then(|told| told.what);
        assert_eq!(what(&["syscall", "std::thread::functions::park", "app::wait_for", poll]), Some(What::Park));
        assert_eq!(what(&["syscall", "std::sync::poison::condvar::Condvar::wait", "app::x", poll]), Some(What::Park));
        let queue =
            ["syscall", "std::thread::functions::park", "std::sync::mpsc::Receiver<…>::recv", "app::next", poll];
        assert_eq!(what(&queue), Some(What::Call));
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
