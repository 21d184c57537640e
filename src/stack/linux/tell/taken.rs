//! Takes stacks of threads that sleep, for the tests of what follows.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use crate::stack::capture::{Capture, REGISTERS, Registers, Way};
use crate::stack::machine::memory;
use std::os::raw::{c_int, c_void};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// DWARF's numbers of the stack and of the instruction pointer.
pub(crate) const POINTERS: (usize, usize) = if cfg!(target_arch = "aarch64") { (31, 32) } else { (7, 16) };

/// Reads a thread that sleeps in a system call.
pub(crate) fn asleep(tid: i32) -> Capture {
    let path = format!("/proc/self/task/{tid}/syscall");
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let line = std::fs::read_to_string(&path).unwrap();
        if let Some(capture) = read(&line).filter(|_| std::fs::read_to_string(&path).unwrap() == line) {
            return capture;
        }
        assert!(Instant::now() < until, "the thread does not sleep: {line}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn read(line: &str) -> Option<Capture> {
    let number = |text: &str| u64::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok();
    let mut words = line.split(' ').rev();
    let (next, top) = (number(words.next()?)?, number(words.next()?)?);
    let mut registers = [None; REGISTERS];
    registers[POINTERS.0] = Some(top);
    registers[POINTERS.1] = Some(next);
    let base = top - 128;
    // As much as there is, page by page.
    let mut stack = vec![0; 128];
    memory::read_all(base, &mut stack)?;
    while stack.len() < 1 << 20 {
        let at = base + stack.len() as u64;
        let mut piece = vec![0; (4096 - at % 4096) as usize];
        if memory::read_all(at, &mut piece).is_none() {
            break;
        }
        stack.extend(piece);
    }
    Some(Capture { registers: Registers(registers), base, stack, futex: None, way: Way::Asleep })
}

/// A thread that is stuck until this is dropped.
pub(crate) struct Victim {
    pub(crate) tid: i32,
    /// The return addresses that the unwinder of exceptions has found at the beginning, from the victim's function outwards.
    pub(crate) expected: Vec<u64>,
    release: Option<mpsc::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// What a victim tells before it gets stuck, and what lets it go.
pub(crate) struct Told {
    told: mpsc::Sender<(i32, Vec<u64>)>,
    pub(crate) released: mpsc::Receiver<()>,
}

impl Told {
    /// To be called where the victim will be stuck.
    #[inline(never)]
    pub(crate) fn here(&self) {
        // SAFETY: takes nothing.
        let tid = unsafe { libc::gettid() };
        let _ = self.told.send((tid, backtrace()));
    }
}

impl Victim {
    pub(crate) fn start(run: impl FnOnce(Told) + Send + 'static) -> Self {
        let (told, hear) = mpsc::channel();
        let (release, released) = mpsc::channel();
        let thread = std::thread::spawn(move || run(Told { told, released }));
        let (tid, expected) = hear.recv_timeout(Duration::from_secs(60)).expect("the victim gets there");
        Self { tid, expected, release: Some(release), thread: Some(thread) }
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        drop(self.release.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

unsafe extern "C" {
    fn _Unwind_Backtrace(each: extern "C" fn(*mut c_void, *mut c_void) -> c_int, argument: *mut c_void) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

extern "C" fn push(context: *mut c_void, found: *mut c_void) -> c_int {
    // SAFETY: `backtrace` gives its vector, and the unwinder a context that lives for this call.
    unsafe { (*found.cast::<Vec<u64>>()).push(_Unwind_GetIP(context) as u64) };
    0
}

/// The return addresses of the calling thread, innermost first.
#[inline(never)]
pub(crate) fn backtrace() -> Vec<u64> {
    let mut found = Vec::<u64>::new();
    // SAFETY: `push` takes the vector for no longer than the call.
    unsafe { _Unwind_Backtrace(push, (&raw mut found).cast()) };
    found
}
