//! Any bytes as what an SFTP server sends.
//!
//! The first two bytes say in what pieces it arrives, and whether a right greeting comes first: without that, hardly
//! any mutation gets past it. The verdict must not depend on the pieces, and nothing may panic.
//!
//! With only a stable toolchain: `RUSTC_BOOTSTRAP=1 cargo fuzz run -s none sftp_wire CORPUS -- -max_len=4096`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use snapferry::store::sftp::frames::FrameCheck;

fuzz_target!(|data: &[u8]| {
    let [how, size, stream @ ..] = data else { return };
    let greeting: &[u8] = if how & 1 != 0 { &[0, 0, 0, 5, 2, 0, 0, 0, 3] } else { &[] };
    let stream = [greeting, stream].concat();
    let whole = FrameCheck::default().feed(&stream);
    let mut check = FrameCheck::default();
    let pieces = stream.chunks(usize::from(*size).max(1)).try_for_each(|piece| check.feed(piece));
    match (whole, pieces) {
        // How much of the noise is shown depends on how much of it had come.
        (Err(whole), Err(pieces)) => assert_eq!(std::mem::discriminant(&whole), std::mem::discriminant(&pieces)),
        (whole, pieces) => assert_eq!(whole, pieces),
    }
});
