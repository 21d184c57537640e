//! What is done to a whole process from outside: stopped, robbed of its CPUs, forked, refused threads.

use crate::tools::burn;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// No helper lives longer than this, whatever becomes of the process that it helps.
const HELP_ENDS: Duration = Duration::from_secs(120);

/// Starts this program again as a helper.
fn helper(what: &str, numbers: &[u64]) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--helper", what]).args(numbers.iter().map(u64::to_string));
    command.stdin(Stdio::null()).stdout(Stdio::null());
    if what != "stop" {
        let die_with_parent = || {
            #[cfg(target_os = "linux")]
            // SAFETY: a system call on the calling process alone.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            }
            Ok(())
        };
        // SAFETY: only a system call is made between fork and exec.
        unsafe { command.pre_exec(die_with_parent) };
    }
    command.spawn().unwrap()
}

/// What a helper does.
pub(crate) fn help(what: &str, numbers: &[&str]) -> i32 {
    let numbers: Vec<u64> = numbers.iter().map(|number| number.parse().unwrap()).collect();
    let start = Instant::now();
    match (what, &numbers[..]) {
        ("spin", []) => while start.elapsed() < HELP_ENDS {},
        ("stop", &[pid, first, times, every, length]) => {
            let pid = libc::pid_t::try_from(pid).unwrap();
            let first = start + Duration::from_millis(first);
            for round in 0..times {
                sleep_until(first + Duration::from_millis(every * round));
                signal(pid, libc::SIGSTOP);
                thread::sleep(Duration::from_millis(length));
                signal(pid, libc::SIGCONT);
            }
        }
        ("preempt", &[cpu, every, length]) => {
            pin_to(cpu);
            go_before_all_others();
            while start.elapsed() < HELP_ENDS {
                let round = Instant::now();
                burn(Duration::from_millis(length));
                sleep_until(round + Duration::from_millis(every));
            }
        }
        _ => return 2,
    }
    0
}

fn sleep_until(when: Instant) {
    thread::sleep(when.saturating_duration_since(Instant::now()));
}

fn signal(pid: libc::pid_t, signal: libc::c_int) {
    // SAFETY: a system call without pointers.
    unsafe { libc::kill(pid, signal) };
}

/// Kills what it holds when dropped.
#[derive(Debug)]
pub(crate) struct Helpers(Vec<Child>);

impl Drop for Helpers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Processes that use all the CPU they get.
pub(crate) fn spinners(count: usize) -> Helpers {
    Helpers((0..count).map(|_| helper("spin", &[])).collect())
}

/// A process that goes before all others on one CPU, for so long in every so often. `None` where that is not allowed.
pub(crate) fn preempter(cpu: u64, every: Duration, length: Duration) -> Helpers {
    let millis = [every, length].map(|duration| u64::try_from(duration.as_millis()).unwrap());
    Helpers(vec![helper("preempt", &[cpu, millis[0], millis[1]])])
}

/// Stops this process so many times, evenly, each time for so long. The first time after one period.
pub(crate) fn stopper(times: u64, every: Duration, length: Duration) -> Child {
    let millis = [every, length].map(|duration| u64::try_from(duration.as_millis()).unwrap());
    helper("stop", &[std::process::id().into(), millis[0], times, millis[0], millis[1]])
}

/// Keeps the calling thread on one CPU.
pub(crate) fn pin_to(cpu: u64) {
    #[cfg(target_os = "linux")]
    // SAFETY: an all-zero set is an empty one, and the call reads as many bytes as it has.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(usize::try_from(cpu).unwrap(), &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = cpu;
}

/// Makes this process a real-time one, or where that is not allowed leaves it as it is.
fn go_before_all_others() {
    #[cfg(target_os = "linux")]
    // SAFETY: an all-zero parameter is valid, and the call only reads it.
    unsafe {
        let mut priority: libc::sched_param = std::mem::zeroed();
        priority.sched_priority = 10;
        libc::sched_setscheduler(0, libc::SCHED_FIFO, &priority);
    }
}

/// A real fork, whose child ends at once: the kernel copies the page tables of the whole process.
pub(crate) fn fork_and_exit() {
    // SAFETY: the child does nothing but exit, without running any destructor.
    unsafe {
        match libc::fork() {
            0 => libc::_exit(0),
            child if child > 0 => {
                libc::waitpid(child, std::ptr::null_mut(), 0);
            }
            _ => {}
        }
    }
}

