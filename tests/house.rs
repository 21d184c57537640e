//! The layers of the crate: a file uses its own layer and those below, and hot files have no lock, formatting or events.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};

/// The modules from the bottom up. What stands in a directory belongs to the module of its name.
const LAYERS: [&[&str]; 10] = [
    &["clock", "sync", "wire", "defaults", "evidence", "frame", "stack", "rouse"],
    &["activity", "age", "owner", "figures", "waits", "slot", "op"],
    &["timing", "gap", "ledger", "scope", "trace", "call"],
    &["blocking", "future", "wait", "job", "runtime", "threads", "hooks", "parity", "probe", "sight"],
    &[
        "lately",
        "conduct",
        "counted",
        "pause",
        "stacks",
        "starved",
        "shortage",
        "trips",
        "poller",
        "pool_thread",
        "cap",
        "sample",
        "runtimes",
        "snapshot",
        "replay",
        "burst",
        "facts",
    ],
    &["cause", "incident", "report", "judge", "episode", "tracker"],
    &["sink"],
    &["presence", "watchdog"],
    &["builder"],
    &["detector"],
];

/// Files that run in every poll or call, and what they must not contain.
const HOT: [&str; 6] = ["slot", "age", "gap", "ledger", "scope", "future"];
const TOO_SLOW: [&str; 4] = ["Mutex", "RwLock", "format!", "tracing::"];
/// A future holds its span.
const ALLOWED: [(&str, &str); 1] = [("future", "use tracing::Span;")];

const LONGEST_FILE: usize = 400;

