//! Everything that is not about a single thread, read over and over.

use super::cgroup::Cgroups;
use super::{host, process, read};
use crate::clock;
use crate::evidence::{Baseline, Pressure};

/// The groups are looked up anew after so many baselines: a process can be moved, and few are.
const LOOKED_UP_EVERY: u32 = 60;

/// Reads baselines. It knows where the process's groups are, which is dear to find out.
#[derive(Debug, Default)]
pub(crate) struct Witness {
    cgroups: Option<Cgroups>,
    readings: u32,
}

impl Witness {
    /// All there is to read, in some 30 us: made for once a second.
    pub(crate) fn baseline(&mut self) -> Baseline {
        self.readings += 1;
        if self.readings > LOOKED_UP_EVERY {
            (self.cgroups, self.readings) = (None, 0);
        }
        let cgroups = self.cgroups.get_or_insert_with(Cgroups::find);
        Baseline {
            at: clock::now(),
            process: process::process(),
            quota: cgroups.quota(&|path| read(path)),
            pressure: pressure_of(cgroups),
            host: host::host(),
        }
    }
}

fn pressure_of(cgroups: &Cgroups) -> Option<Pressure> {
    let stall = |resource: &str| {
        let own = cgroups.pressure(resource).and_then(read);
        own.or_else(|| read(format!("/proc/pressure/{resource}"))).map(|text| host::parse_pressure(&text))
    };
    let all = [stall("cpu"), stall("memory"), stall("io")];
    let [cpu, memory, io] = all.map(Option::unwrap_or_default);
    all.iter().any(Option::is_some).then_some(Pressure { cpu, memory, io })
}

#[cfg(all(test, not(starvation_loom)))]
mod tests;
