//! How far a function on x86_64 has moved the stack pointer below its frame pointer, read from its first instructions.
//!
//! A thread that sleeps in a system call is read from outside, where its frame pointer does not show. Where a function's rules
//! count from that, its frame is as large as its first instructions made it. This reads those that compilers put there, and
//! steps over others that they mix in.

/// What stands between the frame pointer and the stack pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Below {
    pub(crate) bytes: u64,
    /// The stack pointer was rounded down to this: up to as much again may stand in between.
    pub(crate) alignment: u64,
}

/// Larger frames are taken for a misreading.
const LARGEST: i64 = 1 << 30;

/// What an instruction does to the stack pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    None,
    /// It goes down by so much.
    Down(i64),
    /// It is rounded down.
    Align(i64),
    /// A register for scratch gets an address so far below it: a loop that touches all pages in between follows.
    Goal(i64),
    /// The accumulator is set, which tells how large a frame that needs a helper is.
    Accumulator(i64),
    DownByAccumulator,
    /// What follows is not run in this order.
    Branch,
    /// It is set to something else.
    Lost,
}

/// Reads the instructions from the one on that follows `mov rbp, rsp`. `None` where they do something else with the stack
/// pointer.
pub(crate) fn below_frame_pointer(code: &[u8]) -> Option<Below> {
    let (mut bytes, mut alignment) = (0_i64, 1_u64);
    let mut goal = None;
    let mut accumulator = None;
    let mut rest = code;
    while let Some((length, effect)) = instruction(rest) {
        rest = rest.get(length..)?;
        match effect {
            Effect::None => {}
            Effect::Down(by) => bytes += by,
            Effect::Align(to) => alignment = u64::try_from(to.checked_neg()?).ok().filter(|to| to.is_power_of_two())?,
            Effect::Goal(by) => goal = Some(bytes + by),
            Effect::Accumulator(value) => accumulator = Some(value),
            Effect::DownByAccumulator => bytes += accumulator?,
            // The loop ends where the two are equal.
            Effect::Branch if goal.is_some() => bytes = goal.take()?,
            // A frame is made in one go, so what comes later is another matter. A helper that touches pages comes before.
            Effect::Branch if accumulator.is_some() && calls(code, rest, length) => {}
            Effect::Branch => break,
            Effect::Lost => return None,
        }
        if !(0..=LARGEST).contains(&bytes) {
            return None;
        }
    }
    (alignment <= 4096).then_some(Below { bytes: u64::try_from(bytes).ok()?, alignment })
}

/// Whether the instruction just read, of that length and before `rest`, is a direct call that the subtraction of the
/// accumulator follows.
fn calls(code: &[u8], rest: &[u8], length: usize) -> bool {
    let at = code.len() - rest.len() - length;
    code.get(at) == Some(&0xe8) && rest.starts_with(&[0x48, 0x29, 0xc4])
}

#[derive(Debug, Clone, Copy, Default)]
struct Prefixes {
    length: usize,
    wide: bool,
    /// These extend the register numbers of the byte that names operands.
    register: bool,
    base: bool,
    short: bool,
}

fn prefixes(code: &[u8]) -> Prefixes {
    let mut found = Prefixes::default();
    for &byte in code.iter().take(14) {
        match byte {
            0x66 => found.short = true,
            0xf0 | 0xf2 | 0xf3 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65 => {}
            0x40..=0x4f => {
                found.wide = byte & 8 != 0;
                found.register = byte & 4 != 0;
                found.base = byte & 1 != 0;
                found.length += 1;
                break;
            }
            _ => break,
        }
        found.length += 1;
    }
    found
}

/// How many bytes name the operands, from the byte on that begins them.
fn operands(code: &[u8]) -> Option<usize> {
    let &first = code.first()?;
    let (mode, base) = (first >> 6, first & 7);
    let index = usize::from(mode != 3 && base == 4);
    let displacement = match mode {
        0 if base == 5 => 4,
        0 if index == 1 && code.get(1)? & 7 == 5 => 4,
        1 => 1,
        2 => 4,
        _ => 0,
    };
    Some(1 + index + displacement)
}

