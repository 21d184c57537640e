//! Damages tables, names and stacks at random, and checks that they are read without harm: nothing panics, hangs or asks for
//! memory without end. `STARVATION_FUZZ_ROUNDS` makes it so many times as long. Debug info is damaged where the
//! tests have some: in release builds, with `CARGO_PROFILE_RELEASE_DEBUG=1`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod harm;

use super::elf::{self, Section};
use super::modules::Image;
use super::names;
use super::pages::{Allowance, Pages, Source};
use super::symbols::{SymbolFile, Symbols};
use super::taken::{self, POINTERS, Victim};
use super::unwind::{MOST, Unwinder};
use crate::frame::Frame;
use crate::stack::capture::{Capture, Way};
pub(crate) use harm::Damaged;
use harm::{Harm, Random};
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn rounds(usual: u64) -> u64 {
    let factor = std::env::var("STARVATION_FUZZ_ROUNDS").ok().and_then(|rounds| rounds.parse::<u64>().ok());
    usual * factor.unwrap_or(1)
}

/// No single turn may take as long, even on a machine that is busy.
const TOO_LONG: Duration = Duration::from_secs(60);

/// In KiB: of several tests at a time. A sanitizer keeps what was given back for a while.
const MOST_HELD: u64 = 4 << 20;

fn sleeper() -> Victim {
    Victim::start(|told| {
        told.here();
        let _ = told.released.recv();
    })
}

#[test]
fn damaged_stacks_end_somewhere() {
    let victim = sleeper();
    let whole = taken::asleep(victim.tid);
    let mut unwinder = Unwinder::new();
    let mut symbols = Symbols::new(true);
    let mut random = Random(1);
    for round in 0..rounds(3000) {
        let mut capture: Capture = whole.clone();
        capture.stack.truncate(random.below(6000) as usize);
        for _ in 0..random.below(200) {
            let at = random.below(capture.stack.len() as u64) as usize;
            // A word of the stack in another's place looks more like one than any number.
            let word = match random.below(3) {
                0 => random.next(),
                1 => capture.base + random.below(6000),
                _ => capture.registers.0[POINTERS.1].unwrap() + random.below(4096),
            };
            if let Some(bytes) = capture.stack.get_mut(at..at + 8) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        }
        if random.below(2) == 0 {
            capture.way = Way::Signal;
            let base = capture.base;
            capture.registers.0 = std::array::from_fn(|_| Some(base + random.below(6000)));
            capture.registers.0[POINTERS.1] = whole.registers.0[POINTERS.1];
        }
        let unwound = unwinder.unwind(&capture, MOST);
        assert!(!unwound.places.is_empty() && unwound.places.len() <= MOST);
        if round.is_multiple_of(50) {
            let frames = symbols.frames(&unwound, &unwinder.modules);
            assert!(frames.len() >= unwound.places.len());
        }
    }
}

#[test]
fn damaged_tables_for_unwinding_end_somewhere() {
    let victim = sleeper();
    let capture = taken::asleep(victim.tid);
    let mut unwinder = Unwinder::new();
    let unwound = unwinder.unwind(&capture, MOST);
    let mut random = Random(2);
    // The C library, where the thread is, and this program.
    for place in [unwound.places[0], unwound.places[4]] {
        let module = Arc::clone(unwinder.modules.find(place.address).unwrap());
        let mapped = module.identity.range.clone();
        let code = module.executable().to_vec();
        let tables: Vec<_> = {
            let image = module.image().unwrap();
            let segments = image.segments.iter().filter(|segment| segment.kind == elf::EH_FRAME_HDR);
            let at = |address: u64| (image.bias + address) - mapped.start;
            let index =
                segments.map(|segment| at(segment.address)..at(segment.address) + segment.length).next().unwrap();
            let frames = image.tables.as_ref().unwrap().frames_at - mapped.start;
            // The index alone, the rules alone, the head of the file, and all.
            vec![index.clone(), frames..frames + (2 << 20), 0..4096, 0..u64::MAX]
        };
        for _ in 0..rounds(12) {
            let started = Instant::now();
            for range in &tables {
                let source = Box::new(Source::Memory(mapped.start));
                let harm = Harm::any(&mut random, range, mapped.end - mapped.start);
                let damaged = Source::Damaged(Damaged { source, range: range.clone(), seed: random.next(), harm });
                let pages = Pages::new(damaged, mapped.end - mapped.start, &Allowance::new(64 << 20)).unwrap();
                unwinder.modules.replace(place.address, Image::new(Arc::new(pages), mapped.start));
                let _ = unwinder.unwind(&capture, MOST);
                for _ in 0..100 {
                    // Anywhere in its code, with registers that lead to the copy.
                    let mut capture = capture.clone();
                    let code = &code[random.below(code.len() as u64) as usize];
                    if random.below(2) == 0 {
                        let base = capture.base;
                        capture.registers.0 = std::array::from_fn(|_| Some(base + random.below(6000)));
                        capture.way = Way::Signal;
                    }
                    capture.registers.0[POINTERS.1] = Some(code.start + random.below(code.end - code.start));
                    assert!(unwinder.unwind(&capture, MOST).places.len() <= MOST);
                }
            }
            assert!(started.elapsed() < TOO_LONG);
        }
        unwinder.modules.refresh();
    }
}

