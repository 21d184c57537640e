//! Makes names that a person reads from those that compilers give, and tells whose function it is.

pub(crate) mod by_type;
pub(crate) mod kind;
pub(crate) mod source;
mod split;

use crate::frame::{Frame, FrameKind};
use std::fmt::{self, Write};

/// Longer names are cut.
const LONGEST: usize = 160;
/// As much of a whole name is kept: those of futures that hold futures have been seen to be of megabytes.
const LONGEST_SYMBOL: usize = 2000;

/// A text that takes no more than so much, so that the rest is not even made.
struct Limited(String);

impl Write for Limited {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = LONGEST_SYMBOL.saturating_sub(self.0.len());
        let cut = text.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|&end| end <= room).last();
        self.0.push_str(&text[..cut.unwrap_or(0)]);
        if text.len() > room { Err(fmt::Error) } else { Ok(()) }
    }
}

/// The name that stands in the source for one that a compiler has made, without its hash.
pub(crate) fn demangled(symbol: &str) -> String {
    let mut text = Limited(String::new());
    // A name that is too long is cut there.
    let _ = match rustc_demangle::try_demangle(symbol) {
        Ok(name) => write!(text, "{name:#}"),
        // What follows is the version of the C library that a function is of.
        Err(_) => text.write_str(symbol.split('@').next().unwrap_or_default()),
    };
    text.0
}

/// What a name ends in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tail {
    /// A function's own name.
    None,
    /// A closure, or the body of an async function or block: older names tell no difference.
    Closure,
    Async,
}

/// The name without the marks at its end, and what they are.
fn without_tail(name: &str) -> (&str, Tail) {
    let mut name = name;
    let mut tail = Tail::None;
    loop {
        let cut = name.strip_suffix("{{vtable.shim}}").map(|rest| (rest, tail));
        let cut = cut.or_else(|| {
            let mark = split::parts(name, "::").pop()?;
            let rest = name.strip_suffix(mark)?.strip_suffix("::")?;
            if is_hash(mark) {
                return Some((rest, tail));
            }
            // A closure in a generic function has that one's arguments.
            let mark = mark.split('<').next()?.strip_prefix('{')?.strip_suffix('}')?;
            let mark = mark.trim_start_matches('{').trim_end_matches('}').split('#').next().unwrap_or_default();
            let found = match mark {
                "closure" | "closure_env" => Tail::Closure,
                "async_fn" | "async_fn_env" | "async_block" | "async_block_env" | "async_closure_env" => Tail::Async,
                _ if mark.starts_with("shim") => return Some((rest, tail)),
                _ => return None,
            };
            // What is innermost stands last.
            Some((rest, if tail == Tail::None { found } else { tail }))
        });
        let Some((rest, found)) = cut.filter(|(rest, _)| !rest.is_empty()) else { return (name, tail) };
        (name, tail) = (rest, found);
    }
}

