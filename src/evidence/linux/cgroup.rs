//! The control groups that this process is in, of the first version, the second, or some of each.
//!
//! A group's path stands in `/proc/self/cgroup`, and where the tree is mounted in `/proc/self/mountinfo`. In a container
//! the two need not fit: the mount may show a part of the tree only, which is then named as its root, or the path may lead
//! out of what is visible. Then the root of the mount is taken for the process's group: it is the innermost one to be seen.
//! Limits of groups around it that are not visible stay unknown.

use super::{field, read};
use crate::evidence::{Quota, QuotaLevel};
use std::path::{Path, PathBuf};

/// No tree is deeper that anybody has made on purpose.
const DEEPEST: usize = 64;

/// Asks for the text of a file.
type Read<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// Where the files are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Cgroups {
    cpu: Option<Place>,
    pids: Option<Place>,
    /// The second version's, where pressure is told.
    unified: Option<Place>,
}

/// The process's group in one tree.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    first_version: bool,
    /// Its own, then those around it up to the outermost that is visible.
    directories: Vec<PathBuf>,
}

impl Cgroups {
    /// Some 35 us; grows with the number of mounts.
    pub(super) fn find() -> Self {
        let (Some(mounts), Some(groups)) = (read("/proc/self/mountinfo"), read("/proc/self/cgroup")) else {
            return Self::default();
        };
        Self::from(&mounts, &groups, &|path| path.is_dir())
    }

    fn from(mounts: &str, groups: &str, exists: &dyn Fn(&Path) -> bool) -> Self {
        let mounts: Vec<_> = mounts.lines().filter_map(Mount::parse).collect();
        let groups: Vec<_> = groups.lines().filter_map(Group::parse).collect();
        let place = |controller: Option<&str>| {
            let group = groups.iter().find(|group| group.has(controller))?;
            let mut fitting = mounts.iter().filter(|mount| mount.has(controller)).peekable();
            let first = *fitting.peek()?;
            let own = fitting
                .find_map(|mount| mount.directory(group.path).filter(|path| exists(path)).map(|own| (mount, own)));
            let (mount, own) = own.unwrap_or_else(|| (first, first.point.clone()));
            let around = own.ancestors().take_while(|path| path.starts_with(&mount.point)).take(DEEPEST);
            Some(Place { first_version: controller.is_some(), directories: around.map(Path::to_path_buf).collect() })
        };
        let unified = place(None);
        // In a mixed setup each controller is in one of the two.
        Self {
            cpu: place(Some("cpu")).or_else(|| unified.clone()),
            pids: place(Some("pids")).or_else(|| unified.clone()),
            unified,
        }
    }

    /// Whether the CPU is divided by the first version here, and the directory of the process's own group.
    #[cfg(test)]
    pub(super) fn own_cpu_group(&self) -> Option<(bool, &Path)> {
        let place = self.cpu.as_ref()?;
        Some((place.first_version, place.directories.first()?))
    }

    /// 2 us a file: one of each group that has no limit, two or three of each that has one.
    pub(super) fn quota(&self, read: Read<'_>) -> Option<Quota> {
        let place = self.cpu.as_ref()?;
        let level = |directory: &PathBuf| place.quota(directory, read);
        Some(Quota { levels: place.directories.iter().filter_map(level).collect() })
    }

    /// The limit of the group that has the least room for more threads, and how many it has.
    pub(super) fn threads(&self, read: Read<'_>) -> Option<(u64, u64)> {
        let number = |path: PathBuf| read(&path)?.trim().parse::<u64>().ok();
        let level =
            |directory: &PathBuf| Some((number(directory.join("pids.max"))?, number(directory.join("pids.current"))?));
        let levels = self.pids.as_ref()?.directories.iter().filter_map(level);
        levels.min_by_key(|(limit, current)| limit.saturating_sub(*current))
    }

    /// The file of the process's own group that tells of the pressure on a resource; it may not be there.
    pub(super) fn pressure(&self, resource: &str) -> Option<PathBuf> {
        Some(self.unified.as_ref()?.directories.first()?.join(format!("{resource}.pressure")))
    }
}

impl Place {
    /// `None` where the group has no limit, or tells of none.
    fn quota(&self, directory: &Path, read: Read<'_>) -> Option<QuotaLevel> {
        let file = |name: &str| read(&directory.join(name));
        let cpus = if self.first_version {
            // A negative number is no limit.
            let (quota, period) = (file("cpu.cfs_quota_us")?, file("cpu.cfs_period_us")?);
            parse_quota(&quota, &period)?
        } else {
            let both = file("cpu.max")?;
            let (quota, period) = both.trim().split_once(' ')?;
            parse_quota(quota, period)?
        };
        let stat = file("cpu.stat").unwrap_or_default();
        let throttled = if self.first_version {
            field(&stat, "throttled_time")
        } else {
            field(&stat, "throttled_usec").and_then(|micros| micros.checked_mul(1_000))
        };
        Some(QuotaLevel {
            cpus,
            periods: field(&stat, "nr_periods"),
            throttled_periods: field(&stat, "nr_throttled"),
            throttled,
        })
    }
}

fn parse_quota(quota: &str, period: &str) -> Option<f64> {
    let (quota, period) = (quota.trim().parse::<u64>().ok()?, period.trim().parse::<u64>().ok()?);
    (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
}

/// A line of `/proc/self/mountinfo` that mounts a tree of groups.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// The controllers of the first version; none of the second, which has them all in one tree.
    controllers: Option<Vec<String>>,
    /// The group that the mount shows as its outermost.
    root: String,
    point: PathBuf,
}

impl Mount {
    fn parse(line: &str) -> Option<Self> {
        let (place, kind) = line.split_once(" - ")?;
        let mut place = place.split(' ');
        let (root, point) = (place.nth(3)?, place.next()?);
        let mut kind = kind.split(' ');
        let controllers = match kind.next()? {
            "cgroup2" => None,
            "cgroup" => Some(kind.nth(1)?.split(',').map(str::to_owned).collect()),
            _ => return None,
        };
        Some(Self { controllers, root: unescape(root), point: unescape(point).into() })
    }

    fn has(&self, controller: Option<&str>) -> bool {
        match (&self.controllers, controller) {
            (Some(own), Some(controller)) => own.iter().any(|own| own == controller),
            (None, None) => true,
            _ => false,
        }
    }

    /// Where the mount shows the group of this path.
    fn directory(&self, path: &str) -> Option<PathBuf> {
        let below = Path::new(path).strip_prefix(&self.root).ok()?;
        let outside = below.components().any(|part| !matches!(part, std::path::Component::Normal(_)));
        // An empty part would add a slash to its end.
        let own = || if below.as_os_str().is_empty() { self.point.clone() } else { self.point.join(below) };
        (!outside).then(own)
    }
}

/// Blanks and backslashes of a path stand there as three octal digits.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        let octal = (*byte == b'\\').then(|| after.get(..3)).flatten();
        let code = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(code.unwrap_or(*byte));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A line of `/proc/self/cgroup`: number, controllers, path.
#[derive(Debug)]
struct Group<'a> {
    controllers: &'a str,
    path: &'a str,
}

impl<'a> Group<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.splitn(3, ':').skip(1);
        Some(Self { controllers: fields.next()?, path: fields.next()? })
    }

    fn has(&self, controller: Option<&str>) -> bool {
        match controller {
            Some(controller) => self.controllers.split(',').any(|own| own == controller),
            None => self.controllers.is_empty(),
        }
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests;
