use super::*;
use proptest::prelude::*;
use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

const STAT: &str = "7307 (a) name) S 1 7307 30031 0 -1 4194304 103 5 9 2 11 12 0 0 20 0 31 0 1296842 3133440 410 18446744073709551615 0";
const ASLEEP: &str = "202 0x55f2 0x89 0x7f0000000002 0x0 0x0 0x7f00ffffffff 0x7f6fcf1f78f0 0x7f700c334545\n";

#[test]
fn the_kernel_tells_of_a_thread_that_lives_and_not_of_one_that_does_not() {
    // The thread that asks is running.
    assert!(thread_id().and_then(cpu_time).is_some_and(|time| time.runnable));
    assert_eq!(thread_id().and_then(doing).map(|doing| doing.state), Some(RunState::Runnable));
    assert_eq!((cpu_time(u32::MAX), doing(u32::MAX), thread_counters(u32::MAX)), (None, None, None));
    assert_eq!((thread_name(u32::MAX), inside(u32::MAX)), (None, Inside::Unknown));
    assert!(!exists(u32::MAX) && thread_id().is_some_and(exists));
}

#[test]
fn a_stat_is_read_after_the_name_whatever_that_holds() {
    let Some(stat) = Stat::parse(STAT) else { panic!("it is one") };
    assert_eq!((stat.letter, stat.state()), ('S', Some(RunState::Asleep)));
    assert_eq!((stat.minor_faults, stat.major_faults, stat.threads), (Some(103), Some(9), Some(31)));
    for (letter, state) in [
        ('R', Some(RunState::Runnable)),
        ('D', Some(RunState::Blocked)),
        ('T', Some(RunState::Stopped)),
        ('t', Some(RunState::Stopped)),
        ('Z', Some(RunState::Dead)),
        ('X', Some(RunState::Dead)),
        ('?', None),
    ] {
        assert_eq!(Stat::parse(&format!("1 (x) {letter} 1 2")).and_then(|stat| stat.state()), state);
    }
    let short = Stat::parse("1 (x) S 1 2").map(|stat| (stat.minor_faults, stat.major_faults, stat.threads));
    assert_eq!(short, Some((None, None, None)));
    assert_eq!([Stat::parse(""), Stat::parse("1 (x"), Stat::parse("1 (x)")], [None; 3]);
}

#[test]
fn a_call_is_told_with_its_arguments() {
    let Inside::Call(call) = parse_syscall(ASLEEP) else { panic!("it is in a call") };
    assert_eq!((call.number, call.arguments[0], call.arguments[5]), (202, 0x55f2, 0x7f00_ffff_ffff));
    assert_eq!((call.stack, call.instruction), (0x7f6f_cf1f_78f0, 0x7f70_0c33_4545));
    if cfg!(target_arch = "x86_64") {
        let futex = call.futex().map(|futex| (futex.address, futex.operation, futex.value, futex.timeout));
        assert_eq!(futex, Some((0x55f2, 0x89, 2, false)));
    }
    assert_eq!(parse_syscall("running\n"), Inside::Running);
    assert_eq!(parse_syscall("-1 0x7ffc 0x7f00\n"), Inside::NoCall);
    for text in ["", "\n", "x", "202", "202 0x1 0x2 0x3 0x4 0x5 0x6 0x7", "202 1 2 3 4 5 6 7 8"] {
        assert_eq!(parse_syscall(text), Inside::Unknown, "{text}");
    }
}

