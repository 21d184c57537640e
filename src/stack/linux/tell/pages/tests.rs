#![allow(clippy::unwrap_used, reason = "tests")]

use super::limits::DEEPEST;
use super::*;
use gimli::Reader;

fn counted(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i % 251) as u8).collect()
}

#[test]
fn reading_crosses_pages_and_stops_at_the_end() {
    let pages = Pages::copied(counted(10_000)).unwrap();
    let mut into = vec![0; 9_000];
    pages.read(500, &mut into).unwrap();
    assert_eq!(into, counted(9_500)[500..]);
    assert_eq!(pages.read(9_999, &mut [0; 2]), None);
    assert_eq!(pages.read(u64::MAX, &mut [0; 2]), None);
}

#[test]
fn what_is_over_the_allowance_is_not_held_and_what_is_dropped_comes_back() {
    let allowance = Allowance::new(3 * PAGE);
    let pages = Pages::new(Source::Copied(vec![1; 10 * PAGE]), 10 * PAGE as u64, &allowance).unwrap();
    assert_eq!(pages.array(0), Some([1]));
    assert_eq!(pages.array(PAGE as u64), Some([1]));
    assert_eq!(pages.array::<1>(2 * PAGE as u64), None);
    drop(pages);
    assert!(!allowance.is_below(3 * PAGE));
    assert!(allowance.is_below(3 * PAGE + 1));
    assert!(Pages::new(Source::Copied(vec![]), LONGEST + 1, &Allowance::new(usize::MAX)).is_none());
}

#[test]
fn a_part_keeps_within_itself() {
    let mut bytes = vec![7; PAGE];
    bytes.extend([0, 9]);
    let pages = Arc::new(Pages::copied(bytes).unwrap());
    let mut part = Bytes::new(&pages, PAGE as u64 - 2, 3);
    assert_eq!(part.find(0), Ok(2));
    assert!(part.find(9).is_err());
    assert!(part.clone().truncate(4).is_err());
    assert_eq!(part.read_u16(), Ok(0x0707));
    assert_eq!(part.read_u8(), Ok(0));
    assert!(part.read_u8().is_err());
    assert!(part.skip(1).is_err());
    assert_eq!(Bytes::new(&pages, 1 << 40, 3).len(), 0);
}

#[test]
fn whoever_reads_for_ever_or_deeper_and_deeper_is_stopped() {
    fn deeper(part: &Bytes, depth: usize) -> usize {
        let room = std::hint::black_box([0_u8; 1024]);
        if part.clone().read_u8().is_err() {
            return depth;
        }
        deeper(part, depth + 1) + usize::from(std::hint::black_box(room)[0])
    }
    let pages = Arc::new(Pages::copied(counted(10)).unwrap());
    let part = Bytes::new(&pages, 0, 10);
    let depth = pages.within_limits(|| deeper(&part, 0));
    assert!((10..=DEEPEST >> 10).contains(&depth), "{depth}");
    let read = |times: u64| (0..times).take_while(|_| part.clone().read_u8().is_ok()).count() as u64;
    assert_eq!(pages.within_limits(|| read(100)), 100);
    pages.limits.set(0, 7);
    assert_eq!(read(100), 7);
    assert!(part.find(1).is_err() && part.clone().read_u32().is_err());
    assert_eq!(pages.within_limits(|| read(100)), 100);
    assert_eq!(read(100), 100, "nothing is left of it");
}

#[test]
fn text_ends_at_its_zero_or_at_the_most_that_is_wanted() {
    let pages = Pages::copied(b"one\0two".to_vec()).unwrap();
    assert_eq!(pages.text(0, 100).as_deref(), Some("one"));
    assert_eq!(pages.text(0, 2).as_deref(), Some("on"));
    assert_eq!(pages.text(4, 100), None);
}
