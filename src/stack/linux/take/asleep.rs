//! The stack of a thread that sleeps, read from outside.
//!
//! The kernel tells where a thread sleeps and how often it has been given a CPU. If both are the same before and after its
//! stack was copied, it has slept all the while, and nobody moved what is on it.

use super::memory::Memory;
use super::task::{Position, Standing, Task};
use super::{RED_ZONE, Subject};
use crate::stack::capture::REGISTERS;
use crate::stack::{CannotCapture, Capture, Registers, Way};
use std::time::Duration;

/// The numbers that DWARF gives to the stack pointer and to where the instruction pointer is kept.
pub(super) const STACK: usize = if cfg!(target_arch = "aarch64") { 31 } else { 7 };
pub(super) const INSTRUCTION: usize = if cfg!(target_arch = "aarch64") { 32 } else { 16 };

/// How often to look, and how long to wait in between: 4 ms in all.
const TRIES: usize = 8;
const BETWEEN_TRIES: Duration = Duration::from_micros(500);
/// From this one on the thread must not have slept, to be said to compute.
const HALFWAY: usize = TRIES / 2;
/// How much it must have computed since. One that was woken and has to wait for a CPU is ready to run as well, but still in
/// the call that it slept in, and the signal would end that with EINTR.
const COMPUTED: u64 = 50_000;
/// How often to look while it waits for a CPU: 10 ms.
const TRIES_WITHOUT_CPU: usize = 20;

/// What a thread was found to do.
#[allow(clippy::large_enum_variant, reason = "made once and taken apart at once")]
pub(super) enum Seen {
    Asleep(Capture),
    /// For the last 2 ms it was ready to run whenever it was looked at, has run and has not slept.
    Computing(Standing),
}

#[allow(clippy::large_enum_variant, reason = "made once and taken apart at once")]
enum Try {
    Asleep(Capture),
    Running,
    Moved,
}

/// Some 10 us for one that sleeps. `closely`: whether it has slept between two tries is asked as well.
pub(super) fn take(
    task: &Task,
    subject: &Subject<'_>,
    memory: &mut Memory,
    closely: bool,
) -> Result<Seen, CannotCapture> {
    let mut in_a_row = 0;
    let mut halfway = None;
    for attempt in 1..=TRIES + TRIES_WITHOUT_CPU {
        if attempt > 1 {
            std::thread::sleep(BETWEEN_TRIES);
        }
        match try_once(task, subject, memory)? {
            Try::Asleep(capture) => {
                subject.check()?;
                return Ok(Seen::Asleep(capture));
            }
            Try::Running => in_a_row += 1,
            Try::Moved => in_a_row = 0,
        }
        if attempt == HALFWAY && closely {
            halfway = Some((task.standing()?, task.computed()?));
        }
        if attempt < TRIES {
            continue;
        }
        subject.check()?;
        let Some((standing, computed)) = halfway else {
            return Err(if in_a_row == attempt { CannotCapture::Computing } else { CannotCapture::Restless });
        };
        if in_a_row < attempt - HALFWAY || task.standing()?.sleeps != standing.sleeps {
            return Err(CannotCapture::Restless);
        }
        if task.computed()?.saturating_sub(computed) >= COMPUTED {
            return Ok(Seen::Computing(standing));
        }
    }
    // It has had no CPU, so that it would not take the signal either.
    Err(CannotCapture::NoAnswer)
}

fn try_once(task: &Task, subject: &Subject<'_>, memory: &mut Memory) -> Result<Try, CannotCapture> {
    let turns = task.turns()?;
    let (position, text) = task.position()?;
    let Position::At { stack, instruction, in_call, futex } = position else { return Ok(Try::Running) };
    // A function that calls uses nothing below the stack pointer; one that faults may.
    let below = if in_call { 0 } else { RED_ZONE };
    let copied = copy(memory, subject, stack, below);
    if task.position()?.1 != text || task.turns()? != turns {
        return Ok(Try::Moved);
    }
    let (base, bytes) = copied?;
    let mut registers = Registers([None; REGISTERS]);
    registers.0[STACK] = Some(stack);
    registers.0[INSTRUCTION] = Some(instruction);
    Ok(Try::Asleep(Capture { registers, base, stack: bytes.to_vec(), futex, way: Way::Asleep }))
}

fn copy<'a>(
    memory: &'a mut Memory,
    subject: &Subject<'_>,
    stack: u64,
    below: u64,
) -> Result<(u64, &'a [u8]), CannotCapture> {
    let length = subject.length_from(stack);
    // Below the stack pointer there may be no memory.
    if below > 0 && memory.read(stack.wrapping_sub(below), below as usize)?.len() == below as usize {
        let base = stack.wrapping_sub(below);
        return Ok((base, memory.read(base, length + below as usize)?));
    }
    Ok((stack, memory.read(stack, length)?))
}
