//! Finds the callers of where a thread is, from a copy of its stack, by the tables that compilers leave for exceptions.
//!
//! Nothing but the copy tells what is on the stack; tables and code are read from memory by copies, too. Whatever is damaged,
//! missing or not known ends the walk and says so: what was found until then holds.

mod callsite;
mod machine;
mod rules;

use super::modules::{Module, Modules};
use crate::stack::capture::{Capture, REGISTERS, Way};
use gimli::{CfaRule, RegisterRule, UnwindContext, UnwindExpression};
pub(crate) use machine::INSTRUCTION_POINTER;
use machine::{CALLS_PUSH, FRAME_POINTER, SAVED, SIGNAL_RETURN, STACK_POINTER};
use rules::Rules;
use std::fmt;
use std::sync::Arc;

/// How many functions are looked at: where somebody calls himself thousands of times, more tell nothing new.
pub(crate) const MOST: usize = 512;

/// A place on a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// The next instruction that runs there.
    pub(crate) next: u64,
    /// The instruction that is meant: the call, where one is being waited for. What comes after a call can be of another line,
    /// or of another function.
    pub(crate) address: u64,
    /// Where the function begins, as far as there are rules for it.
    pub(crate) function: Option<u64>,
}

/// How a walk along a stack ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Where the thread began.
    Root,
    /// There is more, but enough has been found.
    Enough,
    /// Nothing tells of the code there: it was made at run time, or is not there any more.
    NoModule,
    /// The module has no tables, or none that are understood.
    NoTables,
    /// Its tables do not tell of this function.
    NoRules,
    Damaged,
    /// What comes next lies outside of what was copied.
    OutsideCopy,
    /// The way on goes by a register whose value is not known.
    RegisterNotKnown(usize),
    /// The next frame would not be further out: the stack has been overwritten, or was taken between two instructions.
    NotFurther,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Root => "complete",
            Self::Enough => "so deep that the rest was left out",
            Self::NoModule => "no program or library is known at the next address",
            Self::NoTables => "the program or library has no tables for unwinding",
            Self::NoRules => "the tables for unwinding do not tell of the function",
            Self::Damaged => "the tables for unwinding are damaged",
            Self::OutsideCopy => "the rest lies outside of the piece of stack that was copied",
            Self::RegisterNotKnown(_) => "a register is needed that cannot be read from outside",
            Self::NotFurther => "the stack does not go on",
        })
    }
}

/// What was found, from the innermost function outwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unwound {
    pub(crate) places: Vec<Place>,
    pub(crate) end: End,
}

/// Unwinds stacks of this process.
#[derive(Debug)]
pub(crate) struct Unwinder {
    pub(crate) modules: Modules,
    context: UnwindContext<usize>,
}

impl Unwinder {
    pub(crate) fn new() -> Self {
        Self { modules: Modules::new(), context: UnwindContext::new() }
    }

    /// At most so many places.
    pub(crate) fn unwind(&mut self, capture: &Capture, most: usize) -> Unwound {
        let mut walk = Walk { capture, registers: capture.registers.0, exact: true, refreshed: false };
        let mut places = Vec::new();
        let end = loop {
            let next = match walk.registers[INSTRUCTION_POINTER] {
                Some(next) => next,
                None => break End::RegisterNotKnown(INSTRUCTION_POINTER),
            };
            if next == 0 {
                break End::Root;
            }
            if places.len() >= most {
                break End::Enough;
            }
            let mut place = Place { next, address: if walk.exact { next } else { next - 1 }, function: None };
            let went = walk.go_out(&mut place, self);
            places.push(place);
            match went {
                Ok(skipped) => places.extend(skipped),
                Err(end) => break end,
            }
        };
        Unwound { places, end }
    }
}

/// Where on a stack one is.
struct Walk<'a> {
    capture: &'a Capture,
    registers: [Option<u64>; REGISTERS],
    /// Whether the instruction pointer is where the thread was, rather than where a call returns to.
    exact: bool,
    /// Whether the list of modules was looked at again.
    refreshed: bool,
}

