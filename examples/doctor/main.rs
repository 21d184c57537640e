//! Real programs with a known fault, or with none, examined by the detector: does it say what is wrong, and accuse nobody
//! else?
//!
//! ```text
//! cargo run --release --example doctor --features serde -- --list
//! cargo run --release --example doctor --features serde -- driver_held
//! cargo run --release --example doctor --features serde -- --matrix --repeat 3 --burn 2
//! cargo run --release --example doctor --features serde -- --soak 10m
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example shows what it found")]
#![allow(clippy::unwrap_used, reason = "a case that cannot be set up ends here")]

#[cfg(unix)]
mod case;
#[cfg(unix)]
mod cases;
#[cfg(unix)]
mod host;
#[cfg(unix)]
mod http;
#[cfg(unix)]
mod matrix;
#[cfg(unix)]
mod soak;
#[cfg(unix)]
mod tools;
#[cfg(unix)]
mod verdict;
#[cfg(unix)]
mod ward;

#[cfg(not(unix))]
fn main() {
    eprintln!("the cases stop, fork and starve real processes: they need a Unix");
}

#[cfg(unix)]
fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let code = match &args[..] {
        ["--helper", what, numbers @ ..] => host::help(what, numbers),
        ["--list"] => {
            cases::all().for_each(|case| println!("{:24} {}", case.name, case.about));
            0
        }
        ["--matrix", rest @ ..] => matrix::run(rest),
        ["--soak", duration] => soak::run(duration),
        ["--burn", burners, name, rest @ ..] if burners.parse::<usize>().is_ok() => {
            let _burners = host::spinners(burners.parse().unwrap());
            one(name, rest)
        }
        [name, rest @ ..] => one(name, rest),
        [] => usage(),
    };
    // Not `return`: some cases leave threads behind that nothing can end.
    std::process::exit(code)
}

#[cfg(unix)]
fn one(name: &str, rest: &[&str]) -> i32 {
    let Some(case) = cases::all().find(|case| case.name == name) else {
        eprintln!("there is no case `{name}`: see --list");
        return usage();
    };
    if !matches!(rest, [] | ["--json"]) {
        return usage();
    }
    match ward::run(case) {
        Ok(outcome) => {
            let text = if rest.is_empty() { outcome.text } else { format!("{}\n", outcome.json) };
            host::print_past_redirection(&text);
            0
        }
        Err(failed) => {
            eprintln!("{failed}");
            3
        }
    }
}

#[cfg(unix)]
fn usage() -> i32 {
    eprintln!(
        "usage: doctor --list | [--burn K] NAME [--json] | --soak DURATION\n\
         doctor --matrix [--repeat N] [--burn K] [--jobs AT_ONCE] [--keep DIRECTORY] [NAME...]"
    );
    2
}