fn layer_of(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

/// The code of a file, without its tests and comments.
fn code(source: &str) -> String {
    let lines = source.lines().take_while(|line| !line.starts_with("#[cfg(test)]") && !is_of_tests(line));
    let code = lines.map(|line| if line.trim_start().starts_with("//") { "" } else { line });
    code.map(|line| line.split(" // ").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

fn is_of_tests(line: &str) -> bool {
    line.starts_with("#[cfg(all(test")
}

/// The modules that code names by `crate::name` or `crate::{name, name::..}`.
fn uses(code: &str) -> Vec<String> {
    let name = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut found = Vec::new();
    for (at, path) in code.match_indices("crate::") {
        if code[..at].ends_with(|before: char| before == '_' || before.is_alphanumeric()) {
            continue;
        }
        let rest = &code[at + path.len()..];
        let Some(group) = rest.strip_prefix('{') else {
            found.push(name(rest));
            continue;
        };
        let mut depth = 0;
        let mut first = true;
        for (at, c) in group.char_indices() {
            match c {
                '}' if depth == 0 => break,
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => first = true,
                c if first && !c.is_whitespace() => {
                    found.push(name(&group[at..]));
                    first = false;
                }
                _ => {}
            }
        }
    }
    found
}

/// What is wrong with a file of a module.
fn faults(module: &str, source: &str) -> Vec<String> {
    let Some(own) = layer_of(module) else { return vec![format!("`{module}` has no layer: give it one")] };
    let code = code(source);
    let mut faults = Vec::new();
    for used in uses(&code) {
        match layer_of(&used) {
            None => faults.push(format!("`{module}` uses `crate::{used}`, which has no layer: name its module")),
            Some(layer) if layer > own => {
                faults.push(format!("`{module}` in layer {own} uses `{used}` in layer {layer}"));
            }
            Some(_) => {}
        }
    }
    if HOT.contains(&module) {
        for line in code.lines().filter(|line| !ALLOWED.contains(&(module, line.trim()))) {
            faults.extend(
                TOO_SLOW
                    .iter()
                    .filter(|word| line.contains(**word))
                    .map(|word| format!("`{module}` is hot, but has {word}")),
            );
        }
    }
    let lines = source.lines().take_while(|line| !is_of_tests(line)).count();
    if lines > LONGEST_FILE {
        faults.push(format!("`{module}` has {lines} lines before its tests: split it"));
    }
    faults
}

/// All Rust files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

#[test]
fn every_file_uses_its_own_layer_and_those_below() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut seen = Vec::new();
    let mut wrong = Vec::new();
    for path in files(&root) {
        let relative = path.strip_prefix(&root).unwrap();
        let first = relative.iter().next().unwrap().to_str().unwrap();
        let module = first.trim_end_matches(".rs");
        // The root only puts the modules together.
        if module == "lib" {
            continue;
        }
        seen.push(module.to_owned());
        let source = fs::read_to_string(&path).unwrap();
        wrong.extend(faults(module, &source).into_iter().map(|fault| format!("{}: {fault}", relative.display())));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let gone: Vec<_> = LAYERS.iter().copied().flatten().filter(|module| !seen.iter().any(|s| s == *module)).collect();
    assert!(gone.is_empty(), "{gone:?} stand in the table and not in src");
}

#[test]
fn the_check_finds_every_way_to_look_upwards() {
    let upwards = format!("`clock` in layer 0 uses `judge` in layer {}", layer_of("judge").unwrap());
    for source in [
        "use crate::judge;",
        "use crate::judge::pool;",
        "use crate::{wire, judge};",
        "use crate::{wire::{self, micros}, judge::{self, pool}};",
        "use crate::{\n    judge,\n};",
        "fn f() { crate::judge::pool() }",
        "pub(in crate::judge) struct X;",
        "#[serde(serialize_with = \"crate::judge::us\")]",
        "/// Words.\nuse crate::judge; // why",
    ] {
        assert_eq!(faults("clock", source), [upwards.as_str()], "{source}");
    }
}

#[test]
fn the_check_lets_pass_what_looks_down_or_is_no_code() {
    for source in [
        "use crate::wire::micros;",
        "use crate::{defaults, sync::{fence, Ordering}};",
        "//! See [`judge`](crate::judge).",
        "    /// [`crate::Detector`]",
        "    // crate::judge",
        "let x = 1; // crate::judge",
        "#[cfg(test)]\nmod tests {\n    use crate::judge;\n}",
        "#[cfg(all(test, not(starvation_loom)))]\nmod tests { use crate::judge; }",
        "use other_crate::judge;",
        "pub(crate) fn f() {}",
    ] {
        assert!(faults("clock", source).is_empty(), "{source}: {:?}", faults("clock", source));
    }
    assert!(faults("call", "use crate::trace::CallTrace;").is_empty(), "the same layer");
}

#[test]
fn the_check_finds_files_without_a_layer_and_imports_through_the_root() {
    assert_eq!(faults("gossip", "").len(), 1);
    assert_eq!(faults("clock", "use crate::Detector;").len(), 1);
    assert_eq!(faults("clock", "use crate::{gossip, wire};").len(), 1);
}

#[test]
fn the_check_finds_what_is_slow_in_a_hot_file() {
    for word in ["use std::sync::Mutex;", "static X: RwLock<u32>;", "format!(\"{x}\")", "tracing::warn!(\"x\")"] {
        assert_eq!(faults("slot", word).len(), 1, "{word}");
        assert!(faults("op", word).is_empty(), "{word}");
    }
    assert!(faults("future", "use tracing::Span;").is_empty());
    assert_eq!(faults("slot", "use tracing::Span;").len(), 1);
    assert_eq!(faults("future", "use tracing::{Span, info};").len(), 1);
    assert!(faults("slot", "// no Mutex here\n#[cfg(all(test, x))]\nmod tests { use std::sync::Mutex; }").is_empty());
}

#[test]
fn the_check_finds_long_files_and_does_not_count_their_tests() {
    let long = "\n".repeat(LONGEST_FILE + 1);
    assert_eq!(faults("clock", &long).len(), 1);
    let tested = format!("{}#[cfg(all(test, not(starvation_loom)))]\n{long}", "\n".repeat(LONGEST_FILE));
    assert!(faults("clock", &tested).is_empty());
}

#[test]
fn every_module_is_in_the_table_of_files() {
    let told = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("ARCHITECTURE.md")).unwrap();
    let is_told = |module: &&&str| told.contains(&format!("`{module}`")) || told.contains(&format!("`{module}/`"));
    let missing: Vec<_> = LAYERS.iter().copied().flatten().filter(|module| !is_told(module)).collect();
    assert!(missing.is_empty(), "not in ARCHITECTURE.md: {missing:?}");
}
