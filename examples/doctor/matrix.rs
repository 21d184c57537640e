//! Every case in a process of its own, and what came out of all of them in one table.

use crate::case::Case;
use crate::{cases, host};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// After this a case is killed: none is given so long.
const PATIENCE: Duration = Duration::from_secs(120);

struct Plan {
    repeat: usize,
    burners: usize,
    /// How many cases run at once.
    jobs: usize,
    /// Where the whole answers go that were not right.
    keep: Option<PathBuf>,
    names: Vec<String>,
}

fn plan(args: &[&str]) -> Result<Plan, String> {
    let mut plan = Plan { repeat: 1, burners: 0, jobs: 1, keep: None, names: Vec::new() };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if *arg == "--keep" {
            plan.keep = Some(args.next().ok_or("--keep needs a directory")?.into());
            continue;
        }
        let mut number =
            || args.next().and_then(|n| n.parse::<usize>().ok()).ok_or(format!("{arg} needs a whole number"));
        match *arg {
            "--jobs" => plan.jobs = number()?.max(1),
            "--repeat" => plan.repeat = number()?,
            "--burn" => plan.burners = number()?,
            flag if flag.starts_with("--") => return Err(format!("unknown flag `{flag}`")),
            name if cases::all().any(|case| case.name == name) => plan.names.push(name.to_owned()),
            name => return Err(format!("there is no case `{name}`: see --list")),
        }
    }
    Ok(plan)
}

/// Runs the cases that are named, or all of them. The exit code tells whether any answer was wrong.
pub(crate) fn run(args: &[&str]) -> i32 {
    let plan = match plan(args) {
        Ok(plan) => plan,
        Err(error) => {
            eprintln!("{error}");
            return 2;
        }
    };
    let _burners = host::spinners(plan.burners);
    let start = Instant::now();
    let tally = Mutex::new(Tally::default());
    let chosen = |case: &&Case| plan.names.is_empty() || plan.names.iter().any(|name| name == case.name);
    let mut left = (1..=plan.repeat).flat_map(|round| cases::all().filter(chosen).map(move |case| (round, case)));
    let left = Mutex::new(&mut left);
    thread::scope(|scope| {
        for _ in 0..plan.jobs {
            scope.spawn(|| {
                loop {
                    let next = left.lock().unwrap().next();
                    let Some((round, case)) = next else { return };
                    let result = result_of(case);
                    keep(plan.keep.as_deref(), round, case, &result);
                    tally.lock().unwrap().add(case, &result);
                }
            });
        }
    });
    let tally = tally.into_inner().unwrap();
    tally.print();
    println!("took {:.0?}", start.elapsed());
    i32::from(tally.of("wrong") > 0)
}

/// Writes down what was not right, to be read later.
fn keep(directory: Option<&Path>, round: usize, case: &Case, result: &Result<Value, String>) {
    let Some(directory) = directory else { return };
    let whole = match result {
        Ok(result) if result["right"] == "right" && result["early_wrong"].as_array().is_some_and(Vec::is_empty) => {
            return;
        }
        Ok(result) => serde_json::to_string_pretty(result).unwrap(),
        Err(failed) => failed.clone(),
    };
    let file = directory.join(format!("{}-{round}.json", case.name));
    if let Err(error) = fs::create_dir_all(directory).and_then(|()| fs::write(&file, whole)) {
        eprintln!("cannot write {}: {error}", file.display());
    }
}

/// Runs one case in a child; the reason if that gave no result.
fn result_of(case: &Case) -> Result<Value, String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([case.name, "--json"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // Read while it runs: a child that finds its pipe full would wait for us.
    let [mut stdout, mut stderr] = [child.stdout.take().map(reader), child.stderr.take().map(reader)];
    let status = wait(&mut child).ok_or(format!("killed after {PATIENCE:?}"));
    host::tidy_up_after(child.id());
    let [stdout, stderr] =
        [&mut stdout, &mut stderr].map(|text| text.take().and_then(|text| text.join().ok()).unwrap_or_default());
    let status = status?;
    serde_json::from_str(&stdout).map_err(|_| format!("{status}, no result: {}", stderr.trim()))
}

fn reader(mut from: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut text = String::new();
        let _ = from.read_to_string(&mut text);
        text
    })
}

fn wait(child: &mut Child) -> Option<std::process::ExitStatus> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

/// What came out so far.
#[derive(Default)]
struct Tally {
    verdicts: BTreeMap<String, usize>,
    /// How often which cause was given where which was expected.
    given: BTreeMap<(String, String), usize>,
    early: Vec<String>,
    /// By case: how often it came out how.
    cases: BTreeMap<&'static str, BTreeMap<String, usize>>,
}

impl Tally {
    fn add(&mut self, case: &Case, result: &Result<Value, String>) {
        let expected = case.expected.causes.join(" or ");
        let (verdict, given, why) = match result {
            Ok(result) => {
                let text = |value: &Value| value.as_str().unwrap_or("nothing").to_owned();
                let list = |list: &Value| list.as_array().into_iter().flatten().map(text).collect::<Vec<_>>();
                let early = list(&result["early_wrong"]);
                self.early.extend(early.into_iter().map(|early| format!("{}: {early}", case.name)));
                (text(&result["right"]), text(&result["given"]["cause"]), list(&result["why"]).join("; "))
            }
            Err(failed) => ("failed".to_owned(), "nothing".to_owned(), failed.clone()),
        };
        println!("{:20} {verdict:12} {given:16} {why}", case.name);
        *self.cases.entry(case.name).or_default().entry(verdict.clone()).or_default() += 1;
        *self.verdicts.entry(verdict).or_default() += 1;
        *self.given.entry((expected, given)).or_default() += 1;
    }

    fn of(&self, verdict: &str) -> usize {
        self.verdicts.get(verdict).copied().unwrap_or(0)
    }

    fn print(&self) {
        println!("\n{:44} {:20} times", "expected", "given");
        for ((expected, given), times) in &self.given {
            let mark = if expected.split(" or ").any(|cause| cause == given) { ' ' } else { '*' };
            println!("{expected:44} {given:18}{mark} {times:6}");
        }
        let not_always_right =
            self.cases.iter().filter(|(_, verdicts)| verdicts.keys().any(|verdict| verdict != "right"));
        for (number, (case, verdicts)) in not_always_right.enumerate() {
            if number == 0 {
                println!("\ncases that were not right each time");
            }
            let times: Vec<_> = verdicts.iter().map(|(verdict, times)| format!("{verdict} {times}")).collect();
            println!("  {case:20} {}", times.join(", "));
        }
        if !self.early.is_empty() {
            println!("\naccused falsely, on the way or in an incident of its own");
            self.early.iter().for_each(|early| println!("  {early}"));
        }
        let [right, incomplete, undetermined, missed, wrong, failed] =
            ["right", "incomplete", "undetermined", "missed", "wrong", "failed"].map(|verdict| self.of(verdict));
        println!(
            "\nright {right}, incomplete {incomplete}, undetermined {undetermined}, missed {missed}, wrong {wrong}, failed {failed}"
        );
        println!("faults counted, wrong ones double: {}", incomplete + undetermined + missed + 2 * wrong);
    }
}
