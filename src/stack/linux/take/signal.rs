//! Has a thread that computes copy its own stack, by a signal.
//!
//! A signal ends with EINTR many a call that sleeps, so none is sent to a thread that sleeps: it has run and
//! not slept for the last 2 ms, and is ready to run when the signal is sent. That leaves the few microseconds until it gets there.

use super::cell::{Cell, NOT_AT_ALL, Outcome};
use super::memory::Source;
use super::task::{Position, Standing, Task};
use super::{Subject, handler, install};
use crate::stack::{CannotCapture, Capture, Registers, Way};
use rustix::thread::futex;
use std::time::{Duration, Instant};

/// How long a thread is given to take the signal: it may have to wait for a CPU.
const PATIENCE: Duration = Duration::from_millis(10);
/// How long it is given to come to an end with what it has begun.
const PATIENCE_COPYING: Duration = Duration::from_millis(10);

/// Sends signals, and waits for what comes of them.
pub(super) struct Signals {
    cell: Option<&'static Cell>,
    pub(super) abandoned: u64,
}

/// What the kernel takes for a signal that is queued, on machines of 64 bits.
#[repr(C)]
struct Queued {
    signal: i32,
    error: i32,
    code: i32,
    unused: i32,
    pid: i32,
    uid: u32,
    value: u64,
    rest: [u64; 12],
}
const _: () = assert!(size_of::<Queued>() == size_of::<libc::siginfo_t>());

impl Signals {
    pub(super) fn new() -> Self {
        // What cannot be put in place now may be later, and is told then.
        let _ = install::ensure();
        Self { cell: Cell::claim(), abandoned: 0 }
    }

    /// Some 30 us, if the thread has a CPU. `None`: it sleeps meanwhile.
    pub(super) fn take(
        &mut self,
        task: &Task,
        subject: &Subject<'_>,
        before: Standing,
    ) -> Result<Option<Capture>, CannotCapture> {
        install::ensure()?;
        if self.cell.is_none() {
            self.cell = Cell::claim();
        }
        let cell = self.cell.ok_or(CannotCapture::TooMany)?;
        let now = task.standing()?;
        if now.masks {
            // It would lie there until it is unmasked.
            return Err(CannotCapture::NoAnswer);
        }
        if now.sleeps != before.sleeps {
            return Ok(None);
        }
        let source = Source::find(now.filtered);
        let file = match &source {
            // Its filter might end the process.
            Source::Call if now.filtered => NOT_AT_ALL,
            source => source.descriptor(),
        };
        let outcome = ask(cell, task, subject, file)?;
        let answer = match outcome {
            None => Ok(None),
            Some(Outcome::Done) => Ok(read(cell)),
            Some(Outcome::Cancelled) => Err(CannotCapture::NoAnswer),
            Some(Outcome::Copying) => {
                self.cell = None;
                self.abandoned += 1;
                cell.give_back();
                Err(CannotCapture::NoAnswer)
            }
        };
        // Its id was its own for as long as it was known, so it was this thread that answered.
        subject.check().and(answer)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        if let Some(cell) = self.cell.take() {
            cell.give_back();
        }
    }
}

/// Sends the signal and waits. From arming to the end nothing is allocated, and nobody is asked for anything.
fn ask(cell: &Cell, task: &Task, subject: &Subject<'_>, file: i32) -> Result<Option<Outcome>, CannotCapture> {
    let bounds = subject.bounds.as_ref().map_or((0, 0), |bounds| (bounds.start, bounds.end));
    let sequence = cell.arm(subject.tid, bounds, file);
    let sent = match task.position() {
        Ok((Position::Running, _)) => send(subject.tid, sequence).map(|()| true),
        Ok(_) => Ok(false),
        Err(reason) => Err(reason),
    };
    match sent {
        Ok(true) => {}
        Ok(false) if cell.cancel() == Outcome::Cancelled => return Ok(None),
        Err(reason) if cell.cancel() == Outcome::Cancelled => return Err(reason),
        // A signal of the program came in between, and was as good.
        _ => {}
    }
    if wait(cell, PATIENCE) {
        return Ok(Some(Outcome::Done));
    }
    let outcome = cell.cancel();
    if outcome == Outcome::Copying && wait(cell, PATIENCE_COPYING) {
        return Ok(Some(Outcome::Done));
    }
    Ok(Some(outcome))
}

fn read(cell: &Cell) -> Option<Capture> {
    let (copied, stack) = cell.copied()?;
    let registers = Registers(copied.registers.map(Some));
    Some(Capture { registers, base: copied.base, stack: stack.to_vec(), futex: None, way: Way::Signal })
}

fn send(tid: u32, sequence: u32) -> Result<(), CannotCapture> {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    let queued = Queued {
        signal: libc::SIGURG,
        error: 0,
        code: libc::SI_QUEUE,
        unused: 0,
        pid,
        uid: rustix::process::getuid().as_raw(),
        value: handler::value(sequence),
        rest: [0; 12],
    };
    // SAFETY: the pointer is valid for what the kernel reads, which keeps nothing of it.
    let answer = unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, libc::SIGURG, &raw const queued) };
    match answer {
        0 => Ok(()),
        _ if std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH) => Err(CannotCapture::Gone),
        _ => Err(CannotCapture::NotSent),
    }
}

/// Waits until it is done, but not for ever.
fn wait(cell: &Cell, patience: Duration) -> bool {
    let begin = Instant::now();
    loop {
        let (word, value, is_done) = cell.look();
        if is_done {
            return true;
        }
        let Some(rest) = patience.checked_sub(begin.elapsed()).filter(|rest| !rest.is_zero()) else { return false };
        let timeout = futex::Timespec { tv_sec: 0, tv_nsec: i64::from(rest.subsec_nanos()) };
        // Whatever ended it, the word tells: it may have changed, time be over, or a signal have come.
        let _ = futex::wait(word, futex::Flags::PRIVATE, value, Some(&timeout));
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests;