/// The sections that names are read from.
fn sections(path: &str) -> Vec<Section> {
    let file = File::open(path).unwrap();
    let length = file.metadata().unwrap().len();
    let pages = Pages::new(Source::File(file), length, &Allowance::new(64 << 20)).unwrap();
    let all = elf::sections(&pages).unwrap();
    let names_things = |section: &Section| {
        section.name.starts_with(".debug_")
            || section.name.contains("str")
            || matches!(section.kind, elf::SYMTAB | elf::DYNSYM)
    };
    let part =
        |name: &str, offset, length| Section { name: name.to_owned(), kind: 0, flags: 0, offset, length, link: 0 };
    let table_at = elf::u64_at(&pages.array::<64>(0).unwrap(), 40);
    let more = [part("head", 0, 64), part("table of sections", table_at, 64 * all.len() as u64)];
    all.into_iter().filter(|section| names_things(section) && section.length > 0).chain(more).collect()
}

/// The most memory that this process has held, in KiB.
fn most_held() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn read_damaged_names(path: &str, usual: u64, code: &[u64]) {
    let sections = sections(path);
    let length = std::fs::metadata(path).unwrap().len();
    let mut random = Random(3);
    for _ in 0..rounds(usual) {
        for section in &sections {
            let started = Instant::now();
            let source = Box::new(Source::File(File::open(path).unwrap()));
            let range = section.offset..section.offset + section.length;
            let harm = Harm::any(&mut random, &range, length);
            let told = format!("{section:?} {harm:?}");
            let damaged = Source::Damaged(Damaged { source, range, seed: random.next(), harm });
            let allowance = Allowance::new(96 << 20);
            let Some(pages) = Pages::new(damaged, length, &allowance) else { continue };
            let file = SymbolFile::read(&Arc::new(pages), &allowance, true);
            for _ in 0..10 {
                let near = code[random.below(code.len() as u64) as usize];
                let _ = file.functions(near.wrapping_add(random.below(4096)));
            }
            let _ = file.functions(random.next());
            assert!(started.elapsed() < TOO_LONG, "{told}");
            assert!(most_held() < MOST_HELD, "{told}");
        }
    }
}

#[test]
fn damaged_names_are_read_without_harm() {
    let victim = sleeper();
    let capture = taken::asleep(victim.tid);
    let mut unwinder = Unwinder::new();
    let unwound = unwinder.unwind(&capture, MOST);
    let modules = &unwinder.modules;
    let offsets = |own: &str| -> Vec<u64> {
        let places = unwound.places.iter().map(|place| place.address);
        let own = places.filter(|&address| modules.find(address).is_some_and(|module| module.identity.path == own));
        own.map(|address| modules.find(address).unwrap().offset(address)).collect()
    };
    let libc = modules.find(unwound.places[0].address).unwrap().identity.path.clone();
    read_damaged_names(&libc, 30, &offsets(&libc));
    let own = std::env::current_exe().unwrap().to_str().unwrap().to_owned();
    read_damaged_names(&own, 1, &offsets(&own));
}

/// A file of 64 bits that has these sections.
fn file_of(sections: &[(&str, &[u8])]) -> Vec<u8> {
    let mut names = vec![0];
    let mut file = vec![0; 64];
    let mut heads = vec![0; 64];
    let mut append = |name: &str, content: &[u8], file: &mut Vec<u8>, names: &mut Vec<u8>| {
        heads.extend((names.len() as u32).to_le_bytes());
        heads.extend(1_u32.to_le_bytes());
        heads.extend([0, 0, file.len() as u64, content.len() as u64, 0, 0, 0].map(u64::to_le_bytes).concat());
        names.extend(name.bytes().chain([0]));
        file.extend(content);
    };
    for (name, content) in sections {
        append(name, content, &mut file, &mut names);
    }
    // Its own name is the last of them.
    let all = [&names[..], b".shstrtab\0"].concat();
    append(".shstrtab", &all, &mut file, &mut names);
    file[..6].copy_from_slice(b"\x7fELF\x02\x01");
    let at = file.len() as u64;
    file[40..48].copy_from_slice(&at.to_le_bytes());
    file[58..60].copy_from_slice(&64_u16.to_le_bytes());
    file[60..62].copy_from_slice(&(sections.len() as u16 + 2).to_le_bytes());
    file[62..64].copy_from_slice(&(sections.len() as u16 + 1).to_le_bytes());
    file.extend(heads);
    file
}