fn signed(code: &[u8], length: usize) -> Option<i64> {
    let bytes = code.get(..length)?;
    Some(match *bytes {
        [byte] => i64::from(byte.cast_signed()),
        [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])),
        _ => 0,
    })
}

/// The length of the first instruction, and what it does to the stack pointer; `None` for one that is not known.
fn instruction(code: &[u8]) -> Option<(usize, Effect)> {
    let prefixes = prefixes(code);
    let rest = code.get(prefixes.length..)?;
    let (&opcode, after) = rest.split_first()?;
    let immediate = if prefixes.short { 2 } else { 4 };
    let (length, effect) = match opcode {
        0x50..=0x57 => (1, Effect::Down(8)),
        0x58..=0x5f => (1, if opcode == 0x5c && !prefixes.base { Effect::Lost } else { Effect::Down(-8) }),
        0x68 => (1 + immediate, Effect::Down(8)),
        0x6a => (2, Effect::Down(8)),
        0x70..=0x7f | 0xe3 | 0xeb => (2, Effect::Branch),
        0xe8 | 0xe9 => (5, Effect::Branch),
        0xc2 | 0xc3 | 0xcc | 0xf4 => (1, Effect::Branch),
        0xc9 => (1, Effect::Lost),
        0x90..=0x99 => (1, Effect::None),
        0x00..=0x3f if opcode & 7 == 4 => (2, Effect::None),
        0x00..=0x3f if opcode & 7 == 5 => (1 + immediate, Effect::None),
        0xa8 | 0xb0..=0xb7 => (2, Effect::None),
        0xa9 => (1 + immediate, Effect::None),
        0xb8 if !prefixes.wide && !prefixes.base && !prefixes.short => {
            (5, Effect::Accumulator(i64::from(signed(after, 4)?.cast_unsigned() as u32)))
        }
        0xb8..=0xbf => (1 + if prefixes.wide { 8 } else { immediate }, Effect::None),
        0x80 | 0x83 | 0xc0 | 0xc1 | 0xc6 | 0x6b => {
            let named = operands(after)?;
            (1 + named + 1, arithmetic(opcode, after, signed(after.get(named..)?, 1)?, prefixes))
        }
        0x81 | 0xc7 | 0x69 => {
            let named = operands(after)?;
            let value = signed(after.get(named..)?, immediate)?;
            (1 + named + immediate, arithmetic(opcode, after, value, prefixes))
        }
        0xf6 | 0xf7 => {
            let tests = after.first()? & 0x38 <= 8;
            let value = if opcode == 0xf6 { 1 } else { immediate };
            (1 + operands(after)? + if tests { value } else { 0 }, Effect::None)
        }
        0xff => {
            let effect = match after.first()? >> 3 & 7 {
                2..=5 => Effect::Branch,
                6 => Effect::Down(8),
                _ => Effect::None,
            };
            (1 + operands(after)?, effect)
        }
        0x00..=0x3f if opcode & 7 < 4 && opcode & 0x0f != 0x0f => {
            (1 + operands(after)?, by_register(opcode, after, prefixes))
        }
        0x63 | 0x84..=0x8d | 0xd0..=0xd3 | 0xfe => (1 + operands(after)?, by_register(opcode, after, prefixes)),
        0x0f => two_bytes(after)?,
        // The vector instructions: two or three bytes that take the place of the prefixes, and the opcode.
        0xc5 => (
            3 + operands(after.get(2..)?)? + usize::from(matches!(after.get(1)?, 0x70..=0x73 | 0xc2 | 0xc4..=0xc6)),
            Effect::None,
        ),
        0xc4 => {
            let map = after.first()? & 0x1f;
            let named = matches!(after.get(2)?, 0x70..=0x73 | 0xc2 | 0xc4..=0xc6);
            let extra = usize::from(map == 3 || map == 1 && named);
            (4 + operands(after.get(3..)?)? + extra, Effect::None)
        }
        _ => return None,
    };
    let length = prefixes.length + length;
    (length <= code.len()).then_some((length, effect))
}

