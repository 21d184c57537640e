//! What a thread that sleeps at a futex waits for.
//!
//! The arguments do not tell. This is what was seen of real threads, on x86_64 with glibc:
//!
//! | what waits | operation | value |
//! |---|---|---|
//! | `std` `Mutex`, also that of stdout | 0x89 | 2 |
//! | `RwLock::read` | 0x89 | 0x7fffffff if a writer holds it, 0xffffffff if another one waits as well, 0xc0000001 and up if readers hold it |
//! | `RwLock::write` | 0x89 | a counter of its own, from 0 |
//! | `Condvar`, `Barrier`, rayon's idle threads | 0x89 | how often it was notified |
//! | `thread::park`, channels, `thread::scope`, the `block_on` of `futures` | 0x89 | 0xffffffff |
//! | `Once`, `OnceLock`, `LazyLock` | 0x89 | 5 while another one runs, 7 before any has begun |
//! | `JoinHandle::join` | 0x109 | the id of the thread |
//! | mutexes of glibc, so those of libraries in C | 0x80 | 2 |
//! | condition variables, semaphores and reader-writer locks of glibc | 0x189 | a counter |
//! | mutexes of glibc that hand their priority on | 0x86 | 0 |
//! | everything of `parking_lot` | 0x80 | 1 |
//! | Tokio: idle workers (one of them is in `epoll_wait`), idle pool threads, `block_on`, with and without `block_in_place` | 0x80 | 1 |
//!
//! So a mutex looks like a condition variable that was notified twice, a reader like a parked thread, and with
//! `parking_lot` everything alike. Where the wait was called from tells them apart, since the standard library has its own
//! place in the code for each kind: the C library's `syscall` keeps nothing on the stack, which therefore begins with the
//! address that it returns to. Which address is whose is learned: threads of our own are made to wait in each way, and
//! looked at. What was not learned is unknown; so are all waits of `parking_lot`, and those of the `std` of another build.

use super::trials::{self, Trial};
use super::{read, thread};
use crate::evidence::{Futex, Inside, Shape, SystemCall};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// The second part of an operation's number.
const PRIVATE: u32 = 0x80;
const CLOCK_REALTIME: u32 = 0x100;
const WAIT_BITSET: u32 = 9;
/// What `std` waits with, and what glibc waits for the end of a thread with.
const OF_STD: u32 = WAIT_BITSET | PRIVATE;
const OF_JOIN: u32 = WAIT_BITSET | CLOCK_REALTIME;

/// A reader-writer lock of `std` that is held by a writer and that only readers wait for.
const WRITER_HOLDS: u32 = 0x7fff_ffff;
/// The state of a parker of `std` whose thread is parked.
const PARKED: u32 = u32::MAX;

/// How long a thread is given to fall asleep where it should.
const PATIENCE: Duration = Duration::from_millis(100);

/// Where a wait was called from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Site {
    /// Of the call into the kernel itself.
    instruction: u64,
    /// Where that returns to; `None` where the instruction says it all.
    caller: Option<u64>,
}

/// Tells waits apart by where they were called from.
#[derive(Debug, Default)]
pub(crate) struct Shapes {
    sites: Vec<(Site, Shape)>,
    /// This process's memory.
    memory: Option<File>,
}

impl Shapes {
    /// Starts sixteen threads, one after the other, that wait for a moment: some 10 ms, and 100 ms for each of them at
    /// worst. Where a thread cannot be started or a place not be found, the answers are unknown later on.
    pub(crate) fn learn() -> Self {
        Self::learn_within(PATIENCE)
    }

    fn learn_within(patience: Duration) -> Self {
        let mut shapes = Self { sites: Vec::new(), memory: File::open("/proc/self/mem").ok() };
        // Elsewhere the place that a call returns to is not kept where it is looked for here.
        if cfg!(target_arch = "x86_64") && shapes.memory.is_some() {
            let code = Code::read();
            trials::run(&mut |trial| {
                let site = shapes.watch(trial, patience)?;
                // What is no address of code is not what it is taken for.
                site.caller.is_none_or(|caller| code.has(caller)).then(|| shapes.sites.push((site, trial.wait.shape)))
            });
            shapes.drop_ambiguous();
        }
        shapes
    }

