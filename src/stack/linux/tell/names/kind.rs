//! Whose function it is, by the crate that its name begins with, and by the module that it is in.

use super::split;
use crate::frame::FrameKind;

const STD: [&str; 12] = [
    "std",
    "core",
    "alloc",
    "test",
    "proc_macro",
    "panic_unwind",
    "panic_abort",
    "std_detect",
    "compiler_builtins",
    "hashbrown",
    "unwind",
    "__rustc",
];

/// Crates that poll, run, lock or wait for others, besides those below: who is stuck in them is whoever has called them, or
/// whom they have called.
const RUNTIMES: [&str; 38] = [
    "actix_rt",
    "actix_server",
    "async_channel",
    "async_executor",
    "async_global_executor",
    "async_io",
    "async_lock",
    "async_std",
    "async_task",
    "axum",
    "axum_core",
    "blocking",
    "dashmap",
    "event_listener",
    "event_listener_strategy",
    "flume",
    "h2",
    "hyper",
    "hyper_util",
    "lock_api",
    "mio",
    "once_cell",
    "parking",
    "parking_lot",
    "parking_lot_core",
    "pin_project_lite",
    "polling",
    "pollster",
    "rustix",
    "scoped_tls",
    "smol",
    "spin",
    "threadpool",
    "tonic",
    "tracing",
    "tracing_core",
    "tracing_subscriber",
    "warp",
];

const RUNTIME_FAMILIES: [&str; 6] = ["tokio", "futures", "rayon", "crossbeam", "tower", "tracing_futures"];

const DETECTOR: &str = "starvation";

/// The beginnings of the names of what the C library and the loader are in.
const SYSTEM_MODULES: [&str; 15] = [
    "libc.so",
    "libc-",
    "libc.musl",
    "ld-",
    "ld.so",
    "ld64",
    "libpthread",
    "libm.so",
    "libm-",
    "libdl",
    "librt.so",
    "libgcc_s",
    "libresolv",
    "libnss_",
    "[",
];

/// What programs hold of the C library that are linked to it statically, and waits or takes long.
const C_FUNCTIONS: [&str; 48] = [
    "accept",
    "accept4",
    "bcmp",
    "calloc",
    "clock_gettime",
    "clock_nanosleep",
    "clone",
    "clone3",
    "close",
    "connect",
    "epoll_wait",
    "fdatasync",
    "flock",
    "free",
    "fsync",
    "getaddrinfo",
    "ioctl",
    "malloc",
    "memchr",
    "memcmp",
    "memcpy",
    "memmove",
    "memset",
    "nanosleep",
    "open",
    "open64",
    "openat",
    "poll",
    "pread64",
    "pwrite64",
    "pthread_cond_wait",
    "pthread_join",
    "pthread_mutex_lock",
    "read",
    "readv",
    "realloc",
    "recv",
    "recvfrom",
    "recvmsg",
    "select",
    "send",
    "sendmsg",
    "sendto",
    "start_thread",
    "syscall",
    "waitpid",
    "write",
    "writev",
];

/// Whether a crate is of Rust's own library.
pub(super) fn is_std(name: &str) -> bool {
    STD.contains(&name)
}

fn of_crate(name: &str) -> FrameKind {
    let is_of_family =
        |family: &&str| name.strip_prefix(*family).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'));
    if is_std(name) {
        FrameKind::Std
    } else if RUNTIMES.contains(&name) || RUNTIME_FAMILIES.iter().any(is_of_family) {
        FrameKind::Runtime
    } else if name == DETECTOR {
        FrameKind::Detector
    } else {
        FrameKind::User
    }
}

/// Whose a type or path is; `None` for those that the language has, and for parameters.
pub(super) fn of_path(path: &str) -> Option<FrameKind> {
    let mut path = path.trim_start();
    loop {
        let rest = ["&", "*const ", "*mut ", "mut ", "dyn ", "[", "("].iter().find_map(|mark| path.strip_prefix(mark));
        match rest {
            Some(rest) => path = rest.trim_start(),
            None => break,
        }
    }
    if let Some((inner, _)) = split::qualified(path) {
        return of_qualified(inner);
    }
    let end = path.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    let (name, rest) = path.split_at(end);
    (rest.starts_with("::") && !name.is_empty()).then(|| of_crate(name))
}

/// A trait that is the user's is implemented by the user, whose type it may be. Otherwise it goes by the type.
fn of_qualified(qualified: &str) -> Option<FrameKind> {
    let (of, by) = split::type_and_trait(qualified);
    match (of_path(of), by.and_then(of_path)) {
        (Some(_), Some(FrameKind::User)) => Some(FrameKind::User),
        (Some(of), _) => Some(of),
        (None, by) => by,
    }
}

/// Whether a source file is of Rust's own library.
pub(super) fn is_std_source(file: &str) -> bool {
    file.starts_with("/rustc/") || file.contains("/lib/rustlib/src/rust/library/")
}

/// Whose a source file is; `None` for one that lies anywhere: the user's, or of a library that was built from there.
pub(super) fn of_source(file: &str) -> Option<FrameKind> {
    if is_std_source(file) { Some(FrameKind::Std) } else { crate_of_source(file).map(|name| of_crate(&name)) }
}

