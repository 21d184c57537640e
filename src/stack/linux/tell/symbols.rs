//! Names for addresses: by debug info where there is any, functions that were inlined included; else by the table of symbols.
//!
//! Files are read piece by piece when they are needed, and only if they are still those that are mapped. What is held of them is
//! bounded: when most of it is used up, all is dropped, and read anew when it is needed.

mod debug;
mod file;
mod table;

use super::elf;
use super::modules::{Identity, Module, Modules};
use super::names;
use super::pages::Allowance;
use super::unwind::{Place, Unwound};
use crate::frame::{Frame, FrameKind};
pub(crate) use file::SymbolFile;

/// How many modules' names are held.
const MOST_FILES: usize = 16;
/// How many bytes of them, apart from what debug info is turned into: that goes by the functions that are met.
const HELD: usize = 96 << 20;

/// Finds names for what was unwound.
#[derive(Debug)]
pub(crate) struct Symbols {
    /// Those that were used last come last.
    files: Vec<(Identity, Option<SymbolFile>)>,
    allowance: Allowance,
    lines: bool,
}

impl Symbols {
    /// `lines`: debug info is wanted.
    pub(crate) fn new(lines: bool) -> Self {
        Self { files: Vec::new(), allowance: Allowance::new(HELD), lines }
    }

    /// The functions at all places of a stack, from the innermost outwards, with their names.
    pub(crate) fn frames(&mut self, unwound: &Unwound, modules: &Modules) -> Vec<Frame> {
        let mut frames = Vec::new();
        for place in &unwound.places {
            match modules.find(place.address) {
                Some(module) => self.at(place, module, &mut frames),
                None => frames.push(Frame::unknown("", place.address)),
            }
        }
        names::name_all(&mut frames);
        frames
    }

    fn at(&mut self, place: &Place, module: &Module, frames: &mut Vec<Frame>) {
        let offset = module.offset(place.address);
        let build_id = module.image().and_then(|image| image.build_id.as_deref()).map(elf::hexadecimal);
        let file = self.file(module);
        let found = file.map(|file| file.functions(offset)).unwrap_or_default();
        let found = if found.is_empty() { vec![file::Function::default()] } else { found };
        let last = found.len() - 1;
        let kind = |function: &file::Function| match (file, &function.file) {
            // Its name may not say so.
            (Some(file), Some(source)) if file.is_own(source) => FrameKind::Detector,
            (_, source) => names::kind::of(function.name.as_deref(), module.name(), source.as_deref()),
        };
        frames.extend(found.into_iter().enumerate().map(|(number, function)| Frame {
            function: None,
            kind: kind(&function),
            symbol: function.name,
            file: function.file,
            line: function.line,
            start: place.function.map(|start| module.offset(start)),
            build_id: build_id.clone(),
            inlined: number < last,
            ..Frame::unknown(module.name(), offset)
        }));
    }

    fn file(&mut self, module: &Module) -> Option<&SymbolFile> {
        if self.allowance.is_below(HELD / 8) {
            self.files.clear();
        }
        let at = self.files.iter().position(|(identity, _)| *identity == module.identity);
        let file = match at {
            Some(at) => self.files.remove(at),
            None => {
                if self.files.len() >= MOST_FILES {
                    self.files.remove(0);
                }
                (module.identity.clone(), SymbolFile::open(module, &self.allowance, self.lines))
            }
        };
        self.files.push(file);
        self.files.last().and_then(|(_, file)| file.as_ref())
    }
}

#[cfg(test)]
mod tests;