    /// What the thread waits for that was seen in this call. Some 4 us.
    pub(crate) fn of(&self, tid: u32, call: &SystemCall) -> Shape {
        let Some(futex) = call.futex() else { return Shape::Unknown };
        if futex.is_lock_of_the_kernel() {
            return Shape::Lock;
        }
        if futex.operation == OF_JOIN && futex.value != tid && thread::exists(futex.value) {
            return Shape::Join(futex.value);
        }
        self.by_site(tid, call).unwrap_or_else(|| by_arguments(&futex))
    }

    fn by_site(&self, tid: u32, call: &SystemCall) -> Option<Shape> {
        let caller = self.caller(call)?;
        let is_it = |site: &Site| site.instruction == call.instruction && site.caller.is_none_or(|own| own == caller);
        let (_, shape) = self.sites.iter().find(|(site, _)| is_it(site))?;
        // What was read off its stack counts only if it has slept on meanwhile.
        thread::inside(tid).call().filter(|now| *now == call).map(|_| *shape)
    }

    /// What the thread's stack begins with: the address that the C library's `syscall` returns to.
    fn caller(&self, call: &SystemCall) -> Option<u64> {
        let mut word = [0; 8];
        self.memory.as_ref()?.read_exact_at(&mut word, call.stack).ok()?;
        Some(u64::from_ne_bytes(word))
    }

    /// Waits until the trial's thread sleeps where it should.
    fn watch(&self, trial: &Trial, patience: Duration) -> Option<Site> {
        trial.until_asleep(patience, |call| {
            let caller = self.caller(call)?;
            let Inside::Call(now) = thread::inside(trial.tid) else { return None };
            let caller = (!trial.wait.instruction_suffices).then_some(caller);
            (now == *call).then_some(Site { instruction: call.instruction, caller })
        })
    }

    /// Forgets the places from which different things are waited for.
    fn drop_ambiguous(&mut self) {
        let all = self.sites.clone();
        let same = |a: &Site, b: &Site| {
            a.instruction == b.instruction && (a.caller == b.caller || a.caller.is_none() || b.caller.is_none())
        };
        self.sites.retain(|(site, shape)| all.iter().all(|(other, theirs)| theirs == shape || !same(site, other)));
        self.sites.dedup();
    }
}

/// What the arguments alone prove, which is little: a condition variable's counter can have any value, but some only after
/// it has been notified an exact number of times in the billions.
fn by_arguments(futex: &Futex) -> Shape {
    match (futex.operation, futex.value, futex.timeout) {
        (OF_STD, WRITER_HOLDS, false) => Shape::Lock,
        // No lock of `std` waits with a timeout.
        (OF_STD, PARKED, true) => Shape::Park,
        _ => Shape::Unknown,
    }
}

/// Where this process's code is.
struct Code(Vec<(u64, u64)>);

impl Code {
    fn read() -> Self {
        let maps = read("/proc/self/maps").unwrap_or_default();
        Self(maps.lines().filter_map(parse_map).collect())
    }

    fn has(&self, address: u64) -> bool {
        self.0.iter().any(|(from, to)| (*from..*to).contains(&address))
    }
}

/// The range of a mapping that can be executed.
fn parse_map(line: &str) -> Option<(u64, u64)> {
    let (range, rest) = line.split_once(' ')?;
    let (from, to) = range.split_once('-')?;
    let executable = rest.as_bytes().get(2) == Some(&b'x');
    let address = |text| u64::from_str_radix(text, 16).ok();
    Some((address(from)?, address(to)?)).filter(|_| executable)
}

#[cfg(all(test, not(starvation_loom)))]
mod tests;
