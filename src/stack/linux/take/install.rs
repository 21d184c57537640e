//! Puts the handler in place, and keeps it there beside those of the program.
//!
//! SIGURG is a signal that hardly any program uses, that does nothing by default, and that debuggers pass on. A program may
//! have a handler for it all the same, and it goes on to get its signals:
//!
//! * One that was there before is called for every signal that is not ours, with the mask and flags that it asked for.
//! * One that was put over ours would get our signals, and may pass them on or not. So before each use it is looked whether
//!   ours is on top; if it is not, it is put there again, and passes on to what it found. The one that was found may pass
//!   on to ours, which would make a ring. So ours is not one function but several, [`LEVELS`] in all, each used once and
//!   passing on to what was there when it was put in place: what it passes to was there before, and cannot pass back to it.
//! * One that is taken away by putting back what it had found puts back a function of ours that passes on to what was there
//!   before, as it should.
//!
//! A program that puts its handler on top again and again has its way in the end: then no signal is sent any more.
//! Ours stays for as long as the process lives: a signal may still be on its way, and another handler pass on to it.

use super::handler;
use crate::stack::CannotCapture;
use libc::{c_int, c_void, sigaction, siginfo_t};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

const LEVELS: usize = 8;

/// What each level passes on to. Null: to nobody.
static NEXT: [AtomicPtr<sigaction>; LEVELS] = [const { AtomicPtr::new(ptr::null_mut()) }; LEVELS];

type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
static HANDLERS: [Handler; LEVELS] =
    [handle::<0>, handle::<1>, handle::<2>, handle::<3>, handle::<4>, handle::<5>, handle::<6>, handle::<7>];

/// How many levels have been used. Only threads that take stacks wait for it.
static USED: Mutex<usize> = Mutex::new(0);

/// Sees to it that ours is on top: 0.2 us if it is.
pub(super) fn ensure() -> Result<(), CannotCapture> {
    let mut used = USED.lock().unwrap_or_else(PoisonError::into_inner);
    let found = change(None)?;
    if HANDLERS.iter().any(|own| *own as usize == found.sa_sigaction) {
        return Ok(());
    }
    let (Some(own), Some(next)) = (HANDLERS.get(*used), NEXT.get(*used)) else { return Err(CannotCapture::NotSent) };
    // Before it is in place, so that no signal is lost in between.
    pass_on_to(next, found);
    *used += 1;
    let replaced = change(Some(&over(&found, *own)))?;
    if replaced.sa_sigaction != found.sa_sigaction {
        pass_on_to(next, replaced);
    }
    Ok(())
}

/// What to ask the kernel for: what the one that is passed on to asked for, as far as ours can bear it.
fn over(found: &sigaction, own: Handler) -> sigaction {
    let mut action = *found;
    action.sa_sigaction = own as usize;
    // There may be hardly any stack left, where a thread has one for signals.
    let always = libc::SA_SIGINFO | libc::SA_ONSTACK;
    if is_handler(found) {
        action.sa_flags = always | found.sa_flags & (libc::SA_RESTART | libc::SA_NODEFER);
    } else {
        action.sa_flags = always | libc::SA_RESTART;
        // SAFETY: the pointer is valid for the set that the call fills in.
        unsafe { libc::sigfillset(&mut action.sa_mask) };
    }
    action
}

fn is_handler(action: &sigaction) -> bool {
    action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN
}

fn pass_on_to(next: &AtomicPtr<sigaction>, action: sigaction) {
    // Never freed: a handler may be about to look at it. There are two for each level at most.
    let action = if is_handler(&action) { Box::into_raw(Box::new(action)) } else { ptr::null_mut() };
    // Release: pairs with the acquire in `pass_on`.
    next.store(action, Ordering::Release);
}

/// Asks what is in place, and puts another there.
fn change(to: Option<&sigaction>) -> Result<sigaction, CannotCapture> {
    let mut before = MaybeUninit::<sigaction>::uninit();
    let to = to.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `to` is null or filled in, and `before` valid for what the call fills in.
    if unsafe { libc::sigaction(libc::SIGURG, to, before.as_mut_ptr()) } != 0 {
        return Err(CannotCapture::NotSent);
    }
    // SAFETY: filled in by the call.
    Ok(unsafe { before.assume_init() })
}

extern "C" fn handle<const LEVEL: usize>(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: called by the kernel, or by a handler that passes on what the kernel gave it.
    if !unsafe { handler::run(info, context) } {
        // SAFETY: as above.
        unsafe { pass_on(&NEXT[LEVEL], signal, info, context) };
    }
}

/// # Safety
///
/// The arguments are what the kernel gave to the handler.
unsafe fn pass_on(next: &AtomicPtr<sigaction>, signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // Acquire: pairs with the release in `pass_on_to`.
    let action = next.load(Ordering::Acquire);
    if action.is_null() {
        return;
    }
    // SAFETY: never freed.
    let (function, flags) = unsafe { ((*action).sa_sigaction, (*action).sa_flags) };
    if flags & libc::SA_RESETHAND != 0
        // It asked to be called once. Relaxed: nothing else hangs on it.
        && next.compare_exchange(action, ptr::null_mut(), Ordering::Relaxed, Ordering::Relaxed).is_err()
    {
        return;
    }
    if flags & libc::SA_SIGINFO != 0 {
        // SAFETY: the program gave it to the kernel as a function of this type.
        let function: Handler = unsafe { std::mem::transmute(function) };
        function(signal, info, context);
    } else {
        // SAFETY: as above.
        let function: extern "C" fn(c_int) = unsafe { std::mem::transmute(function) };
        function(signal);
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests;
