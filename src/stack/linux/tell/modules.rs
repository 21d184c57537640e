//! The programs and libraries that are mapped into this process, as the kernel lists them: the loader's own list has a lock,
//! which a stuck thread may hold. What they say of themselves is read from memory, by copies that fail where one has been
//! unmapped meanwhile.

use super::elf::{self, Segment};
use super::pages::{Allowance, Bytes, Pages, Source};
use gimli::{BaseAddresses, EhFrame};
use std::fs;
use std::io::Read;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// A process with a longer list is read as far as this.
const LONGEST_LIST: u64 = 16 << 20;
/// More modules than this are not told apart.
const MOST_MODULES: usize = 4096;
/// How much of the modules' memory is held as copies. All are dropped when most of it is used up.
const HELD: usize = 32 << 20;

/// A line of the kernel's list.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mapping<'a> {
    range: Range<u64>,
    executable: bool,
    offset: u64,
    device: &'a str,
    inode: u64,
    path: &'a str,
}

impl<'a> Mapping<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut rest = line;
        let mut word = || {
            let (word, left) = rest.trim_start().split_once(' ').unwrap_or((rest.trim_start(), ""));
            rest = left;
            word
        };
        let (start, end) = word().split_once('-')?;
        let hexadecimal = |text| u64::from_str_radix(text, 16).ok();
        let range = hexadecimal(start)?..hexadecimal(end)?;
        let executable = word().as_bytes().get(2) == Some(&b'x');
        let offset = hexadecimal(word())?;
        let device = word();
        let inode = word().parse().ok()?;
        let path = rest.trim_start();
        (range.start < range.end).then_some(Self { range, executable, offset, device, inode, path })
    }

    fn is_of(&self, module: &Identity) -> bool {
        self.path == module.path && self.inode == module.inode && self.device == module.device
    }
}

/// Which file is mapped, and where: while that stays, so does what was read from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// As the kernel tells it, which marks files that are gone with ` (deleted)`.
    pub(crate) path: String,
    pub(crate) inode: u64,
    device: String,
    /// Of all its mappings, from the first to the last.
    pub(crate) range: Range<u64>,
}

/// A program or library in memory.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) identity: Identity,
    /// Where its code is.
    executable: Vec<Range<u64>>,
    image: OnceLock<Option<Image>>,
    allowance: Allowance,
}

/// What a module says of itself, in memory.
#[derive(Debug)]
pub(crate) struct Image {
    /// Its memory; read only where it does not change.
    pub(crate) memory: Arc<Pages>,
    /// How much further it is than it was linked to be.
    pub(crate) bias: u64,
    pub(crate) build_id: Option<Vec<u8>>,
    pub(crate) segments: Vec<Segment>,
    pub(crate) tables: Option<Tables>,
}

/// What finds the callers of its functions.
#[derive(Debug)]
pub(crate) struct Tables {
    /// From which address on `index` is.
    pub(crate) index_at: u64,
    /// Functions in the order of their addresses, for a binary search.
    pub(crate) index: Bytes,
    pub(crate) frames_at: u64,
    pub(crate) frames: EhFrame<Bytes>,
    pub(crate) bases: BaseAddresses,
}

impl Module {
    /// The name of its file.
    pub(crate) fn name(&self) -> &str {
        let path = self.identity.path.strip_suffix(" (deleted)").unwrap_or(&self.identity.path);
        path.rsplit_once('/').map_or(path, |(_, name)| name)
    }

    fn is_still(&self, now: &Self) -> bool {
        self.identity == now.identity && self.executable == now.executable
    }

    #[cfg(test)]
    pub(crate) fn executable(&self) -> &[Range<u64>] {
        &self.executable
    }

    pub(crate) fn holds_code(&self, address: u64) -> bool {
        self.executable.iter().any(|range| range.contains(&address))
    }

    pub(crate) fn image(&self) -> Option<&Image> {
        self.image.get_or_init(|| Image::read(&self.identity.range, &self.allowance)).as_ref()
    }

    /// Where an address is as the file has it.
    pub(crate) fn offset(&self, address: u64) -> u64 {
        address.wrapping_sub(self.image().map_or(self.identity.range.start, |image| image.bias))
    }
}

impl Image {
    fn read(range: &Range<u64>, allowance: &Allowance) -> Option<Self> {
        let memory = Pages::new(Source::Memory(range.start), range.end - range.start, allowance)?;
        Self::new(Arc::new(memory), range.start)
    }

    /// The image whose head is the first of the pages, which are at an address.
    pub(crate) fn new(memory: Arc<Pages>, start: u64) -> Option<Self> {
        let segments = elf::segments(&memory)?;
        // The head is at the file's beginning: what is loaded from there tells where the rest was linked to be.
        let first =
            segments.iter().filter(|segment| segment.kind == elf::LOAD).find(|segment| segment.offset < 4096)?;
        let bias = start.wrapping_sub(first.address.wrapping_sub(first.offset));
        let place = |segment: &Segment| {
            let at = bias.wrapping_add(segment.address).checked_sub(start)?;
            Some(at..at.checked_add(segment.length)?.min(memory.length()))
        };
        let notes = segments.iter().filter(|segment| segment.kind == elf::NOTE).filter_map(place);
        let build_id = notes.into_iter().find_map(|notes| elf::build_id(&memory, notes));
        let index = segments.iter().find(|segment| segment.kind == elf::EH_FRAME_HDR).and_then(place);
        let tables = index.and_then(|index| Tables::new(&memory, start, index));
        Some(Self { bias, build_id, tables, segments, memory })
    }
}

