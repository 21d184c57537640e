//! As much of the format of programs and libraries as finding tables and names needs. Everything is checked: a file may be
//! damaged, or be replaced while it is read.

use super::pages::Pages;
use std::ops::Range;

/// More are taken for damage.
const MOST_SEGMENTS: u16 = 128;
const MOST_SECTIONS: u64 = 4096;

pub(crate) const LOAD: u32 = 1;
pub(crate) const NOTE: u32 = 4;
pub(crate) const EH_FRAME_HDR: u32 = 0x6474_e550;
pub(crate) const SYMTAB: u32 = 2;
pub(crate) const NOBITS: u32 = 8;
pub(crate) const DYNSYM: u32 = 11;
pub(crate) const COMPRESSED: u64 = 0x800;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) kind: u32,
    /// Where it is in the file.
    pub(crate) offset: u64,
    /// Where it says it wants to be in memory.
    pub(crate) address: u64,
    pub(crate) length: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) name: String,
    pub(crate) kind: u32,
    pub(crate) flags: u64,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    /// Of which section it needs another: a symbol table, that of the names.
    pub(crate) link: u32,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// The head of a file of 64 bits in little-endian order.
fn head(pages: &Pages) -> Option<[u8; 64]> {
    pages.array::<64>(0).filter(|head| head.starts_with(b"\x7fELF\x02\x01"))
}

/// What the kernel and the loader map. Offsets are of the file, or of memory where that is what is read.
pub(crate) fn segments(pages: &Pages) -> Option<Vec<Segment>> {
    let head = head(pages)?;
    let (at, size, count) = (u64_at(&head, 32), u16_at(&head, 54), u16_at(&head, 56));
    if size < 56 || count > MOST_SEGMENTS {
        return None;
    }
    let segment = |number: u16| {
        let entry = pages.array::<56>(at.checked_add(u64::from(number) * u64::from(size))?)?;
        Some(Segment {
            kind: u32_at(&entry, 0),
            offset: u64_at(&entry, 8),
            address: u64_at(&entry, 16),
            length: u64_at(&entry, 40),
        })
    };
    (0..count).map(segment).collect()
}

/// All sections of a file.
pub(crate) fn sections(pages: &Pages) -> Option<Vec<Section>> {
    let head = head(pages)?;
    let (at, size) = (u64_at(&head, 40), u64::from(u16_at(&head, 58)));
    if at == 0 || size < 64 {
        return None;
    }
    let entry = |number: u64| pages.array::<64>(at.checked_add(number.checked_mul(size)?)?);
    // Where there are too many for the head, the first section says how many there are.
    let first = entry(0)?;
    let count = match u64::from(u16_at(&head, 60)) {
        0 => u64_at(&first, 32),
        count => count,
    };
    let names = match u16_at(&head, 62) {
        u16::MAX => u32_at(&first, 40),
        names => u32::from(names),
    };
    let names = u64_at(&entry(u64::from(names))?, 24);
    let section = |number: u64| {
        let entry = entry(number)?;
        Some(Section {
            name: pages.text(names.checked_add(u64::from(u32_at(&entry, 0)))?, 64).unwrap_or_default(),
            kind: u32_at(&entry, 4),
            flags: u64_at(&entry, 8),
            offset: u64_at(&entry, 24),
            length: u64_at(&entry, 32),
            link: u32_at(&entry, 40),
        })
    };
    (0..count.min(MOST_SECTIONS)).map(section).collect()
}

/// The number that a linker gave to the build, from the notes at a place.
pub(crate) fn build_id(pages: &Pages, notes: Range<u64>) -> Option<Vec<u8>> {
    const GNU_BUILD_ID: u32 = 3;
    let mut at = notes.start;
    while at < notes.end {
        let head = pages.array::<12>(at)?;
        let (name, text, kind) = (u32_at(&head, 0), u32_at(&head, 4), u32_at(&head, 8));
        let name_at = at.checked_add(12)?;
        let text_at = name_at.checked_add(u64::from(name).next_multiple_of(4))?;
        if kind == GNU_BUILD_ID && name == 4 && pages.array::<4>(name_at)? == *b"GNU\0" && (1..=64).contains(&text) {
            let mut id = vec![0; text as usize];
            pages.read(text_at, &mut id)?;
            return Some(id);
        }
        at = text_at.checked_add(u64::from(text).next_multiple_of(4))?;
    }
    None
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::stack::machine::tell::pages::{Allowance, Source};
    use std::fs::File;

    fn this_program() -> Pages {
        let file = File::open("/proc/self/exe").unwrap();
        let length = file.metadata().unwrap().len();
        Pages::new(Source::File(file), length, &Allowance::new(64 << 20)).unwrap()
    }

    #[test]
    fn this_program_has_what_every_program_has() {
        let pages = this_program();
        let segments = segments(&pages).unwrap();
        assert!(segments.iter().any(|s| s.kind == EH_FRAME_HDR && s.length > 100));
        assert!(segments.iter().any(|s| s.kind == LOAD && s.offset == 0));
        let sections = sections(&pages).unwrap();
        let symbols = sections.iter().find(|s| s.kind == SYMTAB).unwrap();
        assert_eq!(sections[symbols.link as usize].name, ".strtab");
        assert!(sections.iter().any(|s| s.name == ".text" && s.length > 1000));
    }

    #[test]
    fn notes_tell_the_build() {
        let mut notes = Vec::new();
        for (name, kind, text) in [(&b"GNU\0"[..], 1_u32, &[1, 2, 3][..]), (b"GNU\0", 3, &[0xab, 0xcd])] {
            notes.extend((name.len() as u32).to_le_bytes());
            notes.extend((text.len() as u32).to_le_bytes());
            notes.extend(kind.to_le_bytes());
            notes.extend(name);
            notes.extend(text);
            notes.resize(notes.len().next_multiple_of(4), 0);
        }
        let end = notes.len() as u64;
        let pages = Pages::copied(notes).unwrap();
        assert_eq!(hexadecimal(&build_id(&pages, 0..end).unwrap()), "abcd");
        assert_eq!(build_id(&pages, 0..8), None);
        assert_eq!(build_id(&pages, end..end + 100), None);
    }

    #[test]
    fn what_is_no_such_file_is_refused() {
        for bytes in
            [vec![], b"\x7fELF".to_vec(), vec![0; 100], [b"\x7fELF\x02\x01".to_vec(), vec![0xff; 200]].concat()]
        {
            let pages = Pages::copied(bytes).unwrap();
            assert_eq!(segments(&pages), None);
            assert_eq!(sections(&pages), None);
        }
    }
}