/// What a thread sleeps in that was told to do this.
fn asleep_in(wait: impl FnOnce() + Send + 'static) -> SystemCall {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let _ = sender.send(thread_id());
        wait();
    });
    let Ok(Some(tid)) = receiver.recv() else { panic!("the thread tells its id") };
    let mut last = None;
    loop {
        let now = doing(tid);
        match now {
            Some(Doing { state: RunState::Asleep, inside: Inside::Call(call) }) if now == last => return call,
            None => panic!("it has ended and not slept"),
            _ => last = now,
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn a_thread_that_sleeps_says_in_which_call() {
    let named = |wait: Box<dyn FnOnce() + Send>| asleep_in(wait).to_string();
    let (Ok((mut left, right)), Ok((mut full, unread))) = (UnixStream::pair(), UnixStream::pair()) else {
        panic!("pairs of sockets")
    };
    let Ok(udp) = UdpSocket::bind("127.0.0.1:0") else { panic!("a socket") };
    let Ok(tcp) = TcpListener::bind("127.0.0.1:0") else { panic!("a socket") };
    let Ok((reader, writer)) = std::io::pipe() else { panic!("a pipe") };
    // Whoever sleeps goes on as soon as the other end is gone, so that has to stay.
    let _kept = (right, unread, writer);
    assert!(named(Box::new(|| thread::sleep(Duration::from_secs(1_000)))).ends_with("nanosleep"));
    assert_eq!(named(Box::new(thread::park)), "futex");
    let mut byte = [0; 1];
    assert_eq!(named(Box::new(move || drop({ reader }.read(&mut byte)))), "read");
    assert_eq!(named(Box::new(move || drop(left.read(&mut byte)))), "recvfrom");
    assert_eq!(named(Box::new(move || drop(udp.recv(&mut byte)))), "recvfrom");
    assert_eq!(named(Box::new(move || drop(tcp.accept()))), "accept4");
    let full = named(Box::new(move || while full.write(&[0; 4_096]).is_ok() {}));
    assert!(["sendto", "write"].contains(&full.as_str()), "{full}");
    let call = asleep_in(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        if let Ok(runtime) = runtime {
            runtime.block_on(std::future::pending::<()>());
        }
    });
    assert!(call.name.is_some_and(|name| name.starts_with("epoll_")), "{call}");
    assert_eq!(call.futex(), None);
}

#[test]
fn a_child_that_is_waited_for_holds_its_parent_in_a_call_of_that_name() {
    let Ok(mut child) = std::process::Command::new("sleep").arg("1000").spawn() else { panic!("it starts") };
    let pid = child.id() as i32;
    let call = asleep_in(move || drop(child.wait()));
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        assert!(rustix::process::kill_process(pid, rustix::process::Signal::KILL).is_ok());
    }
    assert!(call.name.is_some_and(|name| name.starts_with("wait")), "{call}");
}

/// Threads that spin until told to stop.
struct Spinning {
    stop: Arc<AtomicBool>,
    tids: Vec<u32>,
}

