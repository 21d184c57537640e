//! What is done to tables and files, at random but the same each time.

use super::Source;
use std::ops::Range;

fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mixed(self.0)
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }
}

/// Numbers that are easy to get wrong: of lengths, distances and counts, and of those that go on in the next byte.
const EDGES: [u64; 14] = [
    0,
    1,
    0x7f,
    0x80,
    0x7fff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffef,
    0xffff_fff0,
    0xffff_ffff,
    i64::MAX as u64,
    1 << 63,
    0x8080_8080_8080_8080,
    u64::MAX,
];

/// What is done to a part.
#[derive(Debug)]
pub(super) enum Harm {
    /// One byte of so many is any other.
    Bytes { one_in: u64 },
    /// One word of so many, each of `size` bytes, is a number that is easy to get wrong.
    Words { size: u64, one_in: u64 },
    /// A stretch is all the same byte: what can nest nests deep, and what counts counts far.
    Filled { stretch: Range<u64>, with: u8 },
    /// A stretch is as it is elsewhere: ends are missing, and what refers to others may go in circles.
    Copied { stretch: Range<u64>, from: u64 },
}

impl Harm {
    pub(super) fn any(random: &mut Random, range: &Range<u64>, file: u64) -> Self {
        let end = range.end.min(file);
        let length = end.saturating_sub(range.start);
        let one_in = [10, 100, 1000, 10_000, 100_000][random.below(5) as usize];
        let start = range.start + random.below(length);
        // Long ones are as likely as short ones.
        let longest = 1 << random.below(24);
        let stretch = start..start.saturating_add(1 + random.below(longest)).min(end);
        match random.below(4) {
            0 => Self::Bytes { one_in },
            1 => Self::Words { size: 1 << random.below(4), one_in },
            // Codes of what debug info consists of are small numbers.
            2 => Self::Filled { stretch, with: [0, 0x80, 0xff, random.below(128) as u8][random.below(4) as usize] },
            _ => Self::Copied { stretch, from: range.start + random.below(length) },
        }
    }
}

/// What is read from another source, with a part damaged, always in the same way.
#[derive(Debug)]
pub(crate) struct Damaged {
    pub(super) source: Box<Source>,
    pub(super) range: Range<u64>,
    pub(super) seed: u64,
    pub(super) harm: Harm,
}

impl Damaged {
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) -> Option<()> {
        self.source.read(at, into)?;
        let end = at + into.len() as u64;
        match &self.harm {
            Harm::Bytes { one_in } => {
                for (at, byte) in (at..).zip(into) {
                    let random = mixed(at ^ self.seed);
                    if self.range.contains(&at) && random.is_multiple_of(*one_in) {
                        *byte = (random >> 40) as u8;
                    }
                }
            }
            Harm::Words { size, one_in } => {
                for (at, byte) in (at..).zip(into).filter(|(at, _)| self.range.contains(at)) {
                    let (word, byte_of_word) = ((at - self.range.start) / size, (at - self.range.start) % size);
                    let random = mixed(word ^ self.seed);
                    if random.is_multiple_of(*one_in) {
                        let edge = EDGES[(random >> 40) as usize % EDGES.len()];
                        *byte = edge.to_le_bytes()[byte_of_word as usize];
                    }
                }
            }
            Harm::Filled { stretch, with } => {
                for (at, byte) in (at..).zip(into) {
                    if stretch.contains(&at) {
                        *byte = *with;
                    }
                }
            }
            Harm::Copied { stretch, from } => {
                let (first, last) = (stretch.start.max(at), stretch.end.min(end));
                if first < last {
                    let part = into.get_mut((first - at) as usize..(last - at) as usize)?;
                    // There may be less.
                    let _ = self.source.read(from + (first - stretch.start), part);
                }
            }
        }
        Some(())
    }
}
