//! Real threads that wait in every way that this page knows of.

use super::*;
use crate::evidence::{Doing, RunState, doing, thread_id};
use parking_lot as pl;
use std::sync::{Arc, Barrier, Condvar, LazyLock, Mutex, OnceLock, RwLock, mpsc};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(1_000);

static SHAPES: LazyLock<Shapes> = LazyLock::new(|| Shapes::learn_within(LONG));

/// The wait of a thread once it sleeps at a futex, and its shape. The thread is left as it is: it waits for ever.
fn seen(wait: impl FnOnce() + Send + 'static) -> (Futex, Shape) {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let _ = sender.send(thread_id());
        wait();
    });
    let Ok(Some(tid)) = receiver.recv() else { panic!("the thread tells its id") };
    seen_of(tid)
}

fn seen_of(tid: u32) -> (Futex, Shape) {
    // The thread has yet to get where it sleeps for good: it must be there twice.
    let mut last = None;
    loop {
        let now = doing(tid);
        if let Some(Doing { state: RunState::Asleep, inside: Inside::Call(call) }) = now
            && now == last
            && let Some(futex) = call.futex()
        {
            return (futex, SHAPES.of(tid, &call));
        }
        assert!(now.is_some(), "it has ended and not slept");
        last = now;
        thread::sleep(Duration::from_millis(5));
    }
}

/// What is recognised by the place of the call is so on this machine only.
fn where_places_are_known(shape: Shape) -> Shape {
    if cfg!(target_arch = "x86_64") { shape } else { Shape::Unknown }
}

fn never<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

fn held<T>(guard: T) {
    std::mem::forget(guard);
}

#[test]
fn a_mutex_is_a_lock_for_every_waiter() {
    let lock = never(Mutex::new(()));
    held(lock.lock());
    for _ in 0..3 {
        let (futex, shape) = seen(|| drop(lock.lock()));
        assert_eq!((futex.operation, futex.value, futex.timeout), (OF_STD, 2, false));
        assert_eq!(shape, where_places_are_known(Shape::Lock));
    }
    // What is printed goes through a lock of the same kind.
    let (shared, other) = (Arc::new(Mutex::new(vec![1])), Mutex::new(()));
    held(other.lock());
    let guard = shared.lock();
    let theirs = Arc::clone(&shared);
    let (_, shape) = seen(move || theirs.lock().iter_mut().for_each(|all| all.push(2)));
    assert_eq!(shape, where_places_are_known(Shape::Lock));
    drop(guard);
}

#[test]
fn a_reader_writer_lock_is_a_lock() {
    let lock = never(RwLock::new(()));
    held(lock.write());
    let (futex, shape) = seen(|| drop(lock.read()));
    assert_eq!((futex.operation, futex.value, shape), (OF_STD, WRITER_HOLDS, Shape::Lock));
    let (futex, shape) = seen(|| drop(lock.write()));
    assert_eq!((futex.operation, shape), (OF_STD, where_places_are_known(Shape::Lock)));
    // This is also what a parked thread waits with.
    let (futex, shape) = seen(|| drop(lock.read()));
    assert_eq!((futex.operation, futex.value, shape), (OF_STD, PARKED, where_places_are_known(Shape::Lock)));
    let lock = never(RwLock::new(()));
    held(lock.read());
    let (_, shape) = seen(|| drop(lock.write()));
    assert_eq!(shape, where_places_are_known(Shape::Lock));
    let (futex, shape) = seen(|| drop(lock.read()));
    assert_eq!((futex.value, shape), (0xc000_0001, where_places_are_known(Shape::Lock)));
}

