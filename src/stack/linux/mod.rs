//! Linux, on x86_64 and aarch64.

mod memory;
pub(super) mod take;
pub(super) mod tell;

pub(super) use take::{Subject, Taker};
pub(super) use tell::Teller;
