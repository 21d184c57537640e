//! All cases: public reports retold, healthy programs, the two stories, and the same faults in other dresses.

mod dresses_polls;
mod dresses_pool;
mod healthy;
mod host;
mod polls;
mod pool;
mod stories;
mod waits;

use crate::case::Case;

/// Every case there is.
pub(crate) fn all() -> impl Iterator<Item = &'static Case> {
    let lists: [&'static [Case]; 8] = [
        pool::CASES,
        polls::CASES,
        waits::CASES,
        host::CASES,
        healthy::CASES,
        stories::CASES,
        dresses_pool::CASES,
        dresses_polls::CASES,
    ];
    lists.into_iter().flatten()
}
