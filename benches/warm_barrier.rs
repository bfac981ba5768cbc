//! The reference for `scripts/bench-warm`: a volume read in batches of 500 with a barrier behind each, as ebsinit does it,
//! on the same engine. One read of 4 KiB at the beginning of each block of 512 KiB.
//!
//! `cargo bench --bench warm_barrier -- FILE`; prints nothing.

use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use rustix::fs::OFlags;
use snapferry::warm::engine::{Engine, EngineChoice, Job};

const BATCH: u64 = 500;
const STEP: u64 = 512 * 1024;
const READ: u32 = 4096;

fn main() {
    // What `cargo bench` adds comes behind.
    let words: Vec<String> = std::env::args().skip(1).take_while(|word| word != "--bench").collect();
    let [path] = words.as_slice() else {
        // As one of all benches there is nothing to do.
        return eprintln!("usage: warm_barrier FILE");
    };
    let mut file =
        OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path).expect("a volume");
    let blocks = file.seek(SeekFrom::End(0)).expect("its size").div_ceil(STEP);
    let (mut engine, _) = Engine::new(EngineChoice::Auto, vec![file], BATCH as u32).expect("an engine");
    let mut answers = Vec::new();
    for first in (0..blocks).step_by(BATCH as usize) {
        let batch = first..blocks.min(first + BATCH);
        let awaited = (batch.end - batch.start) as usize;
        for block in batch {
            engine.push(Job { ticket: 0, file: 0, offset: block * STEP, length: READ }).expect("room");
        }
        while answers.len() < awaited {
            engine.wait(Duration::from_secs(1), &mut answers).expect("an answer");
        }
        assert!(answers.drain(..).all(|answer| answer.result == Ok(READ)), "a read failed");
    }
}
