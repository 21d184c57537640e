use super::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

#[test]
fn a_baseline_tells_what_the_system_tells() {
    let mut witness = Witness::default();
    let (before, now, groups) = (witness.baseline(), witness.baseline(), Cgroups::find());
    assert!(before.at <= now.at);
    assert!(now.process.is_some() && now.host.is_some());
    assert_eq!(
        (now.quota.is_some(), now.pressure.is_some()),
        (groups.quota(&|path| read(path)).is_some(), pressure_of(&groups).is_some())
    );
    let change = now.since(&before);
    assert!(change.process.is_some_and(|process| process.user.is_some() && process.minor_faults.is_some()));
    assert!(change.host.is_some_and(|host| host.cpus >= Some(1)));
}

#[test]
fn pressure_is_told_where_the_kernel_keeps_it() {
    let told = pressure_of(&Cgroups::find()).is_some_and(|pressure| pressure.cpu.some.is_some());
    // A kernel that keeps none may have the file and refuse to read it.
    assert!(told || fs::read("/proc/pressure/cpu").is_err());
}

/// Tells the child that it is one, and which group it is to go to.
const GROUP: &str = "STARVATION_TEST_GROUP";
/// In microseconds.
const PERIOD: u64 = 100_000;
const QUOTA: u64 = 20_000;

/// A group with a quota that is made here. It takes its child with it when it goes.
struct Group {
    directory: PathBuf,
    child: Option<Child>,
}

impl Group {
    fn make() -> Result<Self, String> {
        let cgroups = Cgroups::find();
        let (first_version, own) = cgroups.own_cpu_group().ok_or("no tree of groups is mounted")?;
        let directory = own.join(format!("starvation-test-{}", std::process::id()));
        let tell = |what: &'static str| move |error: std::io::Error| format!("{what}: {error}");
        fs::create_dir(&directory).map_err(tell("making a group"))?;
        let group = Self { directory, child: None };
        let write = |file: &'static str, text: String| fs::write(group.directory.join(file), text).map_err(tell(file));
        if first_version {
            write("cpu.cfs_period_us", PERIOD.to_string())?;
            write("cpu.cfs_quota_us", QUOTA.to_string())?;
        } else {
            write("cpu.max", format!("{QUOTA} {PERIOD}"))?;
        }
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = (child.kill(), child.wait());
        }
        // A group is not empty before its last process is quite gone.
        let begin = Instant::now();
        while fs::remove_dir(&self.directory).is_err() && begin.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
#[allow(clippy::print_stderr, reason = "that nothing was tested has to be seen")]
fn a_process_that_has_used_up_its_quota_is_told_so() {
    if let Ok(group) = std::env::var(GROUP) {
        return spin_in(Path::new(&group));
    }
    let mut group = match Group::make() {
        Ok(group) => group,
        Err(why) => return eprintln!("NOT TESTED: there can be no group with a quota here: {why}"),
    };
    let Ok(test) = std::env::current_exe() else { panic!("a test is a file") };
    let name = "evidence::linux::witness::tests::a_process_that_has_used_up_its_quota_is_told_so";
    let child = Command::new(test).args(["--exact", name, "--nocapture"]).env(GROUP, &group.directory).spawn();
    let Ok(child) = child else { panic!("it can be started again") };
    let status = group.child.insert(child).wait();
    assert!(status.is_ok_and(|status| status.success()));
    let directory = group.directory.clone();
    drop(group);
    assert!(!directory.exists(), "nothing is left behind");
}

/// What the child does: it goes to the group, uses more than it may, and ends when it has been told that it did.
fn spin_in(group: &Path) {
    let mut witness = Witness::default();
    let outside = witness.baseline().quota.map_or(0, |quota| quota.levels.len());
    assert!(fs::write(group.join("cgroup.procs"), "0").is_ok(), "a process can be moved");
    // It learns of the move, if not at once.
    let inside = (0..=LOOKED_UP_EVERY).map(|_| witness.baseline()).find_map(|baseline| {
        baseline.quota.as_ref().is_some_and(|quota| quota.levels.len() > outside).then_some(baseline)
    });
    let Some(before) = inside else { panic!("it is in the group") };
    assert_eq!(before.quota.as_ref().map(|quota| quota.levels[0].cpus), Some(QUOTA as f64 / PERIOD as f64));
    let begin = Instant::now();
    loop {
        let change = witness.baseline().since(&before);
        let Some(level) = change.quota.and_then(|quota| quota.worst().copied()) else { panic!("it is told") };
        if level.throttled >= Some(50_000_000) && level.throttled_periods >= Some(1) && level.periods >= Some(1) {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(100), "{level:?}");
        let spin = Instant::now();
        while spin.elapsed() < Duration::from_millis(10) {
            std::hint::spin_loop();
        }
    }
}