impl Tables {
    fn new(memory: &Arc<Pages>, start: u64, index: Range<u64>) -> Option<Self> {
        // Four bytes tell the version and how the rest is written. All linkers write it so: where the rules begin, relative to
        // the place itself, how many functions there are, and for each its start and its rules relative to the index.
        const USUAL: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
        let head = memory.array::<8>(index.start)?;
        if !head.starts_with(&USUAL) {
            return None;
        }
        let index_at = start.checked_add(index.start)?;
        let frames_at = (index_at + 4).wrapping_add_signed(i64::from(elf::u32_at(&head, 4).cast_signed()));
        let frames = Bytes::new(memory, frames_at.checked_sub(start)?, u64::MAX);
        let mut frames = EhFrame::from(frames);
        frames.set_address_size(8);
        if cfg!(target_arch = "aarch64") {
            frames.set_vendor(gimli::Vendor::AArch64);
        }
        let bases = BaseAddresses::default().set_eh_frame_hdr(index_at).set_eh_frame(frames_at);
        let index = Bytes::new(memory, index.start, index.end.saturating_sub(index.start));
        Some(Self { index_at, index, frames_at, frames, bases })
    }
}

/// All of them, in the order of their addresses.
#[derive(Debug)]
pub(crate) struct Modules {
    modules: Vec<Arc<Module>>,
    allowance: Allowance,
}

impl Modules {
    pub(crate) fn new() -> Self {
        Self { modules: Vec::new(), allowance: Allowance::new(HELD) }
    }

    /// Reads the list anew. What is still where it was keeps what was read from it.
    pub(crate) fn refresh(&mut self) {
        if self.allowance.is_below(HELD / 8) {
            // What is still in use elsewhere goes on with its own.
            self.allowance = Allowance::new(HELD);
            self.modules.clear();
        }
        let mut list = Vec::new();
        let read = fs::File::open("/proc/self/maps").and_then(|file| file.take(LONGEST_LIST).read_to_end(&mut list));
        if read.is_ok() {
            let list = String::from_utf8_lossy(&list);
            let known = std::mem::take(&mut self.modules);
            self.modules = modules(&list, &self.allowance);
            for module in &mut self.modules {
                let start = module.identity.range.start;
                let at = known.binary_search_by_key(&start, |known| known.identity.range.start);
                let known = at.ok().and_then(|at| known.get(at)).filter(|known| known.is_still(module));
                if let Some(known) = known {
                    *module = Arc::clone(known);
                }
            }
        }
    }

    pub(crate) fn find(&self, address: u64) -> Option<&Arc<Module>> {
        let after = self.modules.partition_point(|module| module.identity.range.start <= address);
        // A mapping can lie within the gaps of another: the one that begins last before the address comes first.
        let before = self.modules.get(..after)?.iter().rev().take(4);
        before.into_iter().find(|module| module.holds_code(address))
    }

    /// As `find`, but looks at the list again if need be: a library may have been loaded since.
    pub(crate) fn find_or_refresh(&mut self, address: u64, refreshed: &mut bool) -> Option<Arc<Module>> {
        if self.find(address).is_none() && !std::mem::replace(refreshed, true) {
            self.refresh();
        }
        self.find(address).cloned()
    }
}

fn modules(list: &str, allowance: &Allowance) -> Vec<Arc<Module>> {
    let mut found: Vec<Module> = Vec::new();
    for mapping in list.lines().filter_map(Mapping::parse) {
        // Of what has no file only the kernel's own page is a library.
        let is_file = mapping.inode != 0 || mapping.path == "[vdso]";
        if !is_file {
            continue;
        }
        let continues = found.last().is_some_and(|module| mapping.offset > 0 && mapping.is_of(&module.identity));
        if !continues && (mapping.offset > 0 || found.len() >= MOST_MODULES) {
            continue;
        }
        if !continues {
            found.push(Module {
                identity: Identity {
                    path: mapping.path.to_owned(),
                    inode: mapping.inode,
                    device: mapping.device.to_owned(),
                    range: mapping.range.clone(),
                },
                executable: Vec::new(),
                image: OnceLock::new(),
                allowance: allowance.clone(),
            });
        }
        let Some(module) = found.last_mut() else { continue };
        module.identity.range.end = module.identity.range.end.max(mapping.range.end);
        if mapping.executable {
            module.executable.push(mapping.range);
        }
    }
    found.into_iter().filter(|module| !module.executable.is_empty()).map(Arc::new).collect()
}

