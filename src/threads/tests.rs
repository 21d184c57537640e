//! Places and what is learnt of threads; what callbacks tell is tested in `hooks`.

#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use std::sync::{Arc, Mutex};

#[test]
fn places_are_handed_on() {
    let used = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..50 {
        let used = Arc::clone(&used);
        let thread = std::thread::spawn(move || {
            learn(Some(u64::MAX), Role::Pool);
            let place = LOCAL.with(own).map(|place| std::ptr::from_ref(place) as usize);
            used.lock().unwrap().extend(place);
        });
        thread.join().unwrap();
    }
    let mut used = used.lock().unwrap().clone();
    used.sort_unstable();
    used.dedup();
    // Other tests' threads come and go meanwhile.
    assert!(used.len() < 25, "{} places for one thread at a time", used.len());
    assert_eq!(threads(u64::MAX).count(), 0);
}

#[test]
fn a_thread_is_learnt_without_callbacks_and_can_change_its_role() {
    std::thread::spawn(|| {
        let mine = || threads(u64::MAX - 1).collect::<Vec<_>>();
        assert_eq!(learn(Some(u64::MAX - 1), Role::Worker), crate::evidence::thread_id());
        assert_eq!(
            mine().iter().map(|thread| (thread.role, thread.hooked)).collect::<Vec<_>>(),
            [(Role::Worker, false)]
        );
        learn(Some(u64::MAX - 1), Role::Pool);
        assert_eq!(mine().iter().map(|thread| thread.role).collect::<Vec<_>>(), [Role::Pool]);
    })
    .join()
    .unwrap();
}

#[test]
fn a_threads_number_is_read_from_what_it_shows() {
    let here = number_of(std::thread::current().id());
    assert!(here.is_some_and(|number| number > 0));
    assert_ne!(here, std::thread::spawn(|| number_of(std::thread::current().id())).join().unwrap());
}
