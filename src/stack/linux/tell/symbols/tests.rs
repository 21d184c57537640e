#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::frame::FrameKind;
use crate::stack::machine::tell::taken::{self, Victim};
use crate::stack::machine::tell::unwind::{MOST, Unwinder};

/// The line in which it waits.
const LINE: u32 = line!() + 6;

#[inline(never)]
fn waits_for_good(told: &taken::Told) {
    told.here();
    // Something is left to do afterwards, or the call would be a jump.
    std::hint::black_box(told.released.recv().is_ok());
}

#[test]
fn a_sleeper_is_named_with_file_and_line() {
    let victim = Victim::start(|told| waits_for_good(&told));
    let capture = taken::asleep(victim.tid);
    let mut unwinder = Unwinder::new();
    let unwound = unwinder.unwind(&capture, MOST);
    let mut symbols = Symbols::new(true);
    let frames = symbols.frames(&unwound, &unwinder.modules);
    let own = frames.iter().find(|frame| frame.function.as_deref().is_some_and(|name| name.contains("waits_for_good")));
    let own = own.unwrap_or_else(|| panic!("{frames:#?}"));
    assert!(own.file.as_deref().unwrap().ends_with("tests.rs"));
    assert_eq!(own.line, Some(LINE));
    assert!(!own.inlined);
    let begins = waits_for_good as fn(&taken::Told) as usize as u64;
    let start = unwinder.modules.find(begins).unwrap().offset(begins);
    assert_eq!(own.start, Some(start));
    assert!(own.offset > start);
    let first = &frames[0];
    assert_eq!((first.function.as_deref(), first.kind), (Some("syscall"), FrameKind::System));
    assert!(first.module.starts_with("libc"));
    assert_eq!(symbols.frames(&unwound, &unwinder.modules), frames, "the same again from what is held");
}

#[test]
fn whatever_lies_among_this_crates_sources_is_its_own() {
    let mut unwinder = Unwinder::new();
    unwinder.modules.refresh();
    let own = unwinder.modules.find(waits_for_good as fn(&taken::Told) as usize as u64).unwrap();
    let file = SymbolFile::open(own, &Allowance::new(HELD), true).unwrap();
    let here = |path| format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
    assert!(file.is_own(&here("src/future.rs")));
    assert!(!file.is_own(&here("tests/stacks.rs")) && !file.is_own(&here("examples/stuck/main.rs")));
    assert!(!file.is_own("src/future.rs"));
    let libc = unwinder.modules.find(libc::nanosleep as *const () as u64).unwrap();
    assert!(!SymbolFile::open(libc, &Allowance::new(HELD), true).unwrap().is_own(&here("src/future.rs")));
}

#[test]
fn functions_of_the_kernels_page_have_names() {
    let mut unwinder = Unwinder::new();
    unwinder.modules.refresh();
    let list = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = list.lines().find(|line| line.ends_with("[vdso]")).unwrap();
    let start = u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
    let vdso = unwinder.modules.find(start).unwrap();
    let file = SymbolFile::open(vdso, &Allowance::new(HELD), true).unwrap();
    let names: Vec<_> = (0..8192).filter_map(|at| file.functions(at).pop()?.name).collect();
    assert!(names.iter().any(|name| name.contains("gettime")), "{names:?}");
}

#[test]
fn what_is_held_can_go_to_another_thread() {
    fn can_go<T: Send>(_: &T) {}
    can_go(&Symbols::new(true));
    can_go(&Unwinder::new());
}

#[test]
fn files_that_are_not_those_that_are_mapped_give_no_names() {
    let mut unwinder = Unwinder::new();
    unwinder.modules.refresh();
    let own = unwinder.modules.find(waits_for_good as fn(&taken::Told) as usize as u64).unwrap();
    assert!(SymbolFile::open(own, &Allowance::new(HELD), true).is_some());
    assert!(SymbolFile::open(own, &Allowance::new(10), true).is_none(), "nothing may be held");
    let libc = unwinder.modules.find(libc::nanosleep as *const () as u64).unwrap();
    let image = own.image().unwrap();
    assert!(file::is_same(&image.memory, own.identity.inode, own, image), "memory has the same head as the file");
    let other = libc.image().unwrap();
    assert!(!file::is_same(&other.memory, libc.identity.inode, own, image));
}
