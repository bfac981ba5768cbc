//! Valid ZFS streams of any size, made up: the real ones at hand are no longer than 2 MB.

use super::noise::Noise;
use super::record::{BEGIN, END, FREE, MAGIC, OBJECT, Record, Sealer, WRITE};

const BLOCK: usize = 128 * 1024;
/// Blocks of one object: 64 MiB.
const BLOCKS: usize = 512;

/// A file system's stream of about `bytes` bytes (never less than what its few smallest records need). Every other
/// block is noise, the ones between are text that compresses well. The same arguments give the same bytes.
pub fn synthetic_stream(to_guid: u64, from_guid: u64, to_name: &str, bytes: usize, seed: u64) -> Vec<u8> {
    let out = Vec::with_capacity(bytes + 4096);
    let mut sealer = Sealer::new(out);
    let mut put = |record, payload: &[u8]| sealer.put(record, payload).expect("writing to memory");

    let mut begin = Record::new(BEGIN, 0);
    begin.set64(8, MAGIC);
    begin.set64(16, 4 << 2 | 1); // features: SA_SPILL; one substream
    begin.set64(24, 1_796_074_257);
    begin.set32(32, 2); // a file system
    begin.set32(36, 0xc);
    begin.set64(40, to_guid);
    begin.set64(48, from_guid);
    assert!(to_name.len() < 256, "the name does not fit into a stream");
    begin.0[56..56 + to_name.len()].copy_from_slice(to_name.as_bytes());
    put(begin, &[]);

    let mut noise = Noise::new(seed);
    let mut left = bytes.saturating_sub(2 * 312);
    let mut count = 0;
    while left > 2 * 312 {
        let (object, index) = ((count / BLOCKS) as u64 + 2, count % BLOCKS);
        if index == 0 {
            put(object_record(object, to_guid), &noise.block(168));
            left = left.saturating_sub(312 + 168);
        }
        // The last block is as short as it must be, in steps of 512 bytes like a small file's.
        let length = left.saturating_sub(2 * 312).clamp(512, BLOCK) / 512 * 512;
        let mut write = Record::new(WRITE, 0);
        write.set64(8, object);
        write.set32(16, 19); // plain file contents
        write.set64(24, (index * BLOCK) as u64);
        write.set64(32, length as u64);
        write.set64(40, to_guid);
        write.0[48] = 7; // fletcher4
        let block = if count % 2 == 0 { noise.block(length) } else { text(count, length) };
        put(write, &block);
        left = left.saturating_sub(312 + length);
        count += 1;
    }
    let mut free = Record::new(FREE, 0);
    free.set64(8, (count / BLOCKS) as u64 + 2);
    free.set64(16, (count * BLOCK) as u64);
    free.set64(24, u64::MAX);
    free.set64(32, to_guid);
    put(free, &[]);
    let mut end = Record::new(END, 0);
    end.set64(40, to_guid);
    put(end, &[]);
    sealer.into_inner()
}

fn object_record(object: u64, to_guid: u64) -> Record {
    let mut record = Record::new(OBJECT, 0);
    record.set64(8, object);
    record.set32(16, 19);
    record.set32(20, 44); // system attributes
    record.set32(24, BLOCK as u32);
    record.set32(28, 168);
    record.0[34] = 1;
    record.set64(40, to_guid);
    record
}

fn text(number: usize, length: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(length + 80);
    let mut line = 0;
    while out.len() < length {
        out.extend_from_slice(
            format!("block {number:08} line {line:06} the ferry goes out and comes back in\n").as_bytes(),
        );
        line += 1;
    }
    out.truncate(length);
    out
}
