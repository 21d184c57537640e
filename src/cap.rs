//! How many threads a pool may have, as its builder said to `hooks`, unless what is seen refutes that.
//!
//! `hooks` reads what was set before it was called. A limit that was set later it does not know, and then takes Tokio's default
//! for the limit. But a pool that may have more threads starts one for whatever finds none that idles.

/// A call that waits for so long while no thread is added waits for a pool that may have no more.
const REFUTED: u64 = 1_000_000_000;

/// What is known of one pool.
#[derive(Debug, Default)]
pub(crate) struct Cap {
    /// How many threads it has had since a call of the observer's own waited for so long.
    seen: Option<(u64, u64)>,
    /// With so many threads it gave no more.
    full: Option<u64>,
}

impl Cap {
    /// One look: what was said, how many threads the pool has, how long a call of the observer's own waits for one, and
    /// whether the system refuses another. Returns the limit, if it is known.
    pub(crate) fn look(
        &mut self,
        said: Option<u64>,
        threads: Option<u64>,
        waits: Option<u64>,
        refused: bool,
    ) -> Option<u64> {
        let (Some(said), Some(threads)) = (said, threads) else { return said };
        // It has grown after all: then something else was in the way.
        self.full = self.full.filter(|full| *full >= threads);
        let Some(waits) = waits.filter(|_| threads < said && !refused) else {
            self.seen = None;
            return Some(said).filter(|_| self.full.is_none());
        };
        let from = self.seen.filter(|(seen, from)| *seen == threads && *from <= waits).map_or(waits, |(_, from)| from);
        self.seen = Some((threads, from));
        if waits - from >= REFUTED {
            self.full = Some(threads);
        }
        Some(said).filter(|_| self.full.is_none())
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn looks(looks: &[(u64, Option<u64>, bool)]) -> Vec<Option<u64>> {
        let mut cap = Cap::default();
        let look = |&(threads, waits, refused): &(u64, Option<u64>, bool)| {
            cap.look(Some(512), Some(threads), waits.map(|waits| waits * MS), refused)
        };
        looks.iter().map(look).collect()
    }

    #[test]
    fn a_limit_that_a_waiting_call_refutes_is_not_known() {
        let wait = [(3, None, false), (3, Some(100), false), (3, Some(1_099), false), (3, Some(1_100), false)];
        assert_eq!(looks(&wait), [Some(512), Some(512), Some(512), None]);
        // It stays so when nothing waits, until the pool has grown.
        let later =
            [(3, Some(0), false), (3, Some(1_000), false), (3, None, false), (2, None, false), (4, None, false)];
        assert_eq!(looks(&later), [Some(512), None, None, None, Some(512)]);
    }

    #[test]
    fn one_that_grows_or_is_full_or_is_refused_a_thread_has_the_limit_it_was_given() {
        let grows = [(3, Some(0), false), (4, Some(900), false), (4, Some(1_800), false)];
        assert_eq!(looks(&grows), [Some(512); 3]);
        assert_eq!(looks(&[(512, Some(0), false), (512, Some(9_000), false)]), [Some(512); 2]);
        assert_eq!(looks(&[(3, Some(0), true), (3, Some(9_000), true)]), [Some(512); 2]);
        // Another call, not the same for longer.
        assert_eq!(looks(&[(3, Some(900), false), (3, Some(100), false), (3, Some(1_000), false)]), [Some(512); 3]);
        assert_eq!(Cap::default().look(None, Some(3), Some(9_000 * MS), false), None);
        assert_eq!(Cap::default().look(Some(8), None, Some(9_000 * MS), false), Some(8));
    }
}
