//! What is told of a stack: the functions on it, by name and place.

use std::fmt;

/// Whose code a function is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum FrameKind {
    /// Neither of the runtime nor of the system: yours, or that of a library that you use.
    User,
    /// Of Tokio, and of other crates that poll, run, lock or wait for others.
    Runtime,
    /// Of Rust's own library.
    Std,
    /// Of the C library, the dynamic loader or the kernel's own page.
    System,
    /// Of this crate.
    Detector,
    /// Of a program or library from which the names were stripped: nothing tells whose it is.
    Unknown,
}

/// A function on a stack. Functions that were inlined have frames of their own, where there is debug info.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Frame {
    /// The name as a person reads it: generics shortened, a future told by its function's name; `None` where nothing names it.
    pub function: Option<String>,
    /// The whole name, with generic arguments as far as the compiler has left them; cut where it is of thousands of letters.
    pub symbol: Option<String>,
    /// The source file, where there is debug info.
    pub file: Option<String>,
    /// The line in it.
    pub line: Option<u32>,
    /// The program or library that it is in: the name of its file.
    pub module: String,
    /// Where it is in that, as tools that read debug info take it.
    pub offset: u64,
    /// Where the function begins that this is in, if the tables for unwinding tell: two places in one function have the same.
    pub start: Option<u64>,
    /// Which build of it that is, in hexadecimal, where it says so.
    pub build_id: Option<String>,
    /// Whose code it is.
    pub kind: FrameKind,
    /// Whether it was inlined into the function that follows.
    pub inlined: bool,
}

impl Frame {
    /// A place of which no more is known.
    #[cfg(feature = "stacks")]
    #[cfg_attr(any(starvation_elsewhere, starvation_loom), allow(dead_code, reason = "no stack is taken"))]
    pub(crate) fn unknown(module: &str, offset: u64) -> Self {
        Self {
            function: None,
            symbol: None,
            file: None,
            line: None,
            module: module.to_owned(),
            offset,
            start: None,
            build_id: None,
            kind: FrameKind::Unknown,
            inlined: false,
        }
    }
}

/// The stack of a thread at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct StackTrace {
    /// The functions, the innermost first.
    pub frames: Vec<Frame>,
    /// Which of them is the first that is neither of the runtime nor of the system: where in your code it is. `None` where there
    /// is none, or nothing names it.
    pub culprit: Option<usize>,
    /// The frames go on to the thread's first function. Otherwise the outermost ones are missing.
    pub complete: bool,
}

/// As `function (file:line)`, or as much of that as is known: without a name `module+0xoffset [build id]`, and with `{:#}`
/// without the build id.
impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.function {
            Some(function) => f.write_str(function)?,
            None => {
                write!(f, "{}+{:#x}", self.module, self.offset)?;
                if let Some(build_id) = self.build_id.as_ref().filter(|_| !f.alternate()) {
                    write!(f, " [{build_id}]")?;
                }
            }
        }
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(f, " ({}:{line})", shown(file)),
            (Some(file), None) => write!(f, " ({})", shown(file)),
            _ => Ok(()),
        }
    }
}

/// The end of a path: what tells a file from the others of a program.
fn shown(file: &str) -> &str {
    const PARTS: usize = 3;
    let from = file.rmatch_indices('/').nth(PARTS - 1).map_or(0, |(at, _)| at + 1);
    &file[from..]
}

/// One line for each function, the innermost first, as panics print them.
impl fmt::Display for StackTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, frame) in self.frames.iter().enumerate() {
            let mark = if self.culprit == Some(number) { '>' } else { ' ' };
            write!(f, "{mark}{number:4}: ")?;
            // The build id of a module once is enough.
            let is_told = |outer: &Frame| outer.function.is_none() && outer.build_id == frame.build_id;
            match self.frames[..number].iter().any(is_told) {
                true => writeln!(f, "{frame:#}")?,
                false => writeln!(f, "{frame}")?,
            }
        }
        if !self.complete {
            writeln!(f, "      ... the outer ones are not known")?;
        }
        Ok(())
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_build_id_of_a_module_is_told_once() {
        let frame = |module: &str, offset| Frame {
            function: None,
            symbol: None,
            file: None,
            line: None,
            module: module.to_owned(),
            offset,
            start: None,
            build_id: Some(module.repeat(4)),
            kind: FrameKind::Unknown,
            inlined: false,
        };
        let frames = vec![frame("ab", 16), frame("ab", 32), frame("cd", 16)];
        let text = StackTrace { frames, culprit: Some(1), complete: true }.to_string();
        assert_eq!(text, "    0: ab+0x10 [abababab]\n>   1: ab+0x20\n    2: cd+0x10 [cdcdcdcd]\n");
    }
}
