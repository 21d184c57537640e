//! Threads that are stuck, each in its own way. Plain functions are kept from being merged into their callers, since what
//! is measured is who finds their names and not what the compiler makes of them; closures and async functions are as programs
//! have them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "an example")]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

/// How long those that sleep do: longer than anybody looks at them.
const LONG: Duration = Duration::from_secs(3600);

/// Through this a victim tells who it is, and those that compute learn that they may end. All others stay until the process ends.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    tid: AtomicI32,
    over: AtomicBool,
}

impl Gate {
    /// To be called right before getting stuck.
    fn announce(&self) {
        // Who runs anything watched is watched from then on.
        starvation::instrument_job("announce", || ())();
        // SAFETY: takes nothing.
        self.tid.store(unsafe { libc::gettid() }, Ordering::Release);
    }

    /// The thread that is stuck, once it is about to be.
    pub(crate) fn tid(&self) -> i32 {
        loop {
            match self.tid.load(Ordering::Acquire) {
                0 => std::thread::sleep(Duration::from_millis(1)),
                tid => return tid,
            }
        }
    }

    pub(crate) fn release(&self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// One way to be stuck.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scenario {
    /// The module that the culprit is in.
    pub(crate) name: &'static str,
    /// The end of the path of the function that is to be told as the culprit where nothing has been merged.
    pub(crate) culprit: &'static str,
    /// Whether it keeps the CPU.
    pub(crate) computes: bool,
    pub(crate) start: fn(Arc<Gate>),
}

macro_rules! scenarios {
    ($($name:ident: $culprit:literal, $computes:literal;)*) => {
        pub(crate) const ALL: &[Scenario] = &[$(Scenario {
            name: stringify!($name), culprit: $culprit, computes: $computes, start: $name::start,
        },)*];
    };
}

scenarios! {
    std_sleep: "std_sleep::nap", false;
    std_mutex: "std_mutex::update", false;
    parking_mutex: "parking_mutex::update", false;
    condvar: "condvar::wait_for_work", false;
    join: "join::wait_for_child", false;
    spin: "spin::wait_for_flag", true;
    arithmetic: "arithmetic::mix", true;
    pipe: "pipe::read_line", false;
    tcp: "tcp::read_reply", false;
    clock: "clock::measure", true;
    malloc: "malloc::churn", true;
    memcpy: "memcpy::shuffle", true;
    async_sleep: "async_sleep::load (async)", false;
    async_compute: "async_compute::digest (async)", true;
    block_on: "block_on::fetch (async)", false;
    pool_sleep: "pool_sleep::handler::{closure}", false;
    pool_compute: "pool_compute::resize", true;
    panic_hook: "panic_hook::report", false;
    recursion: "recursion::descend", true;
    dynamic: "<dynamic::Slow as dynamic::Step>::run", false;
    rayon: "rayon::start::{closure}", true;
}

/// The culprit's function, as `Scenario::culprit` has it, without the path that leads to this file.
pub(crate) fn tail(function: &str) -> String {
    let at = function.find("scenarios::").map_or(0, |at| at + "scenarios::".len());
    let prefix = &function[..at];
    let plain = prefix.trim_start_matches('<');
    if plain.is_empty() { function.to_owned() } else { function.replace(plain, "") }
}

mod std_sleep {
    use super::*;

    #[inline(never)]
    fn nap(gate: &Gate) {
        gate.announce();
        std::thread::sleep(LONG);
    }

    pub(crate) fn start(gate: Arc<Gate>) {
        std::thread::spawn(move || nap(&gate));
    }
}

mod std_mutex {
    use super::*;
    use std::sync::Mutex;

    #[inline(never)]
    fn update(counter: &Mutex<u64>, gate: &Gate) {
        gate.announce();
        *counter.lock().unwrap() += 1;
    }

    pub(crate) fn start(gate: Arc<Gate>) {
        let counter: &'static Mutex<u64> = Box::leak(Box::default());
        std::mem::forget(counter.lock());
        std::thread::spawn(move || update(counter, &gate));
    }
}

mod parking_mutex {
    use super::*;
    use parking_lot::Mutex;

    #[inline(never)]
    fn update(counter: &Mutex<u64>, gate: &Gate) {
        gate.announce();
        *counter.lock() += 1;
    }

    pub(crate) fn start(gate: Arc<Gate>) {
        let counter: &'static Mutex<u64> = Box::leak(Box::default());
        std::mem::forget(counter.lock());
        std::thread::spawn(move || update(counter, &gate));
    }
}

mod condvar {
    use super::*;
    use std::sync::{Condvar, Mutex};

