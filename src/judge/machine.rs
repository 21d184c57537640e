//! The process as a whole: it was stopped, or its threads had no CPU.

use super::{LIKELY, OPEN, SURE, Verdict, nanos, period_of, so_many};
use crate::cause::{Action, Cause, Effect};
use crate::facts::Facts;
use crate::sample::{Excused, Machine, Stop};

/// A cause needs this part of the time that was lost to be the one, in percent.
const EXPLAINS: u64 = 30;

/// In a stop from outside no thread wants a CPU; for so many percent of it one may have before or afterwards.
const WANTED: u64 = 50;

/// The process did not run, `count` times, of which `stop` was the longest.
pub(crate) fn paused(facts: &Facts, stop: Stop, count: u64) -> Verdict {
    let (detail, told, confidence) = why_stopped(stop);
    let lost = facts.stopped.recent();
    // Of a process that is stopped from outside every call that executes would be told.
    let coincides = facts.coincides.filter(|_| detail == "memory");
    let coincides = coincides.map_or(String::new(), |op| format!("; it coincides with a call of `{}`", op.name));
    let longest = nanos(stop.to - stop.from);
    let evidence = format!(
        "the observer did not run for up to {longest:.1?} and was not waiting for a CPU{told}; stopped for {:.1?} of the \
         last {:.1?}, {count} in this episode{coincides}",
        nanos(lost),
        nanos(facts.elapsed()),
    );
    let advice = match detail {
        "memory" => {
            "Not the code on the executor: look at big forks (start child processes without a hook before exec, or from a \
             small helper process), at swapping, and at page-fault storms"
        }
        _ => {
            "Not the code on the executor: look at what stops the process or its machine (signals, a debugger, a frozen \
             container, a moved virtual machine), and divide the work among more and smaller processes, so that one pause \
             touches less of it"
        }
    };
    let mut verdict = Verdict::new(Cause::ProcessPaused, confidence, evidence).detail(detail);
    // When one ends is seen better than when it began: the observer may have slept.
    let period = period_of(facts.stops.iter().rev().map(|(_, to)| *to));
    verdict.period = period.or_else(|| period_of(facts.stops.iter().rev().map(|(from, _)| *from))).map(nanos);
    let Some(burst) = facts.burst else { return verdict.advise(Action::LookAtHost, advice.to_owned()) };
    let advice = format!(
        "{advice}. And let `{}` skip or delay the ticks that it missed (`MissedTickBehavior`), not make up for all at once",
        burst.name
    );
    verdict.advise(Action::SkipMissedTicks, advice).effect(Effect::CatchUpBurst, true)
}

/// What kind of stop it was, the number that says so, and how sure that is.
fn why_stopped(stop: Stop) -> (&'static str, String, f64) {
    let took = (stop.to - stop.from).max(1);
    let percent = |part: u64| part.saturating_mul(100) / took;
    match stop.cpu {
        Some(cpu) if percent(cpu) >= 25 => {
            ("memory", format!(", while the process used {:.1?} of CPU time in the kernel", nanos(cpu)), LIKELY)
        }
        Some(_) if stop.major_faults.is_some_and(|faults| faults >= 64) => {
            let faults = stop.major_faults.unwrap_or(0);
            ("memory", format!(", with {faults} pages read from disk"), LIKELY)
        }
        // In such a stop a thread may have wanted a CPU all along: then it is a lack of CPUs as likely.
        Some(_) if stop.wanted.is_some_and(|wanted| percent(wanted) >= 100) => {
            let wanted = nanos(stop.wanted.unwrap_or(0));
            ("unknown", format!(", while another thread of the process wanted one for {wanted:.1?}"), OPEN)
        }
        // Whoever holds the process's memory while it has no CPU holds up all the others.
        Some(_) if stop.wanted.is_some_and(|wanted| percent(wanted) >= WANTED) => {
            let wanted = nanos(stop.wanted.unwrap_or(0));
            ("unknown", format!(", while another thread of the process wanted one for {wanted:.1?}"), LIKELY)
        }
        Some(cpu) if percent(cpu) <= 10 => {
            ("stopped", format!(", and the whole process had {:.1?} of CPU time", nanos(cpu)), SURE)
        }
        _ => ("unknown", String::new(), LIKELY),
    }
}

