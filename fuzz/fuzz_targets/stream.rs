//! Any bytes as a ZFS send stream.
//!
//! The first byte says how the rest is split, and whether its checksums are made right first: without that, no mutation gets
//! past the first record. Both ways of reading must agree, and nothing may panic.
//!
//! With only a stable toolchain: `RUSTC_BOOTSTRAP=1 cargo fuzz run -s none stream CORPUS -- -max_len=16384`. A corpus is
//! made from `tests/streams/*.zfs` of up to 16 KiB, with one byte put before each.

#![no_main]

use libfuzzer_sys::fuzz_target;
use snapferry::zfs::stream::{ByteOrder, Fletcher4, StreamCheck, StreamError, StreamSummary, identify};

const RECORD: usize = 312;
const TRAILER: usize = 280;

fuzz_target!(|data: &[u8]| {
    let Some((&how, stream)) = data.split_first() else { return };
    let mut stream = stream.to_vec();
    if how & 1 != 0 {
        mend(&mut stream);
    }
    let _ = identify(&stream);
    let piece = 1 + usize::from(how >> 1) * 3;
    let (whole, split) = (check(&stream, stream.len().max(1)), check(&stream, piece));
    assert_eq!(whole, split);
    if let Ok(summary) = whole {
        assert_eq!(summary.bytes, stream.len() as u64);
        assert!(summary.records >= 2);
        assert!(!summary.substreams.is_empty());
    }
});

fn check(stream: &[u8], piece: usize) -> Result<StreamSummary, StreamError> {
    let mut check = StreamCheck::new();
    for piece in stream.chunks(piece) {
        if let Err(error) = check.update(piece) {
            assert_eq!(check.update(piece), Err(error.clone()));
            assert_eq!(check.finish(), Err(error.clone()));
            return Err(error);
        }
    }
    check.finish()
}

/// Puts right checksums into every record, as far as the records can be followed.
fn mend(stream: &mut [u8]) {
    let order = match stream.get(8) {
        Some(0) => ByteOrder::Big,
        _ => ByteOrder::Little,
    };
    let mut sum = Fletcher4::new();
    let mut at = 0;
    while let Some(record) = stream.get_mut(at..at + RECORD) {
        let kind = number(order, &record[..4]);
        if kind == 0 {
            sum = Fletcher4::new();
            sum.update(order, record);
        } else {
            if kind == 5 {
                put(order, sum.sums(), &mut record[8..40]);
            }
            sum.update(order, &record[..TRAILER]);
            if record[40..48] != [0; 8] || kind != 5 {
                put(order, sum.sums(), &mut record[TRAILER..]);
            }
            sum.update(order, &record[TRAILER..]);
        }
        let payload = payload_len(order, kind, record);
        at += RECORD;
        let Some(bytes) = usize::try_from(payload).ok().and_then(|len| stream.get(at..at.checked_add(len)?)) else {
            return;
        };
        sum.update(order, bytes);
        at += bytes.len();
    }
}

fn payload_len(order: ByteOrder, kind: u64, record: &[u8]) -> u64 {
    let n4 = |at: usize| number(order, &record[at..at + 4]);
    let n8 = |at: usize| number(order, &record[at..at + 8]);
    match kind {
        0 => n4(4),
        1 if n4(36) != 0 => n4(36),
        1 => n4(28).next_multiple_of(8),
        3 if record[50] != 0 => n8(96),
        3 => n8(32),
        7 if n8(40) != 0 => n8(40),
        7 => n8(16),
        8 => n4(52).next_multiple_of(8),
        _ => 0,
    }
}

fn number(order: ByteOrder, bytes: &[u8]) -> u64 {
    let add = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
    match order {
        ByteOrder::Little => bytes.iter().rev().fold(0, add),
        ByteOrder::Big => bytes.iter().fold(0, add),
    }
}

fn put(order: ByteOrder, sums: [u64; 4], bytes: &mut [u8]) {
    for (sum, bytes) in sums.into_iter().zip(bytes.chunks_exact_mut(8)) {
        bytes.copy_from_slice(&match order {
            ByteOrder::Little => sum.to_le_bytes(),
            ByteOrder::Big => sum.to_be_bytes(),
        });
    }
}
