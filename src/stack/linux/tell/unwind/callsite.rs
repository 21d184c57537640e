//! Reads code, to check that a frame is where it is thought to be: what is before a return address is a call of the function.

use crate::stack::machine::memory;
use crate::stack::machine::tell::modules::Module;
use crate::stack::machine::tell::prologue::{self, Below};
use std::ops::Range;

/// How much code is read at a function's beginning.
const BEGINNING: u64 = 512;
/// As far is a function searched for a jump in place of a call.
const LONGEST_CALLER: usize = 4096;

/// What a call before an address calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Called {
    /// The function in question.
    This,
    /// What it calls is not known before it is run.
    Any,
    /// Something else, or there is no call.
    Other,
}

/// Copies code of a module.
pub(super) fn read_code(module: &Module, address: u64, into: &mut [u8]) -> Option<()> {
    if !module.holds_code(address) {
        return None;
    }
    let at = address.checked_sub(module.identity.range.start)?;
    module.image()?.memory.read(at, into)
}

/// What a function has put between its frame pointer and its stack pointer, by its code from where it has the one up to where it
/// is.
pub(super) fn below_frame_pointer(module: &Module, code: Range<u64>) -> Option<Below> {
    let length = code.end.checked_sub(code.start)?.min(BEGINNING);
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    read_code(module, code.start, &mut bytes)?;
    prologue::below_frame_pointer(&bytes)
}

/// What the call before an address calls: a function, or something else.
pub(super) fn called(caller: &Module, returns: u64, function: u64) -> Called {
    let mut before = [0; 7];
    let Some(at) = returns.checked_sub(7) else { return Called::Other };
    if read_code(caller, at, &mut before).is_none() {
        return Called::Other;
    }
    if let Some(target) = called_directly(caller, returns)
        && (target == function || leads_to(caller, target, function))
    {
        return Called::This;
    }
    if before[1..3] == [0xff, 0x15] {
        let far = i32::from_le_bytes([before[3], before[4], before[5], before[6]]);
        let target = memory::word(returns.wrapping_add_signed(i64::from(far)));
        return if target == Some(function) { Called::This } else { Called::Any };
    }
    // `call` by a register or by memory: the operands of the length that fits.
    let indirect = (2..=7).any(|length| match before[7 - length..] {
        [0xff, named, ref rest @ ..] if named >> 3 & 7 == 2 => {
            let index = usize::from(named >> 6 != 3 && named & 7 == 4);
            let displacement = match named >> 6 {
                1 => 1,
                2 => 4,
                0 if named & 7 == 5 => 4,
                _ => 0,
            };
            rest.len() == index + displacement
        }
        _ => false,
    });
    if indirect { Called::Any } else { Called::Other }
}

/// The function that the call before an address names, if it names one.
pub(super) fn called_directly(caller: &Module, returns: u64) -> Option<u64> {
    let mut call = [0; 5];
    read_code(caller, returns.checked_sub(5)?, &mut call)?;
    let [0xe8, far @ ..] = call else { return None };
    Some(returns.wrapping_add_signed(i64::from(i32::from_le_bytes(far)))).filter(|_| cfg!(target_arch = "x86_64"))
}

/// Whether code goes on at a function: it is a stub of the linker, or jumps there in place of a last call.
fn leads_to(module: &Module, target: u64, function: u64) -> bool {
    jumps(module, target..target.saturating_add(LONGEST_CALLER as u64), function).next().is_some()
}

/// Where in a function's code it jumps to another one in place of a last call. Not of what is nothing but that jump: stubs of
/// the linker are.
pub(super) fn jump_to(module: &Module, code: Range<u64>, function: u64) -> Option<u64> {
    /// A mark for branches, and a prefix.
    const MARKS: u64 = 5;
    let first = code.start;
    jumps(module, code, function).find(|jump| jump - first > MARKS)
}

/// The jumps to a function that a piece of code seems to have.
fn jumps(module: &Module, code: Range<u64>, function: u64) -> impl Iterator<Item = u64> {
    let length = code.end.saturating_sub(code.start).min(LONGEST_CALLER as u64);
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    while !bytes.is_empty() && read_code(module, code.start, &mut bytes).is_none() {
        // What lies behind the end of all code is not there.
        bytes.truncate(if bytes.len() > 16 { bytes.len() / 2 } else { 0 });
    }
    let start = code.start;
    (0..bytes.len().saturating_sub(5)).filter_map(move |at| {
        let jump = bytes.get(at..at + 6)?;
        let (opcode, operand) = if jump[0] == 0xe9 { (1, &jump[1..5]) } else { (2, &jump[2..6]) };
        let far = operand.iter().rev().fold(0_u32, |far, byte| far << 8 | u32::from(*byte)).cast_signed();
        let there = start.wrapping_add((at + opcode + 4) as u64).wrapping_add_signed(i64::from(far));
        // `jmp` there, or `jmp [rip + ..]` to where the loader has written down.
        let leads =
            jump[0] == 0xe9 && there == function || jump[..2] == [0xff, 0x25] && memory::word(there) == Some(function);
        leads.then_some(start + at as u64)
    })
}