/// Threads were ready to run and had no CPU: of `read` of all that was slow that was its own thread.
pub(crate) fn contention(facts: &Facts, all: Excused) -> Verdict {
    let machine = facts.machine.recent();
    let (detail, told, mut confidence) = whose(&machine, facts.cpus);
    let own = all.read * 2 >= all.count;
    let threads = if own {
        "their own threads"
    } else {
        // They may have waited for something else as well.
        confidence = if detail == Some("neighbours") { confidence.min(LIKELY) } else { confidence };
        "other threads of this process, for which they may have waited,"
    };
    let evidence = format!(
        "{} took {:.1?} in all while {threads} were ready to run and had no CPU; {told}",
        so_many(all.count, "poll or wait", "polls or waits"),
        nanos(all.time)
    );
    let (action, advice) = match detail {
        Some("quota") => (
            Action::FitWorkersToQuota,
            match machine.quota {
                Some(quota) => format!(
                    "The quota is {quota:.1} CPUs: start as many workers, and compute on as many threads, or raise it"
                ),
                None => "Start as many workers as the quota has CPUs, or raise it".to_owned(),
            },
        ),
        Some("steal") => (
            Action::LookAtHost,
            "The machine itself is not given its CPUs: look at its host, or move to one with its own CPUs".to_owned(),
        ),
        _ => (
            Action::LookAtHost,
            format!(
                "More threads want a CPU than the {} there are: look at what else runs here, also in this process",
                facts.cpus
            ),
        ),
    };
    let mut verdict = Verdict::new(Cause::CpuContention, confidence, evidence).advise(action, advice);
    verdict.detail = detail;
    verdict
}

/// Who has the CPU time that is missing.
pub(crate) fn whose(machine: &Machine, cpus: u64) -> (Option<&'static str>, String, f64) {
    let all = machine.of.saturating_mul(cpus).max(1);
    let percent = |part: u64| part.saturating_mul(100) / all;
    if let Some(throttled) = machine.throttled
        && throttled.saturating_mul(100) >= machine.of.saturating_mul(EXPLAINS) / 10
        && throttled > 0
    {
        let of = nanos(machine.of);
        return (
            Some("quota"),
            format!("its quota held the process back for {:.1?} of {of:.1?}", nanos(throttled)),
            SURE,
        );
    }
    if let Some(steal) = machine.steal
        && percent(steal) >= 15
    {
        return (Some("steal"), format!("{} % of the machine's CPU time were taken from it", percent(steal)), SURE);
    }
    let own = machine.own.map(percent);
    match (own, machine.idle.map(percent)) {
        (Some(own), Some(idle)) => {
            let told = format!("this process used {own} % of the CPUs, {idle} % were idle");
            (Some("neighbours"), told, if idle < 20 { SURE } else { LIKELY })
        }
        _ => (Some("neighbours"), "who had it is not known".to_owned(), LIKELY),
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_stop_is_told_by_what_the_process_did_meanwhile() {
        let told = |cpu, major_faults, wanted| Stop { from: 0, to: 100 * MS, cpu, major_faults, wanted };
        let stop = |cpu, major_faults| why_stopped(told(cpu, major_faults, None)).0;
        let wanted = |wanted| why_stopped(told(Some(2 * MS), Some(0), Some(wanted * MS))).0;
        assert_eq!([wanted(0), wanted(30), wanted(60)], ["stopped", "stopped", "unknown"]);
        assert_eq!(stop(Some(0), Some(0)), "stopped");
        assert_eq!(stop(Some(95 * MS), Some(0)), "memory");
        assert_eq!(stop(Some(2 * MS), Some(5_000)), "memory");
        assert_eq!(stop(Some(15 * MS), Some(0)), "unknown");
        assert_eq!(stop(None, None), "unknown");
    }

    #[test]
    fn whoever_has_the_cpus_is_told_with_a_number() {
        let machine = Machine { of: 1_000 * MS, ..Machine::default() };
        assert_eq!(whose(&Machine { throttled: Some(400 * MS), ..machine }, 2).0, Some("quota"));
        assert_eq!(whose(&Machine { throttled: Some(MS), steal: Some(700 * MS), ..machine }, 2).0, Some("steal"));
        let busy = Machine { own: Some(100 * MS), idle: Some(0), ..machine };
        assert_eq!(whose(&busy, 2).0, Some("neighbours"));
        assert!(whose(&busy, 2).1.contains("5 %"));
        assert_eq!(whose(&machine, 2).2, LIKELY);
    }

    #[test]
    fn what_waited_for_others_that_had_no_cpu_may_have_waited_for_something_else() {
        let mut facts = Facts::new(0, 10_000 * MS);
        facts.cpus = 2;
        facts.machine.add(Machine { of: 1_000 * MS, own: Some(100 * MS), idle: Some(0), ..Machine::default() });
        let told = |facts: &Facts, read| {
            let Verdict { detail, confidence, evidence, .. } =
                contention(facts, Excused { count: 4, time: 400 * MS, read });
            (detail, confidence, evidence.contains("their own threads"))
        };
        assert_eq!(told(&facts, 2), (Some("neighbours"), SURE, true));
        assert_eq!(told(&facts, 1), (Some("neighbours"), LIKELY, false));
        // A quota that holds the process back is read, whoever waited.
        facts.machine.add(Machine { of: 1_000 * MS, throttled: Some(900 * MS), ..Machine::default() });
        assert_eq!(told(&facts, 0), (Some("quota"), SURE, false));
    }
}
