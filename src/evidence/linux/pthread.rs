//! A wait for a mutex of the C library, as code in C has it: it calls the kernel from a place of its own.

use super::trials::{See, Wait, watch};
use crate::evidence::Shape;
use std::cell::UnsafeCell;

struct Raw(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: it is used through the C library's functions only, which are made for many threads.
unsafe impl Sync for Raw {}

impl Raw {
    fn lock(&self) -> bool {
        // SAFETY: the mutex is initialised, and stays where it is: those who use it borrow it.
        unsafe { libc::pthread_mutex_lock(self.0.get()) == 0 }
    }

    fn unlock(&self) {
        // SAFETY: as in `lock`; whoever calls this has locked it.
        unsafe { libc::pthread_mutex_unlock(self.0.get()) };
    }
}

pub(super) fn lock(see: See<'_>) {
    let raw = Raw(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));
    if !raw.lock() {
        return;
    }
    std::thread::scope(|scope| {
        let wait = Wait { instruction_suffices: true, ..Wait::at(Shape::Lock, &raw) };
        watch(scope, wait, see, || {
            if raw.lock() {
                raw.unlock();
            }
        });
        raw.unlock();
    });
}
