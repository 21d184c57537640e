//! The table of symbols of a file: names and addresses of its functions.

use crate::stack::machine::tell::elf::{self, Section};
use crate::stack::machine::tell::pages::{Allowance, Pages};
use std::sync::Arc;

/// As many functions are held, 16 bytes each; a file with more is read as far as this.
const MOST: usize = 2 << 20;
/// Names of closures in generic functions go into the tens of thousands.
const LONGEST_NAME: usize = 64 << 10;
/// How far back is looked for a function that others lie in.
const NESTED: usize = 8;
const ENTRY: usize = 24;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Symbol {
    address: u64,
    length: u32,
    name: u32,
}

/// Names are read when they are asked for.
#[derive(Debug)]
pub(super) struct Table {
    pages: Arc<Pages>,
    /// In the order of their addresses.
    symbols: Vec<Symbol>,
    names: Section,
    allowance: Allowance,
}

impl Table {
    pub(super) fn read(pages: &Arc<Pages>, sections: &[Section], allowance: &Allowance) -> Option<Self> {
        let of_kind = |kind| sections.iter().find(|section| section.kind == kind && section.length > 0);
        let table = of_kind(elf::SYMTAB).or_else(|| of_kind(elf::DYNSYM))?;
        let names = sections.get(table.link as usize).filter(|names| names.kind != elf::NOBITS)?.clone();
        let symbols = functions(pages, table)?;
        if !allowance.take(symbols.capacity() * size_of::<Symbol>()) {
            return None;
        }
        Some(Self { pages: Arc::clone(pages), symbols, names, allowance: allowance.clone() })
    }

    /// The name of the function that an address is in.
    pub(super) fn name(&self, address: u64) -> Option<String> {
        let after = self.symbols.partition_point(|symbol| symbol.address <= address);
        let before = self.symbols.get(after.saturating_sub(NESTED)..after)?;
        let next = self.symbols.get(after).map_or(u64::MAX, |next| next.address);
        // Functions in assembly may not say how long they are.
        let holds = |symbol: &&Symbol| match symbol.length {
            0 => address < next && address - symbol.address < 4096,
            length => address - symbol.address < u64::from(length),
        };
        let found = before.iter().rev().find(holds)?.address;
        // Of several names for the same, the plainest is meant for people.
        let names = before.iter().filter(|symbol| symbol.address == found).filter_map(|symbol| self.text(symbol));
        names
            .filter(|name| !name.is_empty())
            .min_by_key(|name| (name.bytes().take_while(|&byte| byte == b'_').count().min(2), name.len()))
    }

    fn text(&self, symbol: &Symbol) -> Option<String> {
        let at = u64::from(symbol.name);
        let room = self.names.length.checked_sub(at)?;
        let most = usize::try_from(room).unwrap_or(LONGEST_NAME).min(LONGEST_NAME);
        self.pages.text(self.names.offset.checked_add(at)?, most)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.allowance.give_back(self.symbols.capacity() * size_of::<Symbol>());
    }
}

fn functions(pages: &Pages, table: &Section) -> Option<Vec<Symbol>> {
    const PIECE: usize = ENTRY * 2048;
    const FUNCTION: u8 = 2;
    const CHOSEN_AT_START: u8 = 10;
    let mut symbols = Vec::new();
    let mut piece = vec![0; PIECE];
    let length = table.length.min(pages.length().checked_sub(table.offset)?);
    let mut at = 0;
    while at + ENTRY as u64 <= length && symbols.len() < MOST {
        let now = usize::try_from(length - at).unwrap_or(PIECE).min(PIECE);
        let piece = piece.get_mut(..now - now % ENTRY)?;
        pages.read_once(table.offset.checked_add(at)?, piece)?;
        symbols.extend(piece.chunks_exact(ENTRY).filter_map(|entry| {
            let is_function = matches!(entry[4] & 15, FUNCTION | CHOSEN_AT_START);
            let is_defined = entry[6..8] != [0, 0];
            (is_function && is_defined).then(|| Symbol {
                address: elf::u64_at(entry, 8),
                length: u32::try_from(elf::u64_at(entry, 16)).unwrap_or(u32::MAX),
                name: elf::u32_at(entry, 0),
            })
        }));
        at += piece.len() as u64;
    }
    symbols.sort_unstable();
    symbols.dedup();
    symbols.truncate(MOST);
    symbols.shrink_to_fit();
    Some(symbols)
}
