//! In which function stuck threads are found, in programs built in each of the usual ways.
//!
//! How many must be: all where names are whole, two of three where the compiler leaves less, as measured. Each way but the
//! first takes a minute or two to build, so most of them run only when they are asked for:
//!
//! ```text
//! cargo test --all-features --test profiles -- --include-ignored --nocapture
//! ```

#![cfg(all(target_os = "linux", target_arch = "x86_64", not(starvation_elsewhere)))]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use std::process::Command;

/// How an example is built, and what must be found in it.
struct Built {
    name: &'static str,
    release: bool,
    settings: &'static [(&'static str, &'static str)],
    /// In percent.
    found: usize,
    with_line: bool,
}

#[track_caller]
fn check(built: &Built) {
    let text = run(built);
    let last = text.lines().last().unwrap();
    let numbers: Vec<usize> = last.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
    let [found, all, exact, lines] = numbers[..] else { panic!("{last}") };
    assert!(all >= 18 && found * 100 >= all * built.found && exact * 100 >= all * TWO_OF_THREE, "{text}");
    assert!(!built.with_line || lines == all, "{text}");
}

/// What the example says.
#[track_caller]
fn run(built: &Built) -> String {
    let target = concat!(env!("CARGO_MANIFEST_DIR"), "/target/profiles/").to_owned() + built.name;
    let mut run = Command::new(env!("CARGO"));
    run.args(["run", "--quiet", "--example", "stuck", "--all-features"]);
    if built.release {
        run.args(["--release", "--target-dir", &target]);
    }
    // Whatever this test itself was built with is not what is asked for.
    run.current_dir(env!("CARGO_MANIFEST_DIR")).env_remove("RUSTFLAGS").env("CARGO_INCREMENTAL", "0");
    run.envs(built.settings.iter().copied());
    let output = run.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    println!("{}: {text}", built.name);
    text.into_owned()
}

const ALL: usize = 100;
const TWO_OF_THREE: usize = 66;

#[test]
fn as_developed() {
    check(&Built { name: "dev", release: false, settings: &[], found: ALL, with_line: true });
}

#[test]
#[ignore = "takes a minute or two to build"]
fn as_released() {
    check(&Built { name: "release", release: true, settings: &[], found: TWO_OF_THREE, with_line: false });
}

#[test]
#[ignore = "takes a minute or two to build"]
fn with_the_newer_names() {
    let settings = &[("RUSTFLAGS", "-Csymbol-mangling-version=v0")];
    check(&Built { name: "v0", release: true, settings, found: ALL, with_line: false });
}

#[test]
#[ignore = "takes a minute or two to build"]
fn optimized_as_a_whole() {
    let settings = &[("CARGO_PROFILE_RELEASE_LTO", "fat"), ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")];
    check(&Built { name: "fat", release: true, settings, found: TWO_OF_THREE, with_line: false });
}

#[test]
#[ignore = "takes a minute or two to build"]
fn where_panics_abort() {
    let settings = &[("CARGO_PROFILE_RELEASE_PANIC", "abort")];
    check(&Built { name: "abort", release: true, settings, found: TWO_OF_THREE, with_line: false });
}

#[test]
fn with_line_tables() {
    let settings = &[("CARGO_PROFILE_RELEASE_DEBUG", "line-tables-only")];
    check(&Built { name: "lines", release: true, settings, found: ALL, with_line: true });
}

#[test]
#[ignore = "takes a minute or two to build"]
fn with_limited_debug_info() {
    let settings = &[("CARGO_PROFILE_RELEASE_DEBUG", "limited")];
    check(&Built { name: "limited", release: true, settings, found: ALL, with_line: true });
}

/// Nothing is found by a name, but each is told by its place in the program.
#[test]
#[ignore = "takes a minute or two to build"]
fn stripped_of_all_names() {
    let settings = &[("CARGO_PROFILE_RELEASE_STRIP", "true")];
    let text = run(&Built { name: "stripped", release: true, settings, found: 0, with_line: false });
    assert!(text.contains("found 0 of "), "{text}");
    let told = text.matches("no function of the program's").count();
    assert!(told >= 18, "{text}");
    for stack in text.split("no function of the program's").skip(1) {
        assert!(stack.contains(": stuck+0x"), "{text}");
    }
}
