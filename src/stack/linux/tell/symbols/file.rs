//! The names that a program or library brings along.

use super::debug::DebugInfo;
use super::table::Table;
use crate::stack::machine::tell::elf::{self, Section};
use crate::stack::machine::tell::modules::{Image, Module};
use crate::stack::machine::tell::names;
use crate::stack::machine::tell::pages::{Allowance, Pages, Source};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

/// A function at an address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Function {
    pub(super) name: Option<String>,
    pub(super) file: Option<String>,
    pub(super) line: Option<u32>,
}

#[derive(Debug)]
pub(crate) struct SymbolFile {
    debug: Option<DebugInfo>,
    table: Option<Table>,
}

impl SymbolFile {
    pub(super) fn open(module: &Module, allowance: &Allowance) -> Option<Self> {
        let image = module.image()?;
        // The kernel's own page is nowhere but in memory, and whole there.
        if module.name() == "[vdso]" {
            return Some(Self::read(&image.memory, allowance));
        }
        let pages = open_same(module, image, allowance)?;
        let mut found = Self::read(&pages, allowance);
        if found.debug.is_none()
            && let Some(pages) = image.build_id.as_deref().and_then(|id| open_separate(id, allowance))
        {
            let separate = Self::read(&pages, allowance);
            found.debug = separate.debug;
            found.table = separate.table.or(found.table);
        }
        Some(found)
    }

    pub(crate) fn read(pages: &Arc<Pages>, allowance: &Allowance) -> Self {
        let sections: Vec<Section> = elf::sections(pages).unwrap_or_default();
        Self { debug: DebugInfo::new(pages, &sections), table: Table::read(pages, &sections, allowance) }
    }

    /// What is at an address as the file has it, with what was inlined there first.
    pub(crate) fn functions(&self, address: u64) -> Vec<Function> {
        let mut found = self.debug.as_ref().map(|debug| debug.functions(address)).unwrap_or_default();
        let by_table = || self.table.as_ref().and_then(|table| table.name(address)).map(|name| names::demangled(&name));
        match found.last_mut() {
            // Debug info of lines alone names a function without where it belongs.
            Some(outermost) if outermost.name.as_deref().is_none_or(names::is_bare) => {
                outermost.name = match (by_table(), outermost.name.take()) {
                    (Some(symbol), Some(bare)) => Some(names::joined(symbol, &bare)),
                    (symbol, bare) => symbol.or(bare),
                };
            }
            Some(_) => {}
            None => found.extend(by_table().map(|name| Function { name: Some(name), ..Function::default() })),
        }
        found
    }
}

fn open(path: &Path, allowance: &Allowance) -> Option<(Arc<Pages>, u64)> {
    // Not to wait for what has been put there in place of a file.
    let file: File = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path).ok()?;
    let about = file.metadata().ok().filter(fs::Metadata::is_file)?;
    let pages = Pages::new(Source::File(file), about.len(), allowance)?;
    Some((Arc::new(pages), about.ino()))
}

/// Opens the file of a module, if it is still the one that is mapped.
fn open_same(module: &Module, image: &Image, allowance: &Allowance) -> Option<Arc<Pages>> {
    const OWN: &str = "/proc/self/exe";
    let path = Path::new(&module.identity.path);
    // This leads to the program even where its file has been replaced since.
    let is_program = fs::read_link(OWN).is_ok_and(|program| program == path);
    let (pages, inode) = open(if is_program { Path::new(OWN) } else { path }, allowance)?;
    is_same(&pages, inode, module, image).then_some(pages)
}

pub(super) fn is_same(pages: &Pages, inode: u64, module: &Module, image: &Image) -> bool {
    let Some(segments) = elf::segments(pages) else { return false };
    let notes = segments.iter().filter(|segment| segment.kind == elf::NOTE);
    let build_id =
        notes.into_iter().find_map(|notes| elf::build_id(pages, notes.offset..notes.offset.checked_add(notes.length)?));
    match (&image.build_id, build_id) {
        (Some(mapped), Some(build_id)) => *mapped == build_id,
        (None, None) => inode == module.identity.inode && segments == image.segments,
        _ => false,
    }
}

/// Debug info that distributions install apart from what it is of.
fn open_separate(build_id: &[u8], allowance: &Allowance) -> Option<Arc<Pages>> {
    let (first, rest) = build_id.split_first()?;
    let name = format!("/usr/lib/debug/.build-id/{first:02x}/{}.debug", elf::hexadecimal(rest));
    open(Path::new(&name), allowance).map(|(pages, _)| pages)
}
