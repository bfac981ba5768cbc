//! How fast a store takes objects, with nothing else beside it: `scripts/bench` sets it against `ssh host 'cat > file'`.
//!
//! `cargo bench --bench store_put -- URL SSH_COMMAND FILE`: cuts the file into objects of 16 MiB and stores them,
//! four at once, as a backup does. Prints nothing; its duration is the measurement.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use snapferry::store::{self, StoreOptions};

/// The size of segments of a large stream (bytes).
const OBJECT: u64 = 16 << 20;
/// Transfers at once, as a backup has them.
const CONNECTIONS: usize = 4;

fn main() {
    // What `cargo bench` adds comes behind.
    let words: Vec<String> = std::env::args().skip(1).take_while(|word| word != "--bench").collect();
    let [url, ssh_command, file] = words.as_slice() else {
        // As one of all benches there is nothing to do.
        return eprintln!("usage: store_put URL SSH_COMMAND FILE");
    };
    let ssh_command = shlex::split(ssh_command).expect("words");
    let options = StoreOptions { ssh_command, connections: CONNECTIONS };
    let store = store::open(&url.parse().expect("a place"), &options).expect("a store");
    let file = File::open(file).expect("a file");
    let (size, next) = (file.metadata().expect("its size").len(), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(|| {
                let mut buffer = vec![0; OBJECT as usize];
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let at = number * OBJECT;
                    if at >= size {
                        break;
                    }
                    let object = &mut buffer[..OBJECT.min(size - at) as usize];
                    file.read_exact_at(object, at).expect("its bytes");
                    store.put(&format!("segments/{number:09}.raw.age"), object).expect("stored");
                }
            });
        }
    });
}