#[test]
fn a_condition_variable_is_none_of_the_others_whatever_its_counter_says() {
    for notified in [0, 1, 2, 3, 5, 7] {
        let pair = never((Mutex::new(()), Condvar::new()));
        // It counts every notification, whether somebody waits or not.
        (0..notified).for_each(|_| pair.1.notify_one());
        let (futex, shape) = seen(|| drop(pair.0.lock().map(|guard| drop(pair.1.wait(guard)))));
        assert_eq!((futex.operation, futex.value, futex.timeout), (OF_STD, notified, false));
        assert_eq!(shape, where_places_are_known(Shape::Condvar));
        let (futex, shape) = seen(|| drop(pair.0.lock().map(|guard| drop(pair.1.wait_timeout(guard, LONG)))));
        assert_eq!((futex.value, futex.timeout), (notified, true));
        assert_eq!(shape, where_places_are_known(Shape::Condvar));
    }
    let barrier = never(Barrier::new(2));
    let (_, shape) = seen(|| {
        barrier.wait();
    });
    assert_eq!(shape, where_places_are_known(Shape::Condvar));
}

#[test]
fn whoever_waits_to_be_unparked_is_parked() {
    let parked = where_places_are_known(Shape::Park);
    let (futex, shape) = seen(thread::park);
    assert_eq!((futex.operation, futex.value, futex.timeout, shape), (OF_STD, PARKED, false, parked));
    let (futex, shape) = seen(|| thread::park_timeout(LONG));
    assert_eq!((futex.value, futex.timeout, shape), (PARKED, true, Shape::Park));
    let (sender, receiver) = mpsc::channel::<()>();
    held(sender);
    assert_eq!(seen(move || receiver.recv().unwrap_or_default()).1, parked);
    let (sender, receiver) = mpsc::sync_channel::<()>(0);
    held(receiver);
    assert_eq!(seen(move || sender.send(()).unwrap_or_default()).1, parked);
    assert_eq!(seen(|| futures_executor::block_on(std::future::pending::<()>())).1, parked);
}

#[test]
fn waiting_for_somebody_elses_initialisation_is_told() {
    let cell = never(OnceLock::<()>::new());
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        cell.get_or_init(|| {
            let _ = sender.send(());
            thread::sleep(LONG);
        })
    });
    let _ = receiver.recv();
    let (_, shape) = seen(|| {
        cell.get_or_init(|| ());
    });
    assert_eq!(shape, where_places_are_known(Shape::Once));
}

#[test]
#[cfg(target_env = "gnu")]
fn waiting_for_the_end_of_a_thread_is_told_with_its_id() {
    let (sender, receiver) = mpsc::channel();
    let (futex, shape) = seen(move || {
        let sleeper = thread::spawn(move || {
            let _ = sender.send(thread_id());
            thread::sleep(LONG);
        });
        let _ = sleeper.join();
    });
    let Ok(Some(tid)) = receiver.recv() else { panic!("the thread tells its id") };
    assert_eq!((futex.operation, shape), (OF_JOIN, Shape::Join(tid)));
}

#[test]
#[cfg(target_env = "gnu")]
fn a_mutex_of_the_c_library_is_a_lock_and_its_other_waits_are_unknown() {
    struct Raw<T>(std::cell::UnsafeCell<T>);
    // SAFETY: used through the C library's functions only.
    unsafe impl<T> Sync for Raw<T> {}
    let mutex = never(Raw(std::cell::UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER)));
    let condvar = never(Raw(std::cell::UnsafeCell::new(libc::PTHREAD_COND_INITIALIZER)));
    // SAFETY: it is initialised and lives for ever.
    let lock = || unsafe { libc::pthread_mutex_lock(mutex.0.get()) };
    assert_eq!(lock(), 0);
    let (futex, shape) = seen(move || {
        lock();
    });
    assert_eq!((futex.operation, futex.value, shape), (PRIVATE, 2, where_places_are_known(Shape::Lock)));
    let other = never(Raw(std::cell::UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER)));
    // SAFETY: both are initialised and live for ever; the mutex is held when the wait begins.
    let (_, shape) = seen(move || unsafe {
        libc::pthread_mutex_lock(other.0.get());
        libc::pthread_cond_wait(condvar.0.get(), other.0.get());
    });
    assert_eq!(shape, Shape::Unknown);
}

/// A lock of `parking_lot` and a condition variable wait alike, and nobody has told where from.
#[test]
fn what_parking_lot_waits_for_is_not_told() {
    let lock = never(pl::Mutex::new(()));
    held(lock.lock());
    let (futex, shape) = seen(|| drop(lock.lock()));
    assert_eq!((futex.operation, futex.value, shape), (PRIVATE, 1, Shape::Unknown));
    let pair = never((pl::Mutex::new(()), pl::Condvar::new()));
    let (futex, shape) = seen(|| pair.1.wait(&mut pair.0.lock()));
    assert_eq!((futex.operation, futex.value, shape), (PRIVATE, 1, Shape::Unknown));
}