    #[inline(never)]
    fn wait_for_work(queue: &Mutex<Vec<u64>>, filled: &Condvar, gate: &Gate) -> Option<u64> {
        gate.announce();
        let mut queue = queue.lock().unwrap();
        while queue.is_empty() {
            queue = filled.wait(queue).unwrap();
        }
        queue.pop()
    }

    pub(crate) fn start(gate: Arc<Gate>) {
        std::thread::spawn(move || wait_for_work(&Mutex::default(), &Condvar::new(), &gate));
    }
}

mod join {
    use super::*;

    #[inline(never)]
    fn wait_for_child(gate: &Gate) {
        let child = std::thread::spawn(|| std::thread::sleep(LONG));
        gate.announce();
        child.join().unwrap();
    }

    pub(crate) fn start(gate: Arc<Gate>) {
        std::thread::spawn(move || wait_for_child(&gate));
    }
}

mod spin {
    use super::*;

    #[inline(never)]
    fn wait_for_flag(gate: &Gate) {
        gate.announce();
        while !gate.over.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    }

    pub(crate) fn start(gate: Arc<Gate>) {
        std::thread::spawn(move || wait_for_flag(&gate));
    }
}

mod arithmetic {
    use super::*;

    #[inline(never)]
    fn mix(mut state: u64) -> u64 {
        for _ in 0..10_000 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
        }
        state
    }

    #[inline(never)]
    fn hash_all(gate: &Gate) -> u64 {
        gate.announce();
        let mut sum = 1;
        while !gate.over.load(Ordering::Relaxed) {
            sum = mix(sum);
        }
        sum
    }

    pub(crate) fn start(gate: Arc<Gate>) {
        std::thread::spawn(move || black_box(hash_all(&gate)));
    }
}

mod pipe {
    use super::*;
    use std::io::Read;

    #[inline(never)]
    fn read_line(mut from: impl Read, gate: &Gate) -> usize {
        let mut line = [0; 100];
        gate.announce();
        from.read(&mut line).unwrap()
    }

    pub(crate) fn start(gate: Arc<Gate>) {
        let (reader, writer) = std::io::pipe().unwrap();
        std::mem::forget(writer);
        std::thread::spawn(move || read_line(reader, &gate));
    }
}

mod tcp {
    use super::*;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    #[inline(never)]
    fn read_reply(stream: &mut TcpStream, gate: &Gate) -> Vec<u8> {
        let mut reply = vec![0; 100];
        gate.announce();
        let length = stream.read(&mut reply).unwrap();
        reply.truncate(length);
        reply
    }

    pub(crate) fn start(gate: Arc<Gate>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        std::mem::forget(listener);
        std::thread::spawn(move || read_reply(&mut stream, &gate));
    }
}

mod clock {
    use super::*;
    use std::time::Instant;

    #[inline(never)]
    fn measure(gate: &Gate) -> Duration {
        gate.announce();
        let mut sum = Duration::ZERO;
        while !gate.over.load(Ordering::Relaxed) {
            sum += Instant::now().elapsed();
        }
        sum
    }

    pub(crate) fn start(gate: Arc<Gate>) {
        std::thread::spawn(move || black_box(measure(&gate)));
    }
}

mod malloc {
    use super::*;

    #[inline(never)]
    fn churn(gate: &Gate) {
        gate.announce();
        let mut kept = Vec::new();
        while !gate.over.load(Ordering::Relaxed) {
            kept.push(vec![1_u8; black_box(300)]);
            if kept.len() > 100 {
                kept.clear();
            }
        }
    }

    pub(crate) fn start(gate: Arc<Gate>) {
        std::thread::spawn(move || churn(&gate));
    }
}

mod memcpy {
    use super::*;

    #[inline(never)]
    fn shuffle(from: &[u8], to: &mut [u8], gate: &Gate) {
        gate.announce();
        while !gate.over.load(Ordering::Relaxed) {
            to.copy_from_slice(black_box(from));
        }
    }

    pub(crate) fn start(gate: Arc<Gate>) {
        std::thread::spawn(move || shuffle(&vec![1; 1 << 20], &mut vec![0; 1 << 20], &gate));
    }
}

fn runtime() -> tokio::runtime::Handle {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let handle = runtime.handle().clone();
    std::mem::forget(runtime);
    handle
}

mod async_sleep {
    use super::*;

    async fn load(gate: &Gate) -> u64 {
        gate.announce();
        std::thread::sleep(LONG);
        1
    }

