//! What is told, on any system. A counter runs from the start of what it counts for; times are in nanoseconds.

use std::fmt;

/// What a thread does at the moment that it is asked after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Doing {
    pub(crate) state: RunState,
    pub(crate) inside: Inside,
}

/// Whether a thread runs, and if it does not, how the kernel holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunState {
    /// On a CPU, or ready for one.
    Runnable,
    /// Waits for something that a signal can interrupt.
    Asleep,
    /// Waits inside the kernel for something that must come, as a rule a disk or memory.
    Blocked,
    /// By a signal or a debugger.
    Stopped,
    Dead,
}

/// Where in the kernel a thread is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inside {
    /// It runs, so nothing can be said.
    Running,
    /// It waits, and not because of a system call: for a page of memory, say.
    NoCall,
    Call(SystemCall),
    /// The kernel does not tell.
    Unknown,
}

impl Inside {
    pub(crate) fn call(&self) -> Option<&SystemCall> {
        match self {
            Self::Call(call) => Some(call),
            Self::Running | Self::NoCall | Self::Unknown => None,
        }
    }
}

/// A system call that a thread sleeps in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SystemCall {
    pub(crate) number: u64,
    /// As the registers hold them: what a call does not take, and the upper half of what is 32 bits wide, is anything.
    pub(crate) arguments: [u64; 6],
    pub(crate) stack: u64,
    pub(crate) instruction: u64,
    pub(crate) name: Option<&'static str>,
}

/// The name, or the number where it has no name here.
impl fmt::Display for SystemCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name {
            Some(name) => f.write_str(name),
            None => write!(f, "system call {}", self.number),
        }
    }
}

/// The arguments of a wait at a futex.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Futex {
    pub(crate) address: u64,
    pub(crate) operation: u32,
    /// What the word at the address held when the wait began; the thread sleeps only if it still does.
    pub(crate) value: u32,
    pub(crate) timeout: bool,
}

/// What a thread waits for at a futex.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A mutex, or a reader-writer lock.
    Lock,
    /// To be unparked: the sleep of most executors and channels.
    Park,
    /// A condition variable, and what is built of one.
    Condvar,
    /// Somebody else's initialisation of the same thing.
    Once,
    /// The end of the thread with this id.
    Join(u32),
    /// More than one of them waits like this.
    Unknown,
}

/// What has happened to a thread since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ThreadCounters {
    /// How often it gave up its CPU because it had to wait for something.
    pub(crate) voluntary_switches: Option<u64>,
    /// How often its CPU was taken from it.
    pub(crate) involuntary_switches: Option<u64>,
    /// Pages that were in memory already.
    pub(crate) minor_faults: Option<u64>,
    /// Pages that had to be read.
    pub(crate) major_faults: Option<u64>,
}

/// What the process has used since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) user: Option<u64>,
    pub(crate) system: Option<u64>,
    pub(crate) minor_faults: Option<u64>,
    pub(crate) major_faults: Option<u64>,
    pub(crate) voluntary_switches: Option<u64>,
    pub(crate) involuntary_switches: Option<u64>,
    /// Bytes of it in memory now.
    pub(crate) resident: Option<u64>,
}

/// The limits on CPU time that the process is under: its own group's, and those of the groups around it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Quota {
    /// The groups that have a limit, the innermost first.
    pub(crate) levels: Vec<QuotaLevel>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct QuotaLevel {
    /// How many CPUs' worth of time it may use.
    pub(crate) cpus: f64,
    /// How many periods it has been active in, and in how many of them it used up its time.
    pub(crate) periods: Option<u64>,
    pub(crate) throttled_periods: Option<u64>,
    /// How long it was kept from running, of all CPUs together: it can grow faster than the clock.
    pub(crate) throttled: Option<u64>,
}

impl Quota {
    /// The smallest limit; none where there is none.
    pub(crate) fn cpus(&self) -> Option<f64> {
        self.levels.iter().map(|level| level.cpus).reduce(f64::min)
    }

    /// The level that was throttled longest, which is the one that held the process up.
    pub(crate) fn worst(&self) -> Option<&QuotaLevel> {
        self.levels.iter().max_by_key(|level| level.throttled)
    }
}

/// What limits the number of threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ThreadLimits {
    /// Threads of this process.
    pub(crate) threads: Option<u64>,
    /// Of the group with the least room: how many it may have, and has. No limit is `None`, too.
    pub(crate) group_limit: Option<u64>,
    pub(crate) group_threads: Option<u64>,
    /// How many threads this user may have in all processes. Does not bind the superuser.
    pub(crate) user_limit: Option<u64>,
}

/// For how long tasks could not go on for lack of CPU, memory or I/O, in the process's group or on the whole machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Pressure {
    pub(crate) cpu: Stall,
    pub(crate) memory: Stall,
    pub(crate) io: Stall,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stall {
    /// At least one task stood.
    pub(crate) some: Option<u64>,
    /// All of them stood.
    pub(crate) full: Option<u64>,
}

/// What the machine's CPUs have done, of all of them together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Host {
    /// For anybody, not only for this process.
    pub(crate) busy: Option<u64>,
    pub(crate) idle: Option<u64>,
    /// A virtual machine had work and got no CPU of the real one.
    pub(crate) steal: Option<u64>,
    pub(crate) cpus: Option<u64>,
}