impl Spinning {
    fn start(count: usize) -> Self {
        let (stop, (sender, receiver)) = (Arc::new(AtomicBool::new(false)), mpsc::channel());
        for _ in 0..count {
            let (stop, sender) = (Arc::clone(&stop), sender.clone());
            thread::spawn(move || {
                // All of them on one CPU, whichever it is.
                let mut one = rustix::thread::CpuSet::new();
                let all = rustix::thread::sched_getaffinity(None);
                let first = all.ok().and_then(|all| (0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)));
                one.set(first.unwrap_or(0));
                let pinned = rustix::thread::sched_setaffinity(None, &one).is_ok();
                let _ = sender.send(thread_id().filter(|_| pinned));
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let tids = receiver.iter().take(count).flatten().collect::<Vec<_>>();
        assert_eq!(tids.len(), count, "all of them can be pinned");
        Self { stop, tids }
    }
}

impl Drop for Spinning {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[test]
fn of_two_threads_on_one_cpu_each_waits_for_the_other_and_has_its_cpu_taken_away() {
    const ENOUGH: u64 = 20_000_000;
    let spinning = Spinning::start(2);
    let told = |tid: &u32| cpu_time(*tid).zip(thread_counters(*tid));
    let before: Vec<_> = spinning.tids.iter().filter_map(told).collect();
    let begin = Instant::now();
    loop {
        let now: Vec<_> = spinning.tids.iter().filter_map(told).collect();
        assert_eq!((before.len(), now.len()), (2, 2));
        let enough = before.iter().zip(&now).all(|((time, counters), (time_now, counters_now))| {
            time_now.waited - time.waited >= ENOUGH
                && time_now.on_cpu - time.on_cpu >= ENOUGH
                && counters_now.involuntary_switches > counters.involuntary_switches
        });
        if enough {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(100), "{before:?} {now:?}");
        thread::sleep(Duration::from_millis(10));
    }
    assert!(spinning.tids.iter().all(|tid| doing(*tid).is_some_and(|doing| doing.state == RunState::Runnable)));
}

#[test]
fn a_thread_that_sleeps_gives_its_cpu_away_of_itself_and_fresh_memory_is_a_fault() {
    let Some(tid) = thread_id() else { panic!("a thread has an id") };
    let before = thread_counters(tid);
    thread::sleep(Duration::from_millis(1));
    let memory = std::hint::black_box(vec![1_u8; 8 << 20]);
    let after = thread_counters(tid);
    assert!(after.is_some_and(|after| after.voluntary_switches.is_some() && after.major_faults.is_some()));
    let more = |f: fn(ThreadCounters) -> Option<u64>| after.and_then(f) > before.and_then(f);
    assert!(more(|counters| counters.voluntary_switches), "{before:?} {after:?}");
    assert!(more(|counters| counters.minor_faults), "{before:?} {after:?} {}", memory.len());
}

#[test]
fn threads_are_listed_and_named_even_if_the_name_is_cut_inside_a_character() {
    let (sender, receiver) = mpsc::channel();
    let (stop, stopped) = mpsc::channel::<()>();
    let body = move || {
        let _ = sender.send(thread_id());
        let _ = stopped.recv();
    };
    // Of the 16 bytes of this name 15 are kept.
    let handle = thread::Builder::new().name("ääääääää".into()).spawn(body);
    let (Ok(handle), Ok(Some(tid))) = (handle, receiver.recv()) else { panic!("it starts and tells its id") };
    assert!(threads().is_some_and(|all| all.contains(&tid) && all.len() >= 2));
    assert!(thread_name(tid).is_some_and(|name| name.starts_with("äääää")), "{:?}", thread_name(tid));
    assert!(cpu_time(tid).is_some() && doing(tid).is_some());
    drop(stop);
    assert!(handle.join().is_ok());
    assert!(threads().is_some_and(|all| !all.contains(&tid)) || !exists(tid));
}

/// Any text, or a real one with a part of it replaced.
pub(in super::super) fn any_text(real: &'static str) -> impl Strategy<Value = String> {
    let mutilated = (0..=real.len(), 0..=real.len(), ".{0,6}").prop_map(|(from, to, with)| {
        let (from, to) = (from.min(to), from.max(to));
        let bytes = [&real.as_bytes()[..from], with.as_bytes(), &real.as_bytes()[to..]].concat();
        String::from_utf8_lossy(&bytes).into_owned()
    });
    prop_oneof![any::<String>(), "[ 0-9a-fx:/.,\n-]{0,80}", mutilated]
}

proptest! {
    #[test]
    fn no_text_makes_a_parser_panic(stat in any_text(STAT), call in any_text(ASLEEP), sums in any_text("192185 53916 2")) {
        let _ = Stat::parse(&stat).map(|stat| stat.state());
        let _ = parse_syscall(&call).call().map(|call| (call.futex(), call.to_string()));
        let _ = parse_schedstat(&sums);
        let _ = field(&stat, "x");
    }

    #[test]
    fn what_the_kernel_writes_is_read_back(number in 0_u64..500, words in any::<[u64; 8]>()) {
        let text = words.iter().fold(number.to_string(), |text, word| format!("{text} {word:#x}"));
        let Inside::Call(call) = parse_syscall(&text) else { panic!("it is in a call") };
        prop_assert_eq!((call.number, &call.arguments[..]), (number, &words[..6]));
        prop_assert_eq!([call.stack, call.instruction], [words[6], words[7]]);
    }
}
