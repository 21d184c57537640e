//! A thread whose stack is taken, and a process of its own for what changes a process.

use crate::evidence::own_stack;
use crate::evidence::thread_id;
use crate::stack::{CannotCapture, Capture, Capturer, Way};
use std::hint::black_box;
use std::ops::Range;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{Builder, JoinHandle};

static NEXT: AtomicU64 = AtomicU64::new(1);
/// What a sentinel begins with.
pub(in crate::stack::machine::take) const MAGIC: u64 = 0x5ee1_ab1e_0ddb_a115;

/// What a thread puts on its stack: these words are nowhere else.
pub(in crate::stack::machine::take) struct Sentinel {
    pub(in crate::stack::machine::take) words: [u64; 3],
}

impl Sentinel {
    pub(in crate::stack::machine::take) fn empty() -> Self {
        Self { words: [0; 3] }
    }

    /// In place, as a move leaves a copy behind. The answer is where it is, and which.
    pub(in crate::stack::machine::take) fn fill(&mut self) -> (u64, u64) {
        let own = NEXT.fetch_add(1, Ordering::Relaxed);
        let words = &mut black_box(self).words;
        words[0] = MAGIC;
        words[1] = own;
        words[2] = !own;
        (black_box(words).as_ptr().addr() as u64, own)
    }

    /// The next thread may get this stack, and must not be found with these words.
    pub(in crate::stack::machine::take) fn wipe(&mut self) {
        black_box(self).words.fill(0);
    }
}

/// Its id, where its stack lies, and where its sentinel is and which.
type Told = (u32, Option<Range<u64>>, (u64, u64));

/// What the thread itself has in hand.
pub(in crate::stack::machine::take) struct Inner {
    pub(in crate::stack::machine::take) is_over: AtomicBool,
    sender: mpsc::SyncSender<Told>,
}

impl Inner {
    /// Puts a sentinel on the stack, tells of it and goes on.
    #[inline(never)]
    pub(in crate::stack::machine::take) fn with_sentinel(&self, f: impl FnOnce()) {
        let mut sentinel = Sentinel::empty();
        let place = sentinel.fill();
        self.sender.send((thread_id().unwrap(), own_stack(), place)).unwrap();
        f();
        sentinel.wipe();
    }

    pub(in crate::stack::machine::take) fn compute(&self) {
        self.with_sentinel(|| self.spin());
    }

    pub(in crate::stack::machine::take) fn spin(&self) {
        while !self.is_over.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    }
}

pub(in crate::stack::machine::take) struct Victim {
    pub(in crate::stack::machine::take) tid: u32,
    pub(in crate::stack::machine::take) bounds: Option<Range<u64>>,
    /// Where its sentinel is, and which.
    pub(in crate::stack::machine::take) sentinel: (u64, u64),
    pub(in crate::stack::machine::take) inner: Arc<Inner>,
    handle: Option<JoinHandle<()>>,
}

impl Victim {
    /// `f` calls `with_sentinel` once, and comes to an end soon after `is_over`.
    pub(in crate::stack::machine::take) fn start(builder: Builder, f: impl FnOnce(&Inner) + Send + 'static) -> Self {
        let (sender, receiver) = mpsc::sync_channel(1);
        let inner = Arc::new(Inner { is_over: AtomicBool::new(false), sender });
        let own = Arc::clone(&inner);
        let handle = builder.name("victim".into()).spawn(move || f(&own)).unwrap();
        let (tid, bounds, sentinel) = receiver.recv().unwrap();
        Self { tid, bounds, sentinel, inner, handle: Some(handle) }
    }

    pub(in crate::stack::machine::take) fn computing() -> Self {
        Self::start(Builder::new(), Inner::compute)
    }

    pub(in crate::stack::machine::take) fn capture(&self, capturer: &mut Capturer) -> Result<Capture, CannotCapture> {
        capturer.capture(self.tid, self.bounds.clone(), &|| true)
    }

    /// Asks until it is taken. It may be on its way to where it sleeps, or have no CPU to take the signal with.
    pub(in crate::stack::machine::take) fn capture_with(&self, capturer: &mut Capturer, way: Way) -> Capture {
        if way == Way::Asleep {
            // On its way it may compute.
            let mut harmless = Capturer::new(false);
            while self.capture(&mut harmless).is_err() {}
        }
        loop {
            match self.capture(capturer) {
                Ok(capture) => {
                    assert_eq!(capture.way, way);
                    return capture;
                }
                Err(CannotCapture::Restless | CannotCapture::NoAnswer) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Why it is not taken. It may have to wait for a page at first.
    pub(in crate::stack::machine::take) fn refusal(&self, capturer: &mut Capturer) -> Option<CannotCapture> {
        loop {
            match self.capture(capturer) {
                Err(CannotCapture::Restless) => {}
                answer => return answer.err(),
            }
        }
    }

    /// Whether the sentinel was copied, and where it should.
    pub(in crate::stack::machine::take) fn check(&self, capture: &Capture) {
        let (at, own) = self.sentinel;
        assert_eq!(words_at(capture, at), Some([MAGIC, own, !own]));
        let stack = super::stack_pointer(capture);
        assert!(stack < at, "{stack:#x} {at:#x}");
        assert!(capture.base <= stack);
        if let Some(bounds) = self.bounds.as_ref().filter(|bounds| bounds.contains(&stack)) {
            assert!(capture.base + capture.stack.len() as u64 <= bounds.end);
        }
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.inner.is_over.store(true, Ordering::Relaxed);
        if let Some(handle) = self.handle.take() {
            let ended = handle.join();
            assert!(ended.is_ok() || std::thread::panicking());
        }
    }
}

/// What was copied from an address.
pub(in crate::stack::machine::take) fn words_at(capture: &Capture, at: u64) -> Option<[u64; 3]> {
    let offset = usize::try_from(at.checked_sub(capture.base)?).ok()?;
    let bytes = capture.stack.get(offset..offset + 24)?;
    let word = |at: usize| u64::from_ne_bytes(bytes[at * 8..at * 8 + 8].try_into().unwrap());
    Some([word(0), word(1), word(2)])
}

/// Whose sentinels are in a copy.
pub(in crate::stack::machine::take) fn sentinels(capture: &Capture) -> Vec<u64> {
    let first = capture.base.next_multiple_of(8);
    let last = capture.base + capture.stack.len() as u64;
    let found = (first..last).step_by(8).filter_map(|at| words_at(capture, at));
    found.filter(|words| words[0] == MAGIC && words[1] == !words[2]).map(|words| words[1]).collect()
}

/// Runs a test in a process of its own. `test` is the path of the test in this crate's binary.
pub(in crate::stack::machine::take) fn run_in_child(test: &str, f: impl FnOnce()) {
    const NAME: &str = "STARVATION_TEST_ALONE";
    if std::env::var(NAME).is_ok_and(|name| name == test) {
        return f();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--include-ignored", "--test-threads=1"])
        .env(NAME, test)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let text = format!("{:?}\n{told}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}");
    assert!(told.contains("1 passed"), "{text}");
}

/// The same for a test of the parent of this module.
pub(in crate::stack::machine::take) fn in_child(name: &str, f: impl FnOnce()) {
    let module = module_path!().trim_end_matches("::victim").split_once("::").unwrap().1;
    run_in_child(&format!("{module}::{name}"), f);
}
