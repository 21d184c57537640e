//! Processes and threads that make it hard.

use super::victim::Victim;
use super::{blocked, victim};
use crate::stack::{CannotCapture, Capturer, Way};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;

fn in_child(name: &str, f: impl FnOnce()) {
    victim::run_in_child(&format!("{}::{name}", module_path!().split_once("::").unwrap().1), f);
}

/// Masks the signal for the calling thread, or not any more.
pub(super) fn mask(how: libc::c_int) {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the first call fills in what the others read.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGURG);
        assert_eq!(libc::pthread_sigmask(how, set.as_ptr(), std::ptr::null_mut()), 0);
    }
}

#[test]
fn a_thread_that_masks_the_signal_gives_no_answer() {
    static UNMASK: AtomicBool = AtomicBool::new(false);
    static UNMASKED: AtomicBool = AtomicBool::new(false);
    let victim = Victim::start(Builder::new(), |victim| {
        mask(libc::SIG_BLOCK);
        victim.with_sentinel(|| {
            while !UNMASK.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
            mask(libc::SIG_UNBLOCK);
            UNMASKED.store(true, Ordering::Relaxed);
            victim.spin();
        });
    });
    let mut capturer = Capturer::new(true);
    assert_eq!(victim.refusal(&mut capturer), Some(CannotCapture::NoAnswer));
    UNMASK.store(true, Ordering::Relaxed);
    while !UNMASKED.load(Ordering::Relaxed) {
        std::thread::yield_now();
    }
    victim.check(&victim.capture_with(&mut capturer, Way::Signal));
}

/// Has the kernel refuse `process_vm_readv` from here on, to this thread and those that it starts.
fn forbid_reading(action: u32) {
    let statement = |code: u32, k: u32, jt, jf| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut filter = [
        // The number of the call is the first of what a filter is told.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_process_vm_readv as u32, 0, 1),
        statement(libc::BPF_RET | libc::BPF_K, action, 0, 0),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the pointer is valid for what the call reads.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

fn both_ways_work() {
    let mut capturer = Capturer::new(true);
    blocked::parked(Builder::new(), &mut capturer);
    let victim = Victim::computing();
    victim.check(&victim.capture_with(&mut capturer, Way::Signal));
}

#[test]
fn a_filter_that_refuses_to_read_does_not_matter() {
    in_child("a_filter_that_refuses_to_read_does_not_matter", || {
        forbid_reading(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
        both_ways_work();
    });
}

#[test]
fn a_filter_that_ends_the_process_for_reading_does_not_matter() {
    in_child("a_filter_that_ends_the_process_for_reading_does_not_matter", || {
        forbid_reading(libc::SECCOMP_RET_KILL_PROCESS);
        both_ways_work();
    });
}

#[test]
fn a_process_that_may_not_be_looked_at_is_sent_signals_only_where_it_computes() {
    in_child("a_process_that_may_not_be_looked_at_is_sent_signals_only_where_it_computes", || {
        let mut capturer = Capturer::new(true);
        // SAFETY: plain numbers. All threads of the process change.
        unsafe {
            if libc::geteuid() == 0 {
                assert_eq!(libc::setgid(65_534), 0);
                assert_eq!(libc::setuid(65_534), 0);
            }
            assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0), 0);
        }
        let (own, other) = UnixStream::pair().unwrap();
        let asleep = Victim::start(Builder::new(), move |victim| {
            victim.with_sentinel(|| assert_eq!(std::io::Read::read(&mut &other, &mut [0]).unwrap(), 0));
        });
        let mut answer = asleep.capture(&mut capturer);
        // It may not have fallen asleep yet.
        while matches!(answer, Err(CannotCapture::Restless | CannotCapture::NoAnswer)) {
            answer = asleep.capture(&mut capturer);
        }
        assert_eq!(answer.err(), Some(CannotCapture::NotVisible));
        drop(own);
        let computing = Victim::computing();
        computing.check(&computing.capture_with(&mut capturer, Way::Signal));
        assert_eq!(computing.refusal(&mut Capturer::new(false)), Some(CannotCapture::Computing));
    });
}

/// A thread that goes on on a stack of its own making, as coroutines do.
#[cfg(target_env = "gnu")]
mod foreign {
    use super::*;
    use crate::evidence::own_stack;
    use std::mem::MaybeUninit;
    use std::ptr;

    type Body<'a> = &'a mut dyn FnMut();

    extern "C" fn enter(low: u32, high: u32) {
        let address = (u64::from(high) << 32 | u64::from(low)) as usize;
        // SAFETY: the address of what `on_foreign_stack` has on its own stack, which waits for this.
        unsafe { (*ptr::with_exposed_provenance_mut::<Body<'_>>(address))() };
    }

    fn on_foreign_stack(stack: &mut [u8], f: &mut dyn FnMut()) {
        let mut body: Body<'_> = f;
        let address = (&raw mut body).expose_provenance() as u64;
        let (mut own, mut other) = (MaybeUninit::<libc::ucontext_t>::zeroed(), MaybeUninit::zeroed());
        // SAFETY: both contexts are filled in before they are used, and live until the function has come back.
        unsafe {
            let other: *mut libc::ucontext_t = other.as_mut_ptr();
            assert_eq!(libc::getcontext(other), 0);
            (*other).uc_stack.ss_sp = stack.as_mut_ptr().cast();
            (*other).uc_stack.ss_size = stack.len();
            (*other).uc_link = own.as_mut_ptr();
            let enter: extern "C" fn() = std::mem::transmute(enter as extern "C" fn(u32, u32));
            libc::makecontext(other, enter, 2, address as u32, (address >> 32) as u32);
            assert_eq!(libc::swapcontext(own.as_mut_ptr(), other), 0);
        }
    }

    #[test]
    fn a_stack_of_a_coroutine_is_taken() {
        let mut capturer = Capturer::new(true);
        let (own, other) = UnixStream::pair().unwrap();
        let victim = Victim::start(Builder::new(), move |victim| {
            let mut stack = vec![0; 64 << 10];
            on_foreign_stack(&mut stack, &mut || {
                victim.with_sentinel(|| {
                    assert_eq!(std::io::Read::read(&mut &other, &mut [0]).unwrap(), 0);
                    victim.spin();
                });
            });
        });
        let is_foreign = |capture| !victim.bounds.clone().unwrap().contains(&super::super::stack_pointer(capture));
        let capture = victim.capture_with(&mut capturer, Way::Asleep);
        victim.check(&capture);
        assert!(is_foreign(&capture));
        drop(own);
        let capture = loop {
            // It is on its way.
            match victim.capture(&mut capturer) {
                Ok(capture) if capture.way == Way::Signal => break capture,
                Ok(_) | Err(CannotCapture::Restless | CannotCapture::NoAnswer) => {}
                Err(error) => panic!("{error}"),
            }
        };
        victim.check(&capture);
        assert!(is_foreign(&capture));
        assert!(own_stack().is_some());
    }
}
