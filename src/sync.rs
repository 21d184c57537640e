//! The primitives that the lock-free files are written against: those of `std`, or those of `loom` when the models
//! of `--cfg starvation_loom` run.
//!
//! Only state that lives on the heap goes through here: a `loom` atomic cannot stand in a `static`, and what stands in
//! statics (the registries' heads) is too plain to need a model.

#[cfg(not(starvation_loom))]
#[cfg_attr(
    any(not(feature = "stacks"), starvation_elsewhere),
    allow(unused_imports, reason = "for the words of stacks")
)]
pub(crate) use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence};

#[cfg(starvation_loom)]
#[cfg_attr(
    any(not(feature = "stacks"), starvation_elsewhere),
    allow(unused_imports, reason = "for the words of stacks")
)]
pub(crate) use loom::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence};