/// Tokio parks by `parking_lot` here: an idle worker, a `block_on` and an idle pool thread cannot be told apart by it.
#[test]
fn how_tokio_parks_is_not_taken_for_a_lock() {
    let runtime = never(
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap_or_else(|error| panic!("{error}")),
    );
    let (futex, shape) = seen(|| runtime.block_on(std::future::pending()));
    assert_eq!((futex.operation, futex.value, shape), (PRIVATE, 1, Shape::Unknown));
    let (_, shape) = seen(|| runtime.handle().block_on(std::future::pending()));
    assert_eq!(shape, Shape::Unknown);
    let (sender, receiver) = mpsc::channel();
    runtime.spawn(async move {
        let _ = sender.send(thread_id());
        let pending = std::future::pending::<()>();
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(pending));
    });
    let Ok(Some(tid)) = receiver.recv() else { panic!("the worker tells its id") };
    let (futex, shape) = seen_of(tid);
    assert_eq!((futex.operation, futex.value, shape), (PRIVATE, 1, Shape::Unknown));
}

#[test]
fn places_that_more_than_one_thing_is_waited_for_from_are_forgotten() {
    let site = |instruction, caller| Site { instruction, caller };
    let mut shapes = Shapes {
        sites: vec![
            (site(1, Some(10)), Shape::Lock),
            (site(1, Some(10)), Shape::Lock),
            (site(1, Some(11)), Shape::Lock),
            (site(1, Some(11)), Shape::Condvar),
            (site(2, None), Shape::Lock),
            (site(2, Some(12)), Shape::Park),
        ],
        memory: None,
    };
    shapes.drop_ambiguous();
    assert_eq!(shapes.sites, [(site(1, Some(10)), Shape::Lock)]);
}

#[test]
fn nothing_is_recognised_that_was_not_learned_but_by_arguments_that_only_one_has() {
    let shapes = Shapes::default();
    let call = |operation: u32, value: u32, timeout| SystemCall {
        number: 0,
        // The upper half of a number of 32 bits is anything.
        arguments: [64, u64::from(operation), 0x7f00_0000_0000 | u64::from(value), timeout, 0, 0],
        stack: 0,
        instruction: 0,
        name: Some("futex"),
    };
    assert_eq!(shapes.of(0, &call(OF_STD, 2, 0)), Shape::Unknown);
    assert_eq!(shapes.of(0, &call(OF_STD, PARKED, 0)), Shape::Unknown);
    assert_eq!(shapes.of(0, &call(OF_STD, PARKED, 1)), Shape::Park);
    assert_eq!(shapes.of(0, &call(OF_STD, WRITER_HOLDS, 0)), Shape::Lock);
    assert_eq!(shapes.of(0, &call(PRIVATE | 6, 0, 0)), Shape::Lock);
    // Nobody has this id.
    assert_eq!(shapes.of(0, &call(OF_JOIN, u32::MAX, 0)), Shape::Unknown);
    // To wake somebody is no wait.
    assert_eq!(call(PRIVATE | 1, 1, 0).futex(), None);
    assert_eq!(SystemCall { name: None, ..call(OF_STD, 2, 0) }.futex(), None);
}

#[test]
fn code_is_what_can_be_executed() {
    let line = "7f00-7fff r-xp 00000000 00:1f 12 /usr/lib/x.so";
    assert_eq!(parse_map(line), Some((0x7f00, 0x7fff)));
    for line in ["7f00-7fff rw-p 0 0:0 0", "7f00 r-xp", "x-y r-xp 0", "", "7f00-7fff", "7f00-7fff r-"] {
        assert_eq!(parse_map(line), None, "{line}");
    }
    assert!(Code::read().has(parse_map as *const () as u64));
    assert!(!Code::read().has(std::ptr::from_ref(&line).addr() as u64));
}