/// Adding to, subtracting from and rounding the stack pointer.
fn arithmetic(opcode: u8, after: &[u8], value: i64, prefixes: Prefixes) -> Effect {
    let names_stack_pointer = |named: u8| named & 0xc7 == 0xc4 && prefixes.wide && !prefixes.base;
    match after.first() {
        Some(&named) if matches!(opcode, 0x81 | 0x83) && names_stack_pointer(named) => match named >> 3 & 7 {
            0 => Effect::Down(-value),
            4 => Effect::Align(value),
            5 => Effect::Down(value),
            7 => Effect::None,
            _ => Effect::Lost,
        },
        Some(&named) if opcode == 0xc7 && names_stack_pointer(named) => Effect::Lost,
        _ => Effect::None,
    }
}

/// What an instruction on two operands does that may name the stack pointer as the one that is written.
fn by_register(opcode: u8, after: &[u8], prefixes: Prefixes) -> Effect {
    let Some(&named) = after.first() else { return Effect::None };
    let written_first = named & 0xc7 == 0xc4 && !prefixes.base;
    let written_second = named & 0x38 == 0x20 && !prefixes.register;
    let far = |at: usize, length| after.get(at..).and_then(|rest| signed(rest, length)).unwrap_or(0);
    match opcode {
        0x29 if named == 0xc4 && prefixes.wide && !prefixes.base && !prefixes.register => Effect::DownByAccumulator,
        // An address relative to the stack pointer, for itself or for scratch.
        0x8d if after.get(1) == Some(&0x24)
            && !prefixes.base
            && prefixes.wide
            && (written_second || prefixes.register) =>
        {
            let below = match named & 0xc7 {
                0x44 => -far(2, 1),
                0x84 => -far(2, 4),
                _ => return Effect::None,
            };
            match (written_second, named & 0x38) {
                (true, _) => Effect::Down(below),
                (false, 0x18) => Effect::Goal(below),
                _ => Effect::None,
            }
        }
        0x01 | 0x09 | 0x21 | 0x29 | 0x31 | 0x89 if written_first => Effect::Lost,
        0x03 | 0x0b | 0x23 | 0x2b | 0x33 | 0x63 | 0x8b | 0x8d if written_second => Effect::Lost,
        _ => Effect::None,
    }
}