/// All that is not about a single thread, at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Baseline {
    /// By this crate's clock.
    pub(crate) at: u64,
    pub(crate) process: Option<Process>,
    pub(crate) quota: Option<Quota>,
    pub(crate) pressure: Option<Pressure>,
    pub(crate) host: Option<Host>,
}

impl Baseline {
    /// What has come on top since `before`. What is no counter stays as it is now; `at` becomes the time between. A counter
    /// that has gone back counts for something else now: unknown.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let both = |now: Option<Process>, before: Option<Process>| Some((now?, before?));
        Self {
            at: self.at.saturating_sub(before.at),
            process: both(self.process, before.process).map(|(now, before)| now.since(&before)),
            quota: self.quota.as_ref().zip(before.quota.as_ref()).map(|(now, before)| now.since(before)),
            pressure: self.pressure.zip(before.pressure).map(|(now, before)| now.since(&before)),
            host: self.host.zip(before.host).map(|(now, before)| now.since(&before)),
        }
    }
}

fn difference(now: Option<u64>, before: Option<u64>) -> Option<u64> {
    now?.checked_sub(before?)
}

impl Process {
    fn since(&self, before: &Self) -> Self {
        Self {
            user: difference(self.user, before.user),
            system: difference(self.system, before.system),
            minor_faults: difference(self.minor_faults, before.minor_faults),
            major_faults: difference(self.major_faults, before.major_faults),
            voluntary_switches: difference(self.voluntary_switches, before.voluntary_switches),
            involuntary_switches: difference(self.involuntary_switches, before.involuntary_switches),
            resident: self.resident,
        }
    }
}

impl Quota {
    fn since(&self, before: &Self) -> Self {
        // With a level more or less it cannot be told which is which.
        let same = self.levels.len() == before.levels.len();
        let level = |(at, now): (usize, &QuotaLevel)| {
            let before = before.levels.get(at).filter(|_| same);
            QuotaLevel {
                cpus: now.cpus,
                periods: difference(now.periods, before.and_then(|before| before.periods)),
                throttled_periods: difference(
                    now.throttled_periods,
                    before.and_then(|before| before.throttled_periods),
                ),
                throttled: difference(now.throttled, before.and_then(|before| before.throttled)),
            }
        };
        Self { levels: self.levels.iter().enumerate().map(level).collect() }
    }
}

impl Pressure {
    fn since(&self, before: &Self) -> Self {
        let stall = |now: Stall, before: Stall| Stall {
            some: difference(now.some, before.some),
            full: difference(now.full, before.full),
        };
        Self {
            cpu: stall(self.cpu, before.cpu),
            memory: stall(self.memory, before.memory),
            io: stall(self.io, before.io),
        }
    }
}

impl Host {
    fn since(&self, before: &Self) -> Self {
        Self {
            busy: difference(self.busy, before.busy),
            idle: difference(self.idle, before.idle),
            steal: difference(self.steal, before.steal),
            cpus: self.cpus,
        }
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_of_what_both_know_and_never_runs_backwards() {
        let level = |cpus, throttled| QuotaLevel { cpus, periods: Some(10), throttled_periods: None, throttled };
        let before = Baseline {
            at: 1_000,
            process: Some(Process { user: Some(70), system: Some(9), resident: Some(4_096), ..Process::default() }),
            quota: Some(Quota { levels: vec![level(0.5, Some(100)), level(2.0, Some(5))] }),
            pressure: Some(Pressure { cpu: Stall { some: Some(3), full: None }, ..Pressure::default() }),
            host: None,
        };
        let now = Baseline {
            at: 5_000,
            process: Some(Process { user: Some(100), system: Some(8), resident: Some(8_192), ..Process::default() }),
            quota: Some(Quota { levels: vec![level(0.5, Some(130)), level(2.0, Some(85))] }),
            pressure: Some(Pressure { cpu: Stall { some: Some(7), full: Some(1) }, ..Pressure::default() }),
            host: Some(Host { steal: Some(1), ..Host::default() }),
        };
        let change = now.since(&before);
        assert_eq!(change.at, 4_000);
        assert_eq!(
            change.process,
            Some(Process { user: Some(30), system: None, resident: Some(8_192), ..Process::default() })
        );
        assert_eq!(change.pressure.map(|pressure| pressure.cpu), Some(Stall { some: Some(4), full: None }));
        assert_eq!(change.host, None);
        let Some(quota) = change.quota else { panic!("both know it") };
        assert_eq!(quota.cpus(), Some(0.5));
        assert_eq!(
            quota.worst(),
            Some(&QuotaLevel { cpus: 2.0, periods: Some(0), throttled_periods: None, throttled: Some(80) })
        );
        // A group around it has got a limit: nothing can be compared.
        let more = Baseline { quota: Some(Quota { levels: vec![level(0.5, Some(130))] }), ..now.clone() };
        let Some(quota) = more.since(&before).quota else { panic!("both know it") };
        assert_eq!((quota.cpus(), quota.levels[0].throttled), (Some(0.5), None));
        assert_eq!(Quota::default().cpus(), None);
    }

    #[test]
    fn a_system_call_has_a_name_or_a_number() {
        let mut call =
            SystemCall { number: 291, arguments: [0; 6], stack: 0, instruction: 0, name: Some("epoll_wait") };
        assert_eq!(call.to_string(), "epoll_wait");
        call.name = None;
        assert_eq!(call.to_string(), "system call 291");
        assert_eq!(Inside::Running.call(), None);
        assert_eq!(Inside::Call(call).call(), Some(&call));
    }
}