/// Debug info of one function, in which others are inlined into each other so many times.
fn nested(times: usize) -> Vec<u8> {
    // The tags of a unit, a function and an inlined one. All have children, the first two a start and a length.
    const BOUNDS: [u8; 6] = [0x11, 0x01, 0x12, 0x07, 0, 0];
    let kinds = [&[1, 0x11, 1][..], &BOUNDS, &[2, 0x2e, 1], &BOUNDS, &[3, 0x1d, 1, 0, 0, 0]].concat();
    let bounds = [0x1000_u64.to_le_bytes(), 0x100_u64.to_le_bytes()].concat();
    let entries = [&[1][..], &bounds, &[2], &bounds, &vec![3; times], &vec![0; times + 2]].concat();
    let head = [&4_u16.to_le_bytes()[..], &0_u32.to_le_bytes(), &[8]].concat();
    let length = (head.len() + entries.len()) as u32;
    let info = [&length.to_le_bytes()[..], &head, &entries].concat();
    file_of(&[(".debug_abbrev", &kinds), (".debug_info", &info)])
}

#[test]
fn functions_inlined_into_each_other_without_end_do_not_use_up_the_stack() {
    let found = |times| {
        let pages = Arc::new(Pages::copied(nested(times)).unwrap());
        SymbolFile::read(&pages, &Allowance::new(64 << 20), true).functions(0x1010).len()
    };
    // As many as there are in programs are followed.
    assert_eq!([found(0), found(60)], [1, 1]);
    assert_eq!(found(1_000_000), 0);
}

#[test]
fn damaged_names_are_made_readable() {
    let mut unwinder = Unwinder::new();
    unwinder.modules.refresh();
    let here = damaged_names_are_made_readable as fn() as usize as u64;
    let module = unwinder.modules.find(here).unwrap();
    let own = File::open(&module.identity.path).unwrap();
    let length = own.metadata().unwrap().len();
    let allowance = Allowance::new(256 << 20);
    let pages = Arc::new(Pages::new(Source::File(own), length, &allowance).unwrap());
    let table = SymbolFile::read(&pages, &allowance, false);
    let mut random = Random(4);
    let code = module.executable()[0].clone();
    let mut known: Vec<String> = Vec::new();
    while known.len() < 300 {
        let offset = module.offset(code.start + random.below(code.end - code.start));
        known.extend(table.functions(offset).iter().filter_map(|function| function.name().map(str::to_owned)));
    }
    const MARKS: [&str; 14] =
        ["<", ">", "(", ")", "[", "{", "}", "::", "->", "&", " as ", "{closure#0}", "{{closure}}", "é"];
    let mut frames: Vec<Frame> = known.iter().map(|_| Frame::unknown("program", 0)).collect();
    for _ in 0..rounds(100) {
        for frame in &mut frames {
            let mut name: Vec<char> = known[random.below(known.len() as u64) as usize].chars().collect();
            for _ in 0..random.below(8) {
                let (from, to) = (random.below(name.len() as u64) as usize, random.below(name.len() as u64) as usize);
                let part: Vec<char> = name[from.min(to)..from.max(to)].to_vec();
                match random.below(4) {
                    0 => drop(name.drain(from.min(to)..from.max(to))),
                    1 => drop(name.splice(from..from, part)),
                    2 => name.truncate(from.max(1)),
                    _ => drop(name.splice(from..from, MARKS[random.below(14) as usize].chars())),
                }
                if name.is_empty() || name.len() > 2000 {
                    break;
                }
            }
            let name: String = name.into_iter().collect();
            *frame = Frame { kind: names::kind::of(Some(&name), "program", None), symbol: Some(name), ..frame.clone() };
            frame.function = None;
        }
        let started = Instant::now();
        names::name_all(&mut frames);
        let _ = names::by_type::culprit(&frames).map(|at| names::by_type::name_of(&frames[at]));
        assert!(frames.iter().filter_map(|frame| frame.function.as_ref()).all(|name| name.len() < 1000));
        assert!(started.elapsed() < TOO_LONG);
    }
}