/// The name of the crate that a file is of, by the directory that the crate was unpacked into.
pub(super) fn crate_of_source(file: &str) -> Option<String> {
    let after = |mark| file.split_once(mark).map(|(_, rest)| rest);
    let plain = |directory: &str| directory.rsplit_once('-').map_or(directory, |(name, _)| name).to_owned();
    let last = || file.rsplit_once("/src/").and_then(|(directory, _)| directory.rsplit('/').next()).map(str::to_owned);
    let name = if is_std_source(file) {
        last()?
    } else if let Some(rest) = after("/registry/src/") {
        // Of its name and version, below one for where it is from.
        plain(rest.split('/').nth(1)?)
    } else if let Some(rest) = after("/git/checkouts/") {
        // One for a repository, in that one for each revision, and in that maybe one for each of several crates.
        let mut parts = rest.split('/');
        let repository = parts.next()?;
        if parts.nth(1)? == "src" { plain(repository) } else { last()? }
    } else {
        after("/vendor/")?.split('/').next()?.to_owned()
    };
    Some(name.replace('-', "_"))
}

/// Whose a function is, by its name, where it has one, by the name of the file that it is in, and by its source.
pub(crate) fn of(name: Option<&str>, module: &str, source: Option<&str>) -> FrameKind {
    if SYSTEM_MODULES.iter().any(|system| module.starts_with(system)) {
        return FrameKind::System;
    }
    let Some(name) = name else {
        return source.map_or(FrameKind::Unknown, |file| of_source(file).unwrap_or(FrameKind::User));
    };
    let by_path = if super::is_bare(name) { None } else { of_path(name) };
    if let Some(kind) = by_path.or_else(|| source.and_then(of_source)) {
        return kind;
    }
    if name == "main" || name.starts_with("__rust") || name.starts_with("rust_") {
        FrameKind::Std
    } else if C_FUNCTIONS.contains(&name)
        || name.starts_with("__")
        || name.starts_with("_start")
        || name.starts_with("_Unwind")
    {
        FrameKind::System
    } else {
        FrameKind::User
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crate_tells_whose_it_is() {
        use FrameKind::{Detector, Runtime, Std, System, User};
        for (name, kind) in [
            ("my_app::work", User),
            ("serde_json::de::from_str", User),
            ("std::thread::sleep", Std),
            ("tokio::runtime::task::raw::poll", Runtime),
            ("tokio_util::task::spawn", Runtime),
            ("tokioish::work", User),
            ("rayon_core::registry::WorkerThread::wait_until_cold", Runtime),
            ("futures_executor::local_pool::block_on", Runtime),
            ("parking_lot::raw_mutex::RawMutex::lock_slow", Runtime),
            ("pollster::block_on", Runtime),
            ("dashmap::lock::RawRwLock::lock_shared_slow", Runtime),
            ("starvation::future::Instrumented<T>::poll", Detector),
            ("<F as core::future::future::Future>::poll", Std),
            ("<my::Fut as core::future::future::Future>::poll", User),
            ("<core::future::poll_fn::PollFn<F> as core::future::future::Future>::poll", Std),
            ("<alloc::vec::Vec<u8> as my_app::Trait>::work", User),
            ("<T as my_app::Trait>::work", User),
            ("<&mut my_app::T as core::fmt::Display>::fmt", User),
            ("<[u8] as core::fmt::Debug>::fmt", Std),
            ("<tokio::runtime::task::core::Core<my_app::f::{closure#0}, S>>::poll", Runtime),
            ("core::ptr::drop_in_place<my::Type>", Std),
            ("core::ops::function::FnOnce::call_once{{vtable.shim}}", Std),
            ("<my_app::main::{closure#0} as core::ops::function::FnOnce<()>>::call_once", User),
            ("main", Std),
            ("__rust_try", Std),
            ("__libc_start_main", System),
            ("sqlite3_step", User),
        ] {
            assert_eq!(of(Some(name), "app", None), kind, "{name}");
        }
        for (file, kind) in [
            ("/rustc/59807616e1/library/std/src/sys/futex.rs", Std),
            ("/home/me/.rustup/toolchains/x/lib/rustlib/src/rust/library/core/src/hint.rs", Std),
            ("/home/me/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/tokio-util-0.7.1/src/task.rs", Runtime),
            ("/home/me/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/serde_json-1.0.1/src/de.rs", User),
            ("/home/me/.cargo/git/checkouts/tokio-1a2b3c/1234567/tokio/src/task.rs", Runtime),
            ("/home/me/.cargo/git/checkouts/rayon-1a2b3c/1234567/src/lib.rs", Runtime),
            ("/home/me/app/vendor/rayon-core/src/lib.rs", Runtime),
            ("/home/me/app/src/main.rs", User),
        ] {
            assert_eq!(of(Some("poll<tokio::X>"), "app", Some(file)), kind, "{file}");
        }
        assert_eq!(of(Some("deflate"), "libz.so.1", None), User);
        assert_eq!(of(Some("qsort"), "libc.so.6", None), System);
        assert_eq!(of(None, "[vdso]", None), System);
        assert_eq!(of(None, "app", None), FrameKind::Unknown);
    }
}