fn is_hash(mark: &str) -> bool {
    mark.strip_prefix('h').is_some_and(|hash| hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// A name without generic arguments, in which it is told by its function that something is a future, where that is known.
pub(crate) fn readable(name: &str, polled: bool) -> String {
    let name = split::called_closure(name).unwrap_or(name);
    let (stem, tail) = without_tail(name);
    let mut text = split::without_arguments(stem);
    if is_bare(stem) && text.ends_with("<…>") {
        text.truncate(text.len() - "<…>".len());
    }
    let mark = match tail {
        Tail::None => "",
        Tail::Async => " (async)",
        Tail::Closure if polled => " (async)",
        Tail::Closure => "::{closure}",
    };
    if text.len() + mark.len() > LONGEST {
        let cut = text.char_indices().map(|(at, _)| at).take_while(|at| at + mark.len() + 3 <= LONGEST).last();
        text.truncate(cut.unwrap_or(0));
        text.push('…');
    }
    text.push_str(mark);
    text
}

/// Whether a function polls what it calls, so that a closure there is the body of a future.
fn polls(name: &str, kind: FrameKind) -> bool {
    /// They are futures that call an ordinary closure.
    const CALLERS: [&str; 3] = ["BlockingTask", "PollFn", "poll_fn"];
    let (stem, tail) = without_tail(name);
    let stem = split::without_arguments(stem);
    let last = stem.rsplit_once("::").map_or(&*stem, |(_, last)| last);
    let by_name = last.starts_with("poll") || last == "block_on" || last == "run_until";
    by_name && (tail == Tail::None || kind != FrameKind::User) && !CALLERS.iter().any(|caller| name.contains(caller))
}

/// Whether a name does not say where its function belongs, as debug info of lines alone has it.
pub(crate) fn is_bare(name: &str) -> bool {
    !name.starts_with('<') && split::parts(name, "::").len() == 1
}

/// Whether a name is nothing but what the compiler calls a body without a name: a closure, or one that is polled.
fn is_mark(name: &str) -> bool {
    name.starts_with('{')
}

/// Such a name as a person reads it.
fn readable_mark(name: &str) -> String {
    let mark = name.split(['#', '}']).next().unwrap_or(name).trim_start_matches('{').trim_end_matches("_env");
    format!("{{{}}}", mark.replace('_', " "))
}

/// The name of a function by its symbol, with the types from a bare one of the same function: each may tell what the other does
/// not.
pub(crate) fn joined(symbol: String, bare: &str) -> String {
    let (stem, types) = bare.split_at(bare.find('<').unwrap_or(bare.len()));
    // Older names call every body without a name a closure.
    if let Some((path, last)) = symbol.rsplit_once("::").filter(|_| is_mark(stem))
        && last.trim_start_matches('{').starts_with("closure")
    {
        return format!("{path}::{stem}");
    }
    let has_same_end = symbol.strip_suffix(stem).is_some_and(|before| before.ends_with("::"));
    if has_same_end && !types.is_empty() { demangled(&format!("{symbol}::{types}")) } else { symbol }
}

/// Gives all frames of a stack their readable names, from the innermost outwards.
pub(crate) fn name_all(frames: &mut [Frame]) {
    let mut outer: Option<(String, bool)> = None;
    // What a function further out says that it runs.
    let mut run: Option<String> = None;
    for frame in frames.iter_mut().rev() {
        let Some(symbol) = frame.symbol.clone() else {
            outer = None;
            continue;
        };
        let tail = if symbol.starts_with("{async") { Tail::Async } else { without_tail(&symbol).1 };
        let polled = tail == Tail::Async
            || tail == Tail::Closure
                && outer.as_ref().is_some_and(|(name, polls)| {
                    // What a future's body calls by its own name with a mark more is a closure or a block in it.
                    *polls && !symbol.starts_with(name.as_str())
                });
        let by_type = by_type::named_by_type(frame);
        // Nothing but a mark is no name.
        let is_mark = is_bare(&symbol) && is_mark(&symbol);
        // The user's first function is the one that is run; what that calls goes by another name.
        let by_outer = if frame.kind == FrameKind::User { run.take() } else { None };
        let by_outer = by_outer.filter(|_| is_mark).map(|run| match run.strip_suffix("::{closure}") {
            Some(stem) if polled => format!("{stem} (async)"),
            _ => run,
        });
        let own = || if is_mark { readable_mark(&symbol) } else { readable(&symbol, polled) };
        frame.function = Some(by_outer.unwrap_or_else(own));
        run = by_type.or(run);
        let goes_on = polled || polls(&symbol, frame.kind);
        outer = Some((symbol, goes_on));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_hashes_and_marks_are_left_out() {
        for (name, expected) in [
            ("alloc::vec::Vec<T,A>::push", "alloc::vec::Vec<…>::push"),
            ("<alloc::vec::Vec<my_app::T>>::push", "alloc::vec::Vec<…>::push"),
            ("my_app::work::h0123456789abcdef", "my_app::work"),
            ("my_app::generic::<u32, fn() -> bool>", "my_app::generic"),
            ("<my_app::Type<u8> as my_app::Trait<u16>>::method", "<my_app::Type<…> as my_app::Trait<…>>::method"),
            ("<F as core::future::future::Future>::poll", "<F as core::future::future::Future>::poll"),
            ("core::ptr::drop_in_place<my_app::Type>", "core::ptr::drop_in_place<…>"),
            ("core::ops::function::FnOnce::call_once{{vtable.shim}}", "core::ops::function::FnOnce::call_once"),
            ("my_app::main::{{closure}}", "my_app::main::{closure}"),
            ("my_app::main::{closure#0}::{closure#3}", "my_app::main::{closure}"),
            ("<my_app::main::{closure#0} as core::ops::function::FnOnce<()>>::call_once", "my_app::main::{closure}"),
            ("my_app::handler::{async_fn#0}", "my_app::handler (async)"),
            ("my_app::handler::{async_block_env#0}", "my_app::handler (async)"),
            ("<my_app::Type>::method::{closure#0}", "my_app::Type::method::{closure}"),
            ("<(dyn my_app::Trait<X> + Send) as T>::m", "<(dyn my_app::Trait<…> + Send) as T>::m"),
            ("work::<my_app::main::{closure_env#0}<u8>>", "work"),
            ("call_once<(), my_app::main::{closure_env#0}>", "call_once"),
            ("my_app::main::{closure_env#0}<fn(), my_app::T>", "my_app::main::{closure}"),
            ("nanosleep", "nanosleep"),
            ("", ""),
        ] {
            assert_eq!(readable(name, false), expected, "{name}");
        }
        assert_eq!(readable("my_app::handler::{{closure}}", true), "my_app::handler (async)");
    }

    #[test]
    fn names_without_a_path_are_joined_with_those_that_have_one() {
        assert!(is_bare("poll<my_app::handler::{async_fn_env#0}>") && is_bare("{async_fn#0}") && is_bare("nap"));
        assert!(!is_bare("my_app::nap") && !is_bare("<my_app::T>::nap"));
        assert_eq!(joined("tokio::raw::poll".to_owned(), "poll<my_app::T>"), "tokio::raw::poll::<my_app::T>");
        assert_eq!(joined("tokio::raw::poll".to_owned(), "wake<my_app::T>"), "tokio::raw::poll");
        assert_eq!(joined("tokio::raw::poll".to_owned(), "poll"), "tokio::raw::poll");
        assert_eq!(joined("my_app::load::{{closure}}".to_owned(), "{async_fn#0}<u8>"), "my_app::load::{async_fn#0}");
        assert_eq!(joined("my_app::load::{closure#0}".to_owned(), "{async_block#0}"), "my_app::load::{async_block#0}");
        assert_eq!(joined("my_app::load".to_owned(), "{async_fn#0}"), "my_app::load");
        assert_eq!(readable("wait<my_app::T>", false), "wait");
        let names = named(&["{async_fn#0}", "tokio::runtime::task::raw::poll::<my_app::handler::{async_fn_env#0}>"]);
        assert_eq!(names[0], "my_app::handler (async)");
        // What it calls is not it.
        let poll = "tokio::runtime::task::raw::poll::<my_app::handler::{async_fn_env#0}>";
        for inner in ["{async_fn#0}", "my_app::handler::{async_fn#0}"] {
            assert_eq!(named(&["{async_fn#0}", inner, poll])[..2], ["{async fn}", "my_app::handler (async)"]);
        }
        assert_eq!(
            named(&["{closure#0}", "{async_fn#0}", "{async_block#1}<u8>"]),
            ["{closure}", "{async fn}", "{async block}"]
        );
    }

    #[test]
    fn long_names_are_cut() {
        let long = readable(&"é::".repeat(1000), false);
        assert!(long.len() <= LONGEST + 3 && long.ends_with('…'), "{long}");
        assert!(demangled(&"ü".repeat(5000)).len() <= LONGEST_SYMBOL);
        assert_eq!(demangled("_ZN6my_app4work17h0123456789abcdefE"), "my_app::work");
        assert_eq!(demangled("_RNvCs1234_6my_app4work"), "my_app::work");
        assert_eq!(demangled("clock_gettime@@GLIBC_2.17"), "clock_gettime");
    }

    #[test]
    fn what_is_no_name_is_read_without_harm() {
        let pieces = ["<", ">", "::", " as ", "{", "}", "a", "é", "&", "(", ")", ",", "->", "closure", "#", "dyn "];
        let mut random = 7_u64;
        for _ in 0..20_000 {
            let mut name = String::new();
            for _ in 0..12 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                name.push_str(pieces[(random >> 33) as usize % pieces.len()]);
            }
            let _ = readable(&name, random & 1 == 0);
            let kind = kind::of(Some(&name), "app", None);
            let _ = by_type::named_by_type_of(&name, kind);
            let _ = polls(&name, kind);
        }
    }

    fn named(symbols: &[&str]) -> Vec<String> {
        let frame = |symbol: &&str| Frame {
            symbol: Some((*symbol).to_owned()),
            kind: kind::of(Some(symbol), "app", None),
            ..Frame::unknown("app", 0)
        };
        let mut frames: Vec<_> = symbols.iter().map(frame).collect();
        name_all(&mut frames);
        frames.into_iter().filter_map(|frame| frame.function).collect()
    }

    #[test]
    fn a_future_is_told_by_its_function_where_it_is_polled() {
        let names = named(&[
            "std::thread::sleep",
            "my_app::inner::{{closure}}::{{closure}}",
            "my_app::inner::{{closure}}",
            "my_app::outer::{{closure}}",
            "tokio::runtime::task::core::Core<T,S>::poll::{{closure}}",
            "tokio::runtime::task::core::Core<T,S>::poll",
        ]);
        let expected =
            ["std::thread::sleep", "my_app::inner::{closure}", "my_app::inner (async)", "my_app::outer (async)"];
        assert_eq!(names[..4], expected);
        let names = named(&[
            "my_app::handler::{{closure}}::{{closure}}",
            "<tokio::runtime::blocking::task::BlockingTask<T> as core::future::future::Future>::poll",
        ]);
        assert_eq!(names[0], "my_app::handler::{closure}");
        let names = named(&["my_app::main::{{closure}}", "core::iter::traits::iterator::Iterator::for_each"]);
        assert_eq!(names[0], "my_app::main::{closure}");
    }
}
