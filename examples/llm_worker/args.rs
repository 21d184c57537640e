//! What to run: the story's three runs, or one of the reader's own.

use std::num::NonZeroU32;
use std::time::Duration;

pub(crate) const USAGE: &str = "\
usage: llm_worker [--pool N] [--concurrency N] [--jobs N] [--model-ms N] [--json [--advice]]

  --pool N         threads for blocking calls (8)
  --concurrency N  jobs in flight at once (20)
  --jobs N         jobs in all (six times the concurrency, and at least 400)
  --model-ms N     how long the model takes to answer (46)
  --json           one JSON object a run, one a line, and nothing else
  --advice         with --json: also one for each run whose diagnosis advises a pool, with what came of taking it

Without the first four: the story's three runs.";

/// 4.6 s at 1:100.
const MODEL_MILLIS: u32 = 46;
const POOL: u32 = 8;
const CONCURRENCY: u32 = 20;

/// What one run is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) title: &'static str,
    pub(crate) pool: usize,
    pub(crate) concurrency: usize,
    pub(crate) jobs: usize,
    pub(crate) model: Duration,
}

/// What the command line asks for.
#[derive(Debug)]
pub(crate) struct Args {
    pub(crate) plans: Vec<Plan>,
    pub(crate) json: bool,
    pub(crate) advice: bool,
    pub(crate) help: bool,
}

impl Args {
    pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut pool, mut concurrency, mut jobs, mut model) = (None, None, None, None);
        let (mut json, mut advice, mut help) = (false, false, false);
        while let Some(flag) = args.next() {
            let number = match flag.as_str() {
                "--pool" => &mut pool,
                "--concurrency" => &mut concurrency,
                "--jobs" => &mut jobs,
                "--model-ms" => &mut model,
                "--json" => {
                    json = true;
                    continue;
                }
                "--advice" => {
                    advice = true;
                    continue;
                }
                "--help" | "-h" => {
                    help = true;
                    continue;
                }
                unknown => return Err(format!("unknown flag `{unknown}`")),
            };
            *number = Some(parse_number(&flag, args.next())?);
        }
        let plans = if [pool, concurrency, jobs, model].iter().all(Option::is_none) {
            the_story().to_vec()
        } else {
            vec![plan(
                "your own",
                pool.unwrap_or(POOL),
                concurrency.unwrap_or(CONCURRENCY),
                jobs,
                model.unwrap_or(MODEL_MILLIS),
            )]
        };
        Ok(Self { plans, json, advice, help })
    }
}

fn the_story() -> [Plan; 3] {
    [
        plan("the incident", POOL, 121, None, MODEL_MILLIS),
        plan("the worker's own cap", POOL, CONCURRENCY, None, MODEL_MILLIS),
        plan("the fix", 40, CONCURRENCY, None, MODEL_MILLIS),
    ]
}

fn plan(title: &'static str, pool: u32, concurrency: u32, jobs: Option<u32>, model_millis: u32) -> Plan {
    // The first jobs find an empty queue and wait less than those to come. With six rounds they weigh little.
    let jobs = jobs.unwrap_or_else(|| concurrency.saturating_mul(6).max(400));
    Plan {
        title,
        pool: pool as usize,
        concurrency: concurrency as usize,
        jobs: jobs as usize,
        model: Duration::from_millis(model_millis.into()),
    }
}

fn parse_number(flag: &str, number: Option<String>) -> Result<u32, String> {
    let number = number.ok_or_else(|| format!("{flag} needs a number"))?;
    let parsed = number.parse::<NonZeroU32>();
    parsed
        .map(NonZeroU32::get)
        .map_err(|_| format!("{flag} needs a whole number from 1 to {}, not `{number}`", u32::MAX))
}