    async fn parse(gate: &Gate) -> u64 {
        tokio::task::yield_now().await;
        load(gate).await + 1
    }

    async fn handler(gate: Arc<Gate>) -> u64 {
        parse(&gate).await
    }

    pub(crate) fn start(gate: Arc<Gate>) {
        runtime().spawn(handler(gate));
    }
}

mod async_compute {
    use super::*;

    async fn digest(gate: &Gate) -> u64 {
        gate.announce();
        let mut sum = 1_u64;
        while !gate.over.load(Ordering::Relaxed) {
            sum = black_box(sum.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
        sum
    }

    async fn handler(gate: Arc<Gate>) -> u64 {
        digest(&gate).await
    }

    pub(crate) fn start(gate: Arc<Gate>) {
        runtime().spawn(handler(gate));
    }
}

mod block_on {
    use super::*;

    async fn fetch(gate: Arc<Gate>) {
        gate.announce();
        futures_executor::block_on(std::future::pending::<()>());
    }

    pub(crate) fn start(gate: Arc<Gate>) {
        runtime().spawn(fetch(gate));
    }
}

mod pool_sleep {
    use super::*;

    async fn handler(gate: Arc<Gate>) {
        let write = tokio::task::spawn_blocking(move || {
            gate.announce();
            std::thread::sleep(LONG);
        });
        write.await.unwrap();
    }

    pub(crate) fn start(gate: Arc<Gate>) {
        runtime().spawn(handler(gate));
    }
}

mod pool_compute {
    use super::*;

    #[inline(never)]
    fn resize(pixels: &mut [u64], gate: &Gate) {
        gate.announce();
        while !gate.over.load(Ordering::Relaxed) {
            for at in 1..pixels.len() {
                pixels[at] ^= pixels[at - 1].wrapping_mul(3);
            }
        }
    }

    async fn handler(gate: Arc<Gate>) {
        tokio::task::spawn_blocking(move || resize(&mut vec![1; 1000], &gate)).await.unwrap();
    }

    pub(crate) fn start(gate: Arc<Gate>) {
        runtime().spawn(handler(gate));
    }
}

mod panic_hook {
    use super::*;
    use std::sync::OnceLock;

    static GATE: OnceLock<Arc<Gate>> = OnceLock::new();

    #[inline(never)]
    fn report(_: &std::panic::PanicHookInfo<'_>) {
        if std::thread::current().name() == Some("panics") {
            GATE.get().unwrap().announce();
            std::thread::sleep(LONG);
        }
    }

    #[inline(never)]
    fn divide(by: u64) -> u64 {
        100 / by
    }

    pub(crate) fn start(gate: Arc<Gate>) {
        GATE.set(gate).unwrap();
        std::panic::set_hook(Box::new(report));
        std::thread::Builder::new().name("panics".into()).spawn(|| divide(black_box(0))).unwrap();
    }
}

mod recursion {
    use super::*;

    #[inline(never)]
    fn descend(depth: u64, gate: &Gate) -> u64 {
        if depth == 0 {
            gate.announce();
            while !gate.over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
            return 0;
        }
        black_box(descend(black_box(depth - 1), gate)) + 1
    }

    pub(crate) fn start(gate: Arc<Gate>) {
        std::thread::spawn(move || descend(2000, &gate));
    }
}

mod dynamic {
    use super::*;

    trait Step: Send {
        fn run(&self, gate: &Gate);
    }

    struct Slow;

    impl Step for Slow {
        #[inline(never)]
        fn run(&self, gate: &Gate) {
            gate.announce();
            std::thread::sleep(LONG);
        }
    }

    struct Fast;

    impl Step for Fast {
        #[inline(never)]
        fn run(&self, gate: &Gate) {
            black_box(gate.over.load(Ordering::Relaxed));
        }
    }

    #[inline(never)]
    fn all<T: AsRef<[Box<dyn Step>]>>(steps: T, gate: &Gate) {
        for step in steps.as_ref() {
            step.run(gate);
        }
    }

    pub(crate) fn start(gate: Arc<Gate>) {
        let steps: Vec<Box<dyn Step>> = vec![Box::new(Fast), Box::new(Slow)];
        std::thread::spawn(move || all(steps, &gate));
    }
}

mod rayon {
    use super::*;

    pub(crate) fn start(gate: Arc<Gate>) {
        ::rayon::spawn(move || {
            gate.announce();
            let mut sum = 1_u64;
            while !gate.over.load(Ordering::Relaxed) {
                sum = black_box(sum.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
            }
        });
    }
}
