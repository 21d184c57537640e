//! Finds the rules by which the registers of a function's caller are had.

use super::End;
use super::machine::{FRAME_POINTER, INSTRUCTION_POINTER, STACK_POINTER};
use crate::stack::capture::REGISTERS;
use crate::stack::machine::tell::modules::Tables;
use crate::stack::machine::tell::pages::Bytes;
use gimli::{
    CfaRule, EhFrame, EhFrameOffset, Encoding, EvaluationResult, Reader, Register, RegisterRule, UnwindContext,
    UnwindExpression, UnwindSection, Value,
};
use std::ops::Range;

/// Longer rules of one function are taken for damage.
const LONGEST: usize = 256 << 10;
/// Expressions of compilers take some ten steps.
const MOST_STEPS: u32 = 1000;

/// The rules that hold at an address.
#[derive(Debug)]
pub(super) struct Rules {
    /// How the address is had at which the caller's frame begins.
    pub(super) frame: CfaRule<usize>,
    pub(super) registers: [RegisterRule<usize>; REGISTERS],
    /// Which of the registers holds the return address.
    pub(super) return_register: usize,
    /// The function is what the kernel returns to after a signal: its caller was interrupted, and has called nothing.
    pub(super) after_signal: bool,
    pub(super) function: Range<u64>,
    /// From which instruction on frames are counted from the frame pointer, where they are.
    pub(super) by_frame_pointer_since: Option<u64>,
    pub(super) encoding: Encoding,
}

/// The number of a register, where it is one of those that are followed.
pub(super) fn number(register: Register) -> Option<usize> {
    Some(usize::from(register.0)).filter(|&number| number < REGISTERS)
}

pub(super) fn find(tables: &Tables, context: &mut UnwindContext<usize>, address: u64) -> Result<Rules, End> {
    let at = find_entry(tables, address).ok_or(End::NoRules)?;
    let offset = at.checked_sub(tables.frames_at).and_then(|at| usize::try_from(at).ok()).ok_or(End::Damaged)?;
    // Damage can look like an entry at another's place, of any length.
    let entry = tables
        .frames
        .fde_from_offset(&tables.bases, EhFrameOffset(offset), EhFrame::cie_from_offset)
        .map_err(|_| End::Damaged)?;
    if !entry.contains(address) {
        return Err(End::NoRules);
    }
    if entry.entry_len() > LONGEST || entry.cie().entry_len() > LONGEST {
        return Err(End::Damaged);
    }
    let return_register = match number(entry.cie().return_address_register()) {
        Some(number) => number,
        None => return Err(End::Damaged),
    };
    let mut rows = entry.rows(&tables.frames, &tables.bases, context).map_err(|_| End::Damaged)?;
    let mut since = None;
    let mut pushed = false;
    loop {
        let row = rows.next_row().map_err(|_| End::Damaged)?.ok_or(End::Damaged)?;
        // Between pushing the caller's frame pointer and going by its own a function is two words deep. Where it returns in the
        // middle, it goes by it from there on as before.
        let two_words = |by: usize| {
            matches!(row.cfa(), CfaRule::RegisterAndOffset { register, offset: 16 }
            if usize::from(register.0) == by)
        };
        if pushed && two_words(FRAME_POINTER) {
            since = Some(row.start_address());
        }
        pushed = two_words(STACK_POINTER);
        if row.contains(address) {
            return Ok(Rules {
                frame: row.cfa().clone(),
                registers: std::array::from_fn(|number| row.register(Register(number as u16))),
                return_register,
                after_signal: entry.is_signal_trampoline(),
                function: entry.initial_address()..entry.end_address(),
                by_frame_pointer_since: since,
                encoding: entry.cie().encoding(),
            });
        }
    }
}

/// Where the rules of the last function that begins at an address or before it are.
fn find_entry(tables: &Tables, address: u64) -> Option<u64> {
    const HEAD: usize = 12;
    const ENTRY: usize = 8;
    let at = |offset: usize| {
        let mut index = tables.index.clone();
        index.skip(offset).ok()?;
        index.read_u32().ok()
    };
    let place = |offset: usize| {
        let relative = i64::from(at(offset)?.cast_signed());
        Some(tables.index_at.wrapping_add_signed(relative))
    };
    let room = tables.index.len().checked_sub(HEAD)? / ENTRY;
    let count = usize::try_from(at(8)?).ok()?.min(room);
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        if place(HEAD + middle * ENTRY)? <= address {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    place(HEAD + low.checked_sub(1)? * ENTRY + 4)
}

/// What an expression comes to. Some work on an address that is given; all may read registers and memory.
pub(super) fn evaluate(
    expression: &UnwindExpression<usize>,
    tables: &Tables,
    encoding: Encoding,
    given: Option<u64>,
    registers: &[Option<u64>; REGISTERS],
    memory: &dyn Fn(u64, u8) -> Option<u64>,
) -> Result<u64, End> {
    let expression = expression.get::<Bytes, _>(&tables.frames).map_err(|_| End::Damaged)?;
    let mut evaluation = expression.evaluation(encoding);
    evaluation.set_max_iterations(MOST_STEPS);
    if let Some(given) = given {
        evaluation.set_initial_value(given);
    }
    let mut wanted = evaluation.evaluate();
    // Each turn goes on with what was wanted; the steps are counted over all turns.
    loop {
        wanted = match wanted.map_err(|_| End::Damaged)? {
            EvaluationResult::Complete => {
                let value = evaluation.value_result().ok_or(End::Damaged)?;
                return value.to_u64(u64::MAX).map_err(|_| End::Damaged);
            }
            EvaluationResult::RequiresMemory { address, size, .. } => {
                let value = memory(address, size).ok_or(End::OutsideCopy)?;
                evaluation.resume_with_memory(Value::Generic(value))
            }
            EvaluationResult::RequiresRegister { register, .. } => {
                let number = number(register).ok_or(End::Damaged)?;
                let value = registers.get(number).copied().flatten().ok_or(End::RegisterNotKnown(number))?;
                evaluation.resume_with_register(Value::Generic(value))
            }
            _ => return Err(End::Damaged),
        };
    }
}

/// Where the return address is, so to say: in the place of the instruction pointer.
pub(super) const RETURN: usize = INSTRUCTION_POINTER;
