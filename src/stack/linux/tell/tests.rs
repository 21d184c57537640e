//! Readers of the program that have a fault of their own.

#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use modules::Image;
use pages::{Allowance, Pages, Source};
use std::sync::Arc;
use taken::Victim;

/// The image of the module at an address is read by somebody who panics.
fn break_image(teller: &mut Teller, address: u64) {
    let start = teller.unwinder.modules.find(address).unwrap().identity.range.start;
    let whole = |source| Arc::new(Pages::new(source, 1 << 30, &Allowance::new(64 << 20)).unwrap());
    let mut image = Image::new(whole(Source::Memory(start)), start).unwrap();
    let (tables, broken) = (image.tables.as_mut().unwrap(), whole(Source::Panics));
    tables.index = pages::Bytes::new(&broken, 0, 1 << 20);
    teller.unwinder.modules.replace(address, Some(image));
}

#[test]
fn a_panic_of_a_reader_costs_what_it_reads_and_no_more() {
    let victim = Victim::start(|told| {
        told.here();
        let _ = told.released.recv();
    });
    let capture = taken::asleep(victim.tid);
    let next = capture.registers.0[INSTRUCTION_POINTER].unwrap();
    let mut teller = Teller::new();
    let whole = teller.tell(&capture);
    assert!(whole.complete && teller.trust == Trust::All);
    assert!(whole.frames.iter().any(|frame| frame.line.is_some()), "tests have debug info");
    for trust in [Trust::NoDebugInfo, Trust::NoNames] {
        break_image(&mut teller, next);
        let trace = teller.tell(&capture);
        assert_eq!((teller.trust, trace.complete), (trust, true), "{trace}");
        assert!(trace.frames.iter().all(|frame| frame.line.is_none()), "{trace}");
        assert_eq!(trace.frames.iter().any(|frame| frame.symbol.is_some()), trust == Trust::NoDebugInfo, "{trace}");
        assert_eq!(trace.frames[0].kind, whole.frames[0].kind);
    }
    break_image(&mut teller, next);
    for _ in 0..2 {
        let trace = teller.tell(&capture);
        assert_eq!((teller.trust, trace.complete, trace.frames.len()), (Trust::Nothing, false, 1), "{trace}");
    }
}