/// A third of the memory that is free, in bytes.
pub(crate) fn spare_memory() -> usize {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free =
        info.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.strip_suffix("kB")?.trim().parse().ok());
    free.map_or(usize::MAX, |kilobytes: usize| (kilobytes / 3) << 10)
}

/// So many bytes that are really there, in pages of 4 KiB.
pub(crate) fn touched_memory(bytes: usize) {
    // SAFETY: fresh anonymous memory of that length, written within its bounds and never unmapped.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANON;
        let start = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_ne!(start, libc::MAP_FAILED, "no memory");
        #[cfg(target_os = "linux")]
        if libc::madvise(start, bytes, libc::MADV_NOHUGEPAGE) == 0
            && libc::madvise(start, bytes, libc::MADV_POPULATE_WRITE) == 0
        {
            // All at once, which is much quicker.
            return;
        }
        for offset in (0..bytes).step_by(4096) {
            start.cast::<u8>().add(offset).write_volatile(1);
        }
    }
}

/// Lets the process have no more address space than it has now, but for so many bytes.
pub(crate) fn limit_address_space(room: usize) {
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let Some(pages) = statm.split(' ').next().and_then(|pages| pages.parse::<usize>().ok()) else { return };
    let most = (pages * 4096 + room) as libc::rlim_t;
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: the call only reads the limit.
    unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) };
}

/// A named pipe.
pub(crate) fn make_fifo(path: &Path) {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a string that ends in zero.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0, "{}", io::Error::last_os_error());
}

/// The ends of an unnamed pipe, to read from and to write to.
pub(crate) fn pipe() -> (File, File) {
    let (reader, writer) = io::pipe().unwrap();
    (OwnedFd::from(reader).into(), OwnedFd::from(writer).into())
}

/// The stdout that there was, where a case has put another in its place.
static REAL_STDOUT: OnceLock<File> = OnceLock::new();

/// Puts a pipe that nobody reads in the place of stdout.
pub(crate) fn stdout_into_unread_pipe() {
    use std::os::fd::AsRawFd;
    let (reader, writer) = pipe();
    // SAFETY: descriptors that are open; the copy is owned by the new file alone.
    unsafe {
        let real = libc::dup(1);
        REAL_STDOUT.set(File::from_raw_fd(real)).unwrap();
        libc::dup2(writer.as_raw_fd(), 1);
    }
    // If nobody could read it, writing would fail rather than wait.
    std::mem::forget(reader);
}

/// Prints to the stdout that the process was started with.
pub(crate) fn print_past_redirection(text: &str) {
    match REAL_STDOUT.get() {
        Some(mut real) => real.write_all(text.as_bytes()).unwrap(),
        None => print!("{text}"),
    }
}

const CGROUPS: &str = "/sys/fs/cgroup/cpu";
static OWN_CGROUP: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Puts the process into a group with so much CPU in every 100 ms. Whether that was possible.
pub(crate) fn limit_cpu(quota: Duration) -> bool {
    let group = Path::new(CGROUPS).join(format!("doctor-{}", std::process::id()));
    let write = |name: &str, value: String| fs::write(group.join(name), value);
    let limited = fs::create_dir(&group)
        .and_then(|()| write("cpu.cfs_period_us", "100000".to_owned()))
        .and_then(|()| write("cpu.cfs_quota_us", quota.as_micros().to_string()))
        .and_then(|()| write("cgroup.procs", std::process::id().to_string()));
    if limited.is_err() {
        let _ = fs::remove_dir(&group);
        return false;
    }
    *OWN_CGROUP.lock().unwrap() = Some(group);
    true
}

/// In how many percent of the periods the group that [`limit_cpu`] made has used up its time.
pub(crate) fn throttled_percent() -> Option<u64> {
    let group = OWN_CGROUP.lock().unwrap().clone()?;
    let stat = fs::read_to_string(group.join("cpu.stat")).ok()?;
    let number = |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    (number("nr_throttled ")? * 100).checked_div(number("nr_periods ")?)
}

/// Leaves nothing behind in the system.
pub(crate) fn tidy_up() {
    if let Some(group) = OWN_CGROUP.lock().unwrap().take() {
        let _ = fs::write(Path::new(CGROUPS).join("cgroup.procs"), std::process::id().to_string());
        let _ = fs::remove_dir(group);
    }
}

/// Removes what a case that was killed has left.
pub(crate) fn tidy_up_after(pid: u32) {
    let _ = fs::remove_dir(Path::new(CGROUPS).join(format!("doctor-{pid}")));
}
