//! Damages tables, names and stacks at random, and checks that they are read without harm: nothing panics, hangs or asks for
//! memory without end. `STARVATION_FUZZ_ROUNDS` makes it so many times as long.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use super::elf::{self, Section};
use super::modules::Image;
use super::pages::{Allowance, Pages, Source};
use super::symbols::{SymbolFile, Symbols};
use super::taken::{self, POINTERS, Victim};
use super::unwind::{MOST, Unwinder};
use crate::stack::capture::{Capture, Way};
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn rounds(usual: u64) -> u64 {
    let factor = std::env::var("STARVATION_FUZZ_ROUNDS").ok().and_then(|rounds| rounds.parse::<u64>().ok());
    usual * factor.unwrap_or(1)
}

/// No single turn may take as long, even on a machine that is busy.
const TOO_LONG: Duration = Duration::from_secs(60);

fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mixed(self.0)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }
}

/// What is read from another source, with some bytes of a part exchanged, always the same ones.
#[derive(Debug)]
pub(crate) struct Damaged {
    source: Box<Source>,
    range: Range<u64>,
    seed: u64,
    /// One byte of so many.
    one_in: u64,
}

impl Damaged {
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) -> Option<()> {
        self.source.read(at, into)?;
        for (at, byte) in (at..).zip(into) {
            let random = mixed(at ^ self.seed);
            if self.range.contains(&at) && random.is_multiple_of(self.one_in) {
                *byte = (random >> 40) as u8;
            }
        }
        Some(())
    }
}

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
    let mut symbols = Symbols::new();
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
                let one_in = [10, 100, 1000, 10_000][random.below(4) as usize];
                let damaged = Source::Damaged(Damaged { source, range: range.clone(), seed: random.next(), one_in });
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
    let head = Section { name: "head".to_owned(), kind: 0, flags: 0, offset: 0, length: 64, link: 0 };
    all.into_iter().filter(|section| names_things(section) && section.length > 0).chain([head]).collect()
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
            let one_in = [10, 1000, 10_000, 100_000][random.below(4) as usize];
            let damaged = Source::Damaged(Damaged { source, range, seed: random.next(), one_in });
            let allowance = Allowance::new(96 << 20);
            let Some(pages) = Pages::new(damaged, length, &allowance) else { continue };
            let file = SymbolFile::read(&Arc::new(pages), &allowance);
            for _ in 0..10 {
                let near = code[random.below(code.len() as u64) as usize];
                let _ = file.functions(near.wrapping_add(random.below(4096)));
            }
            let _ = file.functions(random.next());
            assert!(started.elapsed() < TOO_LONG, "{section:?} {one_in}");
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
