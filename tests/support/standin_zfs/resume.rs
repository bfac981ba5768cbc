//! The second part of a stream that broke off, as `zfs send -t` makes it: a BEGIN of its own, the object in which
//! the first part ended, and everything from the last block that was kept.

use crate::record::{BEGIN, FREE, OBJECT, RESUMING, Sealer, Value, WRITE, WRITE_EMBEDDED, each_record, pack_list};

pub fn from(whole: &[u8], object: u64, offset: u64) -> Vec<u8> {
    let mut sealer = Sealer::new(Vec::new());
    let mut place = Place::Before;
    each_record(whole, |mut record, payload| {
        let here = record.object() == object;
        match (record.kind(), place) {
            (BEGIN, _) => {
                let pairs = [("resume_object", Value::Number(object)), ("resume_offset", Value::Number(offset))];
                let list = pack_list(&pairs);
                record.set32(4, list.len() as u32);
                let version = record.u64(16) | RESUMING << 2;
                record.set64(16, version);
                sealer.put(record, &list).expect("writing to memory");
                return;
            }
            (OBJECT, Place::Before) if here => place = Place::Object,
            (FREE, Place::Object) => {}
            (WRITE | WRITE_EMBEDDED, Place::Object) if record.offset() < offset => return,
            (WRITE | WRITE_EMBEDDED, Place::Object) if here => place = Place::After,
            (_, Place::After) => {}
            _ => return,
        }
        sealer.put(record, payload).expect("writing to memory");
    });
    sealer.into_inner()
}

#[derive(Clone, Copy)]
enum Place {
    Before,
    Object,
    After,
}