#[cfg(test)]
impl Modules {
    /// The module that holds an address gets another image.
    pub(crate) fn replace(&mut self, address: u64, image: Option<Image>) {
        if let Some(module) = self.modules.iter_mut().find(|module| module.holds_code(address)) {
            *module = Arc::new(Module {
                identity: module.identity.clone(),
                executable: module.executable.clone(),
                image: OnceLock::from(image),
                allowance: module.allowance.clone(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    const LIST: &str = "\
5569502b6000-5569502b8000 r--p 00000000 fe:00 247030                     /usr/bin/my program
5569502b8000-5569502bd000 r-xp 00002000 fe:00 247030                     /usr/bin/my program
5569502bd000-5569502c0000 rw-p 00007000 fe:00 247030                     /usr/bin/my program
55695c022000-55695c043000 rw-p 00000000 00:00 0                          [heap]
7f62daa40000-7f62daa62000 rwxp 00000000 00:00 0 
7f62dac97000-7f62dac98000 r--p 00000000 fe:00 316536                     /usr/lib/locale/LC_NUMERIC
7f62dac98000-7f62dac99000 r--p 00000000 fe:00 5                          /usr/lib/libold.so (deleted)
7f62dac99000-7f62dac9a000 r-xp 00001000 fe:00 5                          /usr/lib/libold.so (deleted)
7f62dac9a000-7f62dac9b000 r--p 00000000 fe:00 5                          /usr/lib/libold.so (deleted)
7f62dac9b000-7f62dac9c000 r-xp 00001000 fe:00 5                          /usr/lib/libold.so (deleted)
7ffd0a1f2000-7ffd0a1f4000 r-xp 00000000 00:00 0                          [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
nonsense
";

    #[test]
    fn modules_are_the_files_that_have_code() {
        let modules = modules(LIST, &Allowance::new(0));
        let names: Vec<_> = modules.iter().map(|module| module.name()).collect();
        assert_eq!(names, ["my program", "libold.so", "libold.so", "[vdso]"]);
        assert_eq!(modules[0].identity.range, 0x5569_502b_6000..0x5569_502c_0000);
        assert!(modules[0].holds_code(0x5569_502b_8000) && !modules[0].holds_code(0x5569_502b_6000));
        assert_eq!(modules[2].identity.range.start, 0x7f62_dac9_a000);
    }

    #[test]
    fn an_address_finds_its_module() {
        let mut all = Modules { modules: modules(LIST, &Allowance::new(0)), allowance: Allowance::new(HELD) };
        assert_eq!(all.find(0x5569_502b_9000).unwrap().name(), "my program");
        assert_eq!(all.find(0x7f62_dac9_b123).unwrap().identity.range.start, 0x7f62_dac9_a000);
        for outside in [0, 0x5569_502b_6000, 0x7f62_daa4_0000, u64::MAX] {
            assert!(all.find(outside).is_none(), "{outside:x}");
        }
        let mut refreshed = false;
        let here = an_address_finds_its_module as fn() as usize as u64;
        let module = all.find_or_refresh(here, &mut refreshed).unwrap();
        assert!(refreshed && module.holds_code(here));
        assert!(all.find_or_refresh(8, &mut refreshed).is_none());
    }

    #[test]
    fn what_stays_mapped_keeps_what_was_read() {
        let mut all = Modules::new();
        all.refresh();
        let here = what_stays_mapped_keeps_what_was_read as fn() as usize as u64;
        let before = Arc::clone(all.find(here).unwrap());
        let image = before.image().unwrap();
        assert!(image.tables.is_some());
        all.refresh();
        assert!(Arc::ptr_eq(&before, all.find(here).unwrap()));
        assert!(before.offset(here) < before.identity.range.end - before.identity.range.start);
        assert_eq!(before.offset(here), here - image.bias);
    }

    #[test]
    fn the_kernels_own_page_has_tables() {
        let mut all = Modules::new();
        all.refresh();
        let vdso = all.modules.iter().find(|module| module.name() == "[vdso]").unwrap();
        assert!(vdso.image().unwrap().tables.is_some());
    }

    #[test]
    fn libraries_that_come_and_go_are_noticed() {
        let mut all = Modules::new();
        all.refresh();
        // SAFETY: the library runs nothing when it is loaded, and nothing of it is used after it is closed.
        let (library, function) = unsafe {
            let library = libc::dlopen(c"libresolv.so.2".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            assert!(!library.is_null(), "it belongs to the C library");
            (library, libc::dlsym(library, c"ns_datetosecs".as_ptr()) as u64)
        };
        let mut refreshed = true;
        assert!(function > 0);
        assert!(all.find_or_refresh(function, &mut refreshed).is_none(), "it was looked at already");
        refreshed = false;
        let module = all.find_or_refresh(function, &mut refreshed).unwrap();
        assert!(module.name().starts_with("libresolv"));
        // SAFETY: it was opened above.
        unsafe { libc::dlclose(library) };
        // Nothing had been read of it, and now there is nothing: that is told, and not run into.
        assert!(!fs::read_to_string("/proc/self/maps").unwrap().contains("libresolv"));
        assert!(module.image().is_none());
        all.refresh();
        assert!(all.find(function).is_none());
    }
}
