//! Source lines and inlined functions, where there is debug info.

use super::file::Function;
use crate::stack::machine::tell::elf::{self, Section};
use crate::stack::machine::tell::names::{self, source::Root};
use crate::stack::machine::tell::pages::{Bytes, Pages};
use addr2line::Context;
use gimli::Reader;
use std::fmt;
use std::sync::Arc;

/// Damaged info can nest inlined functions without end.
const MOST_INLINED: usize = 64;

pub(super) struct DebugInfo {
    context: Context<Bytes>,
    pages: Arc<Pages>,
}

impl fmt::Debug for DebugInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DebugInfo")
    }
}

impl DebugInfo {
    /// `None` where there is none, or none that is read: it may be compressed.
    pub(super) fn new(pages: &Arc<Pages>, sections: &[Section]) -> Option<Self> {
        let named = |name: &str| sections.iter().find(|section| section.name == name && section.kind != elf::NOBITS);
        let is_compressed = |section: &Section| section.flags & elf::COMPRESSED != 0;
        let debug = sections.iter().filter(|section| section.name.starts_with(".debug_"));
        if named(".debug_info").is_none() || debug.into_iter().any(is_compressed) {
            return None;
        }
        let part = |name: &str| {
            let (offset, length) = named(name).map_or((0, 0), |section| (section.offset, section.length));
            Bytes::new(pages, offset, length)
        };
        let read = || {
            Context::from_sections(
                part(".debug_abbrev").into(),
                part(".debug_addr").into(),
                part(".debug_aranges").into(),
                part(".debug_info").into(),
                part(".debug_line").into(),
                part(".debug_line_str").into(),
                part(".debug_ranges").into(),
                part(".debug_rnglists").into(),
                part(".debug_str").into(),
                part(".debug_str_offsets").into(),
                Bytes::new(pages, 0, 0),
            )
        };
        let context = pages.within_limits(read).ok()?;
        Some(Self { context, pages: Arc::clone(pages) })
    }

    /// What is at an address as the file has it, with what was inlined there first.
    pub(super) fn functions(&self, address: u64) -> Vec<Function> {
        self.pages.within_limits(|| self.read_functions(address))
    }

    fn read_functions(&self, address: u64) -> Vec<Function> {
        let mut found = Vec::new();
        let Ok(mut frames) = self.context.find_frames(address).skip_all_loads() else { return found };
        while found.len() < MOST_INLINED
            && let Ok(Some(frame)) = frames.next()
        {
            let name = frame.function.and_then(|function| Some(names::demangled(&function.raw_name().ok()?)));
            let (file, line) = frame.location.map_or((None, None), |location| (location.file, location.line));
            found.push(Function { name, file: file.map(str::to_owned), line: line.filter(|&line| line > 0) });
        }
        if let Some(innermost) = found.first_mut().filter(|innermost| innermost.line.is_none()) {
            innermost.line = self.line_before(address, innermost.file.as_deref());
        }
        found
    }

    /// The crate that was compiled to what is at an address.
    pub(super) fn root(&self, address: u64) -> Option<Root> {
        self.pages.within_limits(|| {
            let unit = self.context.find_dwarf_and_unit(address).skip_all_loads()?;
            Root::new(&unit.name.as_ref()?.to_string().ok()?, &unit.comp_dir.as_ref()?.to_string().ok()?)
        })
    }

    /// The compiler gives some instructions no line. What comes just before them in the same file is near enough.
    fn line_before(&self, address: u64, file: Option<&str>) -> Option<u32> {
        /// So many bytes: some instructions.
        const NEAR: u64 = 32;
        (1..=NEAR).find_map(|back| {
            let location = self.context.find_location(address.checked_sub(back)?).ok()??;
            location.line.filter(|&line| line > 0 && location.file == file)
        })
    }
}