/// Those whose opcode has a second byte.
fn two_bytes(after: &[u8]) -> Option<(usize, Effect)> {
    let (&opcode, after) = after.split_first()?;
    Some(match opcode {
        0x05 | 0x0b | 0x31 | 0xa2 | 0xc8..=0xcf => (2, Effect::None),
        0x80..=0x8f => (6, Effect::Branch),
        0x38 => (3 + operands(after.get(1..)?)?, Effect::None),
        0x3a => (4 + operands(after.get(1..)?)?, Effect::None),
        0x70..=0x73 | 0xa4 | 0xac | 0xba | 0xc2 | 0xc4..=0xc6 => (3 + operands(after)?, Effect::None),
        0x0d..=0x1f | 0x28..=0x2f | 0x40..=0x6f | 0x74..=0x76 | 0x7c..=0x7f | 0x90..=0x9f => {
            (2 + operands(after)?, Effect::None)
        }
        0xa3
        | 0xa5
        | 0xab
        | 0xad..=0xb1
        | 0xb3
        | 0xb6..=0xb8
        | 0xbb..=0xbf
        | 0xc0
        | 0xc1
        | 0xc3
        | 0xc7
        | 0xd0..=0xfe => (2 + operands(after)?, Effect::None),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn below(code: &[u8]) -> Option<(u64, u64)> {
        below_frame_pointer(code).map(|below| (below.bytes, below.alignment))
    }

    #[test]
    fn pushes_and_a_subtraction_make_a_frame() {
        // push r15; push r14; push rbx; sub rsp, 0x28; mov rbx, rdi; call
        let code = [0x41, 0x57, 0x41, 0x56, 0x53, 0x48, 0x83, 0xec, 0x28, 0x48, 0x89, 0xfb, 0xe8, 0, 0, 0, 0, 0x50];
        assert_eq!(below(&code), Some((24 + 0x28, 1)));
        // push rax; call: the smallest frame, and what follows a call does not count.
        assert_eq!(below(&[0x50, 0xe8, 1, 2, 3, 4, 0x48, 0x83, 0xec, 0x28]), Some((8, 1)));
        assert_eq!(below(&[]), Some((0, 1)));
    }

    #[test]
    fn what_compilers_mix_in_is_stepped_over() {
        // mov r14, rsi; push rbx; lea rax, [rip + 5]; mov qword ptr [rbp - 0x30], rax; movups [rbp - 0x40], xmm0;
        // mov dword ptr [rbp - 8], 7; vmovups ymm0, [rdi]; sub rsp, 0x1000; test edi, edi; je
        let code = [
            &[0x49, 0x89, 0xf6, 0x53, 0x48, 0x8d, 0x05, 5, 0, 0, 0, 0x48, 0x89, 0x45, 0xd0][..],
            &[0x0f, 0x11, 0x45, 0xc0, 0xc7, 0x45, 0xf8, 7, 0, 0, 0, 0xc5, 0xfc, 0x10, 0x07],
            &[0x48, 0x81, 0xec, 0, 0x10, 0, 0, 0x85, 0xff, 0x74, 5, 0x53, 0x53],
        ]
        .concat();
        assert_eq!(below(&code), Some((8 + 0x1000, 1)));
    }

    #[test]
    fn other_ways_to_subtract_are_known() {
        assert_eq!(below(&[0x48, 0x83, 0xc4, 0x80]), Some((128, 1)), "add rsp, -128");
        assert_eq!(below(&[0x48, 0x8d, 0x64, 0x24, 0xd0]), Some((0x30, 1)), "lea rsp, [rsp - 0x30]");
        assert_eq!(below(&[0x53, 0x48, 0x83, 0xe4, 0xc0, 0x48, 0x83, 0xec, 0x40]), Some((72, 64)), "and rsp, -64");
        // mov eax, 0x3000; call __rust_probestack; sub rsp, rax; push would be another matter after a call
        assert_eq!(below(&[0xb8, 0, 0x30, 0, 0, 0xe8, 1, 0, 0, 0, 0x48, 0x29, 0xc4]), Some((0x3000, 1)));
    }

    #[test]
    fn a_loop_that_touches_pages_is_counted_once() {
        // push rbx; lea r11, [rsp - 0x4000]; sub rsp, 0x1000; mov qword ptr [rsp], 0; cmp rsp, r11; jne; sub rsp, 0x20; call
        let code = [
            &[0x53, 0x4c, 0x8d, 0x9c, 0x24, 0, 0xc0, 0xff, 0xff, 0x48, 0x81, 0xec, 0, 0x10, 0, 0][..],
            &[
                0x48, 0xc7, 0x04, 0x24, 0, 0, 0, 0, 0x4c, 0x39, 0xdc, 0x75, 0xec, 0x48, 0x83, 0xec, 0x20, 0xe8, 0, 0,
                0, 0,
            ],
        ]
        .concat();
        assert_eq!(below(&code), Some((8 + 0x4000 + 0x20, 1)));
    }

    #[test]
    fn what_sets_the_stack_pointer_otherwise_ends_it() {
        for code in [&[0x48, 0x89, 0xc4][..], &[0x48, 0x8b, 0x20], &[0xc9], &[0x48, 0x8d, 0x65, 0xd8], &[0x5b], &[0x5c]]
        {
            assert_eq!(below(code), None, "{code:x?}");
        }
        assert_eq!(below(&[0x48, 0x81, 0xec, 0, 0, 0, 0x7f]), None, "too large");
        // An instruction that is not known, or cut off, ends what is counted.
        assert_eq!(below(&[0x53, 0x62, 0x53]), Some((8, 1)));
        assert_eq!(below(&[0x53, 0x48, 0x81, 0xec, 0]), Some((8, 1)));
    }

    #[test]
    fn any_bytes_are_read_without_harm() {
        let mut random = 88_172_645_463_325_252_u64;
        for _ in 0..200_000 {
            let mut code = [0; 24];
            for byte in &mut code {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                *byte = random as u8;
            }
            let _ = below_frame_pointer(&code);
        }
    }
}