impl Walk<'_> {
    /// From a function to its caller. Where that had called another, which went on here by a jump as the last thing it did and
    /// so has no frame any more: that one.
    fn go_out(&mut self, place: &mut Place, unwinder: &mut Unwinder) -> Result<Option<Place>, End> {
        let Unwinder { modules, context } = unwinder;
        let module = modules.find_or_refresh(place.address, &mut self.refreshed).ok_or(End::NoModule)?;
        let tables = module.image().and_then(|image| image.tables.as_ref());
        let found = tables.ok_or(End::NoTables).and_then(|tables| {
            let rules = rules::find(tables, context, place.address)?;
            Ok((tables, rules))
        });
        let (tables, rules) = match found {
            Ok((tables, rules)) if rules.after_signal || rules.function.contains(&place.next) => (tables, rules),
            // Some C libraries have no rules for it.
            _ if is_signal_return(&module, place.next) => return self.leave_signal().map(|()| None),
            found => found?,
        };
        place.function = Some(rules.function.start);
        let frame = match &rules.frame {
            CfaRule::RegisterAndOffset { register, offset } => {
                let number = rules::number(*register).ok_or(End::Damaged)?;
                let known = match self.registers[number] {
                    Some(value) => value,
                    None => self.find_frame_pointer(number, &rules, &module, place.address, modules)?,
                };
                known.wrapping_add_signed(*offset)
            }
            CfaRule::Expression(expression) => {
                let memory = |address, size| self.memory(address, size);
                rules::evaluate(expression, tables, rules.encoding, None, &self.registers, &memory)?
            }
        };
        let outer = self.apply(&rules, tables, frame)?;
        self.check_further(frame, &rules)?;
        self.registers = outer;
        self.exact = rules.after_signal;
        Ok(self.skipped(rules.function.start, modules, context))
    }

    /// The function that the caller had called in place of this one.
    fn skipped(&mut self, function: u64, modules: &mut Modules, context: &mut UnwindContext<usize>) -> Option<Place> {
        let returns = self.registers[INSTRUCTION_POINTER].filter(|&returns| returns > 0 && !self.exact)?;
        let caller = modules.find_or_refresh(returns - 1, &mut self.refreshed)?;
        let target = callsite::called_directly(&caller, returns).filter(|&target| target != function)?;
        let tables = caller.image()?.tables.as_ref()?;
        let code = rules::find(tables, context, target).ok()?.function;
        let jump = callsite::jump_to(&caller, code.start..code.end, function).filter(|_| code.start == target)?;
        Some(Place { next: jump, address: jump, function: Some(code.start) })
    }

    /// The registers of the caller.
    fn apply(
        &self,
        rules: &Rules,
        tables: &super::modules::Tables,
        frame: u64,
    ) -> Result<[Option<u64>; REGISTERS], End> {
        let memory = |address, size| self.memory(address, size);
        let evaluate = |expression: &UnwindExpression<usize>| {
            rules::evaluate(expression, tables, rules.encoding, Some(frame), &self.registers, &memory)
        };
        let value = |number: usize, rule: &RegisterRule<usize>| match rule {
            RegisterRule::Undefined | RegisterRule::SameValue | RegisterRule::Architectural => {
                self.registers[number].ok_or(End::RegisterNotKnown(number))
            }
            RegisterRule::Offset(offset) => self.memory(frame.wrapping_add_signed(*offset), 8).ok_or(End::OutsideCopy),
            RegisterRule::ValOffset(offset) => Ok(frame.wrapping_add_signed(*offset)),
            RegisterRule::Register(register) => {
                let other = rules::number(*register).ok_or(End::Damaged)?;
                self.registers[other].ok_or(End::RegisterNotKnown(other))
            }
            RegisterRule::Expression(expression) => {
                evaluate(expression).and_then(|at| self.memory(at, 8).ok_or(End::OutsideCopy))
            }
            RegisterRule::ValExpression(expression) => evaluate(expression),
            RegisterRule::Constant(value) => Ok(*value),
            _ => Err(End::Damaged),
        };
        let mut outer = std::array::from_fn(|number| value(number, &rules.registers[number]).ok());
        if rules.registers[STACK_POINTER] == RegisterRule::Undefined {
            outer[STACK_POINTER] = Some(frame);
        }
        let returns = rules.return_register;
        outer[rules::RETURN] = match &rules.registers[returns] {
            // A function that calls none may have left it where a call puts it. Otherwise there is none.
            RegisterRule::Undefined if CALLS_PUSH || !self.exact => Some(0),
            rule => Some(machine::plain(value(returns, rule)?)),
        };
        Ok(outer)
    }

    /// A caller's frame lies further out; only where a signal was handled it may be anywhere.
    fn check_further(&self, frame: u64, rules: &Rules) -> Result<(), End> {
        let here = self.registers[STACK_POINTER].ok_or(End::RegisterNotKnown(STACK_POINTER))?;
        // Where calls push nothing, a function that has not begun its frame is as far in as its caller.
        let further = frame > here || !CALLS_PUSH && self.exact && frame == here;
        if further || rules.after_signal { Ok(()) } else { Err(End::NotFurther) }
    }

    /// The value of the frame pointer in a function that counts from it, where a thread was read from outside.
    fn find_frame_pointer(
        &mut self,
        register: usize,
        rules: &Rules,
        module: &Module,
        address: u64,
        modules: &mut Modules,
    ) -> Result<u64, End> {
        let not_known = End::RegisterNotKnown(register);
        if register != FRAME_POINTER || self.capture.way != Way::Asleep || !cfg!(target_arch = "x86_64") {
            return Err(not_known);
        }
        let here = self.registers[STACK_POINTER].ok_or(End::RegisterNotKnown(STACK_POINTER))?;
        let since = rules.by_frame_pointer_since.ok_or(not_known)?;
        let below = callsite::below_frame_pointer(module, since..address).ok_or(not_known)?;
        let nearest = here.checked_add(below.bytes).ok_or(not_known)?;
        let mut refreshed = self.refreshed;
        // Where the stack pointer was rounded down, each place that it may have been rounded from is tried. A frame pointer is a
        // multiple of 16, as the stack is at calls.
        let candidates = (0..below.alignment).step_by(8).filter_map(|more| nearest.checked_add(more));
        let found = candidates.filter(|at| at % 16 == 0).find(|&at| {
            let Some(returns) = at.checked_add(8).and_then(|at| self.memory(at, 8)) else { return false };
            let caller = modules.find_or_refresh(returns.wrapping_sub(1), &mut refreshed);
            caller.is_some_and(|caller| {
                let called = callsite::called(&caller, returns, rules.function.start);
                called == callsite::Called::This || called == callsite::Called::Any && below.alignment == 1
            })
        });
        self.refreshed = refreshed;
        self.registers[register] = Some(found.ok_or(not_known)?);
        found.ok_or(not_known)
    }

    /// From where a signal handler returns to, to what the signal interrupted, where only the kernel's layout tells.
    fn leave_signal(&mut self) -> Result<(), End> {
        let (offset, saved) = SAVED;
        let here = self.registers[STACK_POINTER].ok_or(End::RegisterNotKnown(STACK_POINTER))?;
        let mut at = here.wrapping_add(offset);
        for &number in saved {
            self.registers[number] = Some(self.memory(at, 8).ok_or(End::OutsideCopy)?);
            at = at.wrapping_add(8);
        }
        self.exact = true;
        Ok(())
    }

    /// So many bytes of the copy, as a number.
    fn memory(&self, address: u64, size: u8) -> Option<u64> {
        let from = usize::try_from(address.checked_sub(self.capture.base)?).ok()?;
        let size = usize::from(size);
        let bytes = self.capture.stack.get(from..from.checked_add(size)?)?;
        let mut word = [0; 8];
        word.get_mut(..size)?.copy_from_slice(bytes);
        Some(u64::from_le_bytes(word))
    }
}

fn is_signal_return(module: &Arc<Module>, address: u64) -> bool {
    let mut code = [0; SIGNAL_RETURN.len()];
    callsite::read_code(module, address, &mut code).is_some() && code == SIGNAL_RETURN
}

#[cfg(test)]
mod tests;
