//! Single threads of this process. An id may have passed to another thread by the time that it is asked for.

use super::calls;
use super::{field, read};
use crate::evidence::{CpuTime, Doing, Inside, RunState, SystemCall, ThreadCounters};
use std::fs::File;
use std::io::Read;
use std::ops::Range;

/// The calling thread's id as the kernel has it: 0.1 us.
pub(crate) fn thread_id() -> Option<u32> {
    u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).ok()
}

/// Where the calling thread's stack lies: 1 us. Of the main thread it is what that may grow to, and takes some 50 us.
pub(crate) fn own_stack() -> Option<Range<u64>> {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: the pointer is valid for the attributes that the call fills in; the thread is the calling one, which lives.
    if unsafe { libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) } != 0 {
        return None;
    }
    let (mut base, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: the call above has filled them in, and both pointers are valid for what this one stores.
    let answer = unsafe { libc::pthread_attr_getstack(attributes.as_ptr(), &mut base, &mut size) };
    // SAFETY: filled in above, and not used any more.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    let start = base.addr() as u64;
    (answer == 0).then(|| start..start.saturating_add(size as u64))
}

/// How much stack the calling thread has.
pub(crate) fn stack_size() -> Option<u64> {
    own_stack().map(|stack| stack.end - stack.start)
}

/// Some 7 us, on a busy machine 20: two files are opened, read and closed. Only for threads under suspicion.
pub(crate) fn cpu_time(tid: u32) -> Option<CpuTime> {
    let sums = cpu_sums(tid)?;
    Some(CpuTime { runnable: is_runnable(tid)?, ..sums })
}

/// The same, but for whether it is ready for a CPU now: one file, and half the time.
pub(crate) fn cpu_sums(tid: u32) -> Option<CpuTime> {
    let (on_cpu, waited, turns) = parse_schedstat(&line_of_thread(tid, "schedstat")?)?;
    Some(CpuTime { on_cpu, waited, runnable: false, turns })
}

/// Whether a thread is on a CPU or ready for one: 3 us, one file.
pub(crate) fn is_runnable(tid: u32) -> Option<bool> {
    Some(Stat::parse(&line_of_thread(tid, "stat")?)?.letter == 'R')
}

/// Some 7 us, two files. The two are read one after the other, so they may tell of different moments.
pub(crate) fn doing(tid: u32) -> Option<Doing> {
    let state = Stat::parse(&line_of_thread(tid, "stat")?)?.state()?;
    Some(Doing { state, inside: inside(tid) })
}

/// Some 3 us. The kernel tells a process of its own threads, unless it has dropped privileges and may not be looked at.
pub(super) fn inside(tid: u32) -> Inside {
    line_of_thread(tid, "syscall").map_or(Inside::Unknown, |text| parse_syscall(&text))
}

/// Whether it is a thread of this process.
pub(super) fn exists(tid: u32) -> bool {
    std::path::Path::new(&format!("/proc/self/task/{tid}")).exists()
}

/// Some 12 us, two files.
pub(crate) fn thread_counters(tid: u32) -> Option<ThreadCounters> {
    let stat = Stat::parse(&line_of_thread(tid, "stat")?)?;
    let status = of_thread(tid, "status").unwrap_or_default();
    Some(ThreadCounters {
        voluntary_switches: field(&status, "voluntary_ctxt_switches"),
        involuntary_switches: field(&status, "nonvoluntary_ctxt_switches"),
        minor_faults: stat.minor_faults,
        major_faults: stat.major_faults,
    })
}

/// The ids of all threads of this process: 3 us and a little for each.
pub(crate) fn threads() -> Option<Vec<u32>> {
    let entries = std::fs::read_dir("/proc/self/task").ok()?;
    Some(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// The first 15 bytes of a thread's name: 3 us.
#[cfg(any(feature = "stacks", test))]
pub(crate) fn thread_name(tid: u32) -> Option<String> {
    let mut name = line_of_thread(tid, "comm")?;
    name.truncate(name.trim_end_matches('\n').len());
    Some(name)
}

fn of_thread(tid: u32, file: &str) -> Option<String> {
    read(of(tid, file))
}

fn of(tid: u32, file: &str) -> String {
    format!("/proc/self/task/{tid}/{file}")
}

/// The same of a file that is one line, which the kernel gives whole at the first reading: one system call less.
fn line_of_thread(tid: u32, file: &str) -> Option<String> {
    let mut bytes = [0; 1_024];
    let length = File::open(of(tid, file)).ok()?.read(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
}

/// The time on a CPU, the time ready and not on one, and how often it was given one.
fn parse_schedstat(text: &str) -> Option<(u64, u64, u64)> {
    let mut sums = text.split_ascii_whitespace().map(str::parse);
    Some((sums.next()?.ok()?, sums.next()?.ok()?, sums.next()?.ok()?))
}

/// What is of use in `stat`, of a thread or of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stat {
    letter: char,
    minor_faults: Option<u64>,
    major_faults: Option<u64>,
    pub(super) threads: Option<u64>,
}

impl Stat {
    pub(super) fn parse(text: &str) -> Option<Self> {
        // The name in parentheses may hold anything; the state comes after the last of them.
        let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
        let letter = fields.next()?.chars().next()?;
        let mut number = |skip| fields.nth(skip)?.parse().ok();
        Some(Self { letter, minor_faults: number(6), major_faults: number(1), threads: number(7) })
    }

    fn state(&self) -> Option<RunState> {
        match self.letter {
            'R' => Some(RunState::Runnable),
            'S' => Some(RunState::Asleep),
            'D' => Some(RunState::Blocked),
            'T' | 't' => Some(RunState::Stopped),
            'X' | 'x' | 'Z' => Some(RunState::Dead),
            _ => None,
        }
    }
}

/// `running`; or `-1`, stack and instruction; or number, six arguments, stack and instruction.
pub(super) fn parse_syscall(text: &str) -> Inside {
    let text = text.trim();
    if text == "running" {
        return Inside::Running;
    }
    let mut fields = text.split_ascii_whitespace();
    match fields.next() {
        Some("-1") => Inside::NoCall,
        Some(number) => parse_call(number, fields).map_or(Inside::Unknown, Inside::Call),
        None => Inside::Unknown,
    }
}

fn parse_call<'a>(number: &str, fields: impl Iterator<Item = &'a str>) -> Option<SystemCall> {
    let number = number.parse().ok()?;
    let mut words = fields.map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
    let mut arguments = [0; 6];
    for argument in &mut arguments {
        *argument = words.next()??;
    }
    let (stack, instruction) = (words.next()??, words.next()??);
    Some(SystemCall { number, arguments, stack, instruction, name: calls::name(number) })
}

#[cfg(all(test, not(starvation_loom)))]
pub(super) mod tests;
