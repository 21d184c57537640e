//! What runtimes tell by their callbacks.

#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::threads::{self, Role};
use crate::{evidence, op};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

fn number(handle: &Handle) -> u64 {
    op::runtime_number(handle.id()).unwrap()
}

fn until(wanted: impl Fn() -> bool) {
    let patience = Instant::now() + Duration::from_secs(30);
    while !wanted() {
        assert!(Instant::now() < patience, "in vain");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_builders_settings_are_read_from_what_it_shows() {
    let mut builder = Builder::new_multi_thread();
    assert_eq!(settings_of(&builder), Settings { max_blocking_threads: Some(512), worker_threads: None });
    builder.worker_threads(3).max_blocking_threads(7);
    assert_eq!(settings_of(&builder), Settings { max_blocking_threads: Some(7), worker_threads: Some(3) });
}

#[test]
fn what_the_user_wrote_is_no_setting() {
    assert_eq!(without_strings(r#"a: "x \" max: 5 \\", b: 7"#), "a: , b: 7");
}

#[test]
fn the_threads_of_a_prepared_runtime_are_known_by_their_roles() {
    let mut builder = Builder::new_multi_thread();
    let runtime = hooks(builder.worker_threads(2).max_blocking_threads(5)).build().unwrap();
    let number = number(runtime.handle());
    let count = |role| threads::threads(number).filter(|thread| thread.role == role).count();
    until(|| count(Role::Worker) == 2);
    assert!(threads::threads(number).all(|thread| thread.hooked));
    let tids: Vec<_> = threads::threads(number).map(|thread| thread.tid()).collect();
    runtime.block_on(runtime.spawn_blocking(|| ())).unwrap();
    assert_eq!((count(Role::Worker), count(Role::Unknown)), (2, 1), "a pool thread never parks");
    assert_eq!(threads::settings(number), Some(Settings { max_blocking_threads: Some(5), worker_threads: Some(2) }));
    // A worker tells its own.
    let (thread, active) = runtime
        .block_on(runtime.spawn(async move {
            let tid = evidence::thread_id();
            (tid, threads::threads(number).find(|thread| thread.tid() == tid).and_then(|thread| thread.active_since))
        }))
        .unwrap();
    assert!(cfg!(not(target_os = "linux")) || (tids.contains(&thread) && active.is_some()));
    // And once it has nothing to do, that it is parked.
    until(|| {
        threads::threads(number)
            .filter(|thread| thread.role == Role::Worker)
            .all(|thread| thread.active_since.is_none())
    });
    drop(runtime);
    until(|| threads::threads(number).count() == 0);
}

#[test]
fn a_thread_that_drives_one_runtime_after_another_belongs_to_the_last() {
    let drive = || {
        let mut builder = Builder::new_current_thread();
        let runtime = hooks(builder.enable_time()).build().unwrap();
        runtime.block_on(async { tokio::time::sleep(Duration::from_millis(3)).await });
        let known: Vec<_> = threads::threads(number(runtime.handle())).collect();
        (runtime, known)
    };
    let (first, known) = drive();
    assert_eq!(known.iter().map(|thread| thread.role).collect::<Vec<_>>(), [Role::Worker]);
    let (_second, known_second) = drive();
    assert_eq!(known.first().map(|thread| thread.tid()), known_second.first().map(|thread| thread.tid()));
    assert_eq!(threads::threads(number(first.handle())).count(), 0);
}
