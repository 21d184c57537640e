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

#[cfg(test)]
impl Function {
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

#[derive(Debug)]
pub(crate) struct SymbolFile {
    debug: Option<DebugInfo>,
    table: Option<Table>,
    /// The directory of this crate's own sources as debug info has it, where that can be known.
    own_sources: Option<String>,
}

impl SymbolFile {
    /// `lines`: debug info is wanted.
    pub(super) fn open(module: &Module, allowance: &Allowance, lines: bool) -> Option<Self> {
        let image = module.image()?;
        // The kernel's own page is nowhere but in memory, and whole there.
        if module.name() == "[vdso]" {
            return Some(Self::read(&image.memory, allowance, lines));
        }
        let pages = open_same(module, image, allowance)?;
        let mut found = Self::read(&pages, allowance, lines);
        if lines
            && found.debug.is_none()
            && let Some(pages) = image.build_id.as_deref().and_then(|id| open_separate(id, allowance))
        {
            let separate = Self::read(&pages, allowance, lines);
            found.debug = separate.debug;
            found.table = separate.table.or(found.table);
        }
        found.own_sources = own_sources(module, &found);
        Some(found)
    }

    /// Whether a source file is one of this crate's.
    pub(super) fn is_own(&self, file: &str) -> bool {
        self.own_sources.as_ref().is_some_and(|own| file.starts_with(own.as_str()))
    }

    pub(crate) fn read(pages: &Arc<Pages>, allowance: &Allowance, lines: bool) -> Self {
        let sections: Vec<Section> = elf::sections(pages).unwrap_or_default();
        let debug = if lines { DebugInfo::new(pages, &sections) } else { None };
        Self { debug, table: Table::read(pages, &sections, allowance), own_sources: None }
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
        self.qualify(address, &mut found);
        found
    }

    /// Gives those a path that were inlined and have none, from the outside in.
    fn qualify(&self, address: u64, functions: &mut [Function]) {
        let is_bare = |function: &Function| function.name.as_deref().is_some_and(names::is_bare);
        if !functions.iter().any(is_bare) {
            return;
        }
        let root = self.debug.as_ref().and_then(|debug| debug.root(address));
        let mut outer: Option<String> = None;
        for function in functions.iter_mut().rev() {
            let Some(name) = &function.name else { continue };
            let qualified = names::source::qualified(name, function.file.as_deref(), root.as_ref(), outer.as_deref());
            function.name = qualified.or(function.name.take());
            outer.clone_from(&function.name);
        }
    }
}

/// Where the sources of this crate are, with a slash at the end. No compiler tells a crate under which path its callers will
/// have it in their debug info: so that is asked where this very function is.
#[inline(never)]
fn own_sources(module: &Module, file: &SymbolFile) -> Option<String> {
    let here = own_sources as fn(&Module, &SymbolFile) -> Option<String> as usize as u64;
    if !module.holds_code(here) {
        return None;
    }
    let (_, inside) = file!().rsplit_once("src/")?;
    let source = file.debug.as_ref()?.functions(module.offset(here)).pop()?.file?;
    source.strip_suffix(inside).filter(|directory| directory.ends_with("/src/")).map(str::to_owned)
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
