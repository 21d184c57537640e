//! What is measured of the waits of one op.

use crate::age::Ages;
use crate::figures::{Durations, count};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// The waits of an op.
#[derive(Debug)]
pub(crate) struct Waits {
    pub(crate) pending: Ages,
    /// Waits that have been woken and not been polled since, by when they were woken.
    pub(crate) woken: Ages,
    pub(crate) duration: Durations,
    /// Waits that were over the limit until they were woken, and what they took until then.
    pub(crate) long: AtomicU64,
    pub(crate) long_time: AtomicU64,
    pub(crate) dropped: AtomicU64,
    /// Waits that were dropped without ever having been polled.
    pub(crate) unpolled: AtomicU64,
    /// The op (its place and one) in which the last of them began to wait, and the one that was last given what it waited
    /// for.
    pub(crate) waiter: AtomicU32,
    pub(crate) holder: AtomicU32,
}

impl Waits {
    /// A wait has ended that took so long, of which `for_resource` until it was woken. Who polls it later than that is late
    /// for another reason.
    pub(crate) fn ended(&self, took: u64, for_resource: u64, limit: u64) {
        self.duration.record(took);
        if for_resource >= limit {
            count(&self.long, 1);
            count(&self.long_time, for_resource);
        }
    }
}
