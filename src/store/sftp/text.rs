//! Words from the other side, made fit for an error message.

use std::collections::VecDeque;
use std::io::Read;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How much of what `ssh` says is kept.
const TAIL_BYTES: usize = 4096;

/// `bytes` as one line without control characters, at most `limit` characters long. A server chooses these
/// words: they must not be able to move the cursor or hide the line before them.
pub fn harmless(bytes: &[u8], limit: usize) -> String {
    let text = String::from_utf8_lossy(bytes);
    let cleaned: String = text.trim().chars().map(|c| if is_plain(c) { c } else { '?' }).take(limit).collect();
    cleaned.trim_end().to_owned()
}

/// Characters that draw themselves and nothing else: no control, no line or direction override.
fn is_plain(c: char) -> bool {
    !c.is_control()
        && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// The last few KiB of a process's standard error.
#[derive(Clone, Debug, Default)]
pub struct Tail(Arc<Mutex<VecDeque<u8>>>);

impl Tail {
    /// Reads `source` to its end, keeping only the tail. Reading goes on for ever, or the process would block.
    pub fn follow(&self, mut source: impl Read) {
        let mut buffer = [0; 1024];
        while let Ok(n @ 1..) = source.read(&mut buffer) {
            let mut kept = self.lock();
            kept.extend(&buffer[..n]);
            let surplus = kept.len().saturating_sub(TAIL_BYTES);
            kept.drain(..surplus);
        }
    }

    /// The last lines that say something, the newest last, in one line.
    pub fn words(&self) -> String {
        let bytes: Vec<u8> = self.lock().iter().copied().collect();
        let lines: Vec<String> = bytes.split(|b| *b == b'\n').map(|line| harmless(line, 300)).collect();
        let mut spoken: Vec<&str> = lines.iter().map(String::as_str).filter(|line| says_something(line)).collect();
        let surplus = spoken.len().saturating_sub(3);
        spoken.drain(..surplus);
        spoken.join("; ")
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Leaves out empty lines, the frame of ssh's boxed warnings, and notes that are not a cause.
fn says_something(line: &str) -> bool {
    line.chars().any(char::is_alphanumeric) && !line.starts_with("Warning: Permanently added")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_survive() {
        assert_eq!(harmless(b"\x1b[2Jgone\r\nall well\x07", 100), "?[2Jgone??all well?");
        assert_eq!(harmless("a\u{202e}b".as_bytes(), 100), "a?b");
        assert_eq!(harmless(&[b'x'; 500], 10), "xxxxxxxxxx");
        assert_eq!(harmless(b"\xff\xfe", 10), "\u{fffd}\u{fffd}");
    }

    #[test]
    fn the_tail_is_bounded_and_ends_with_the_last_words() {
        let tail = Tail::default();
        let mut noise = vec![b'n'; 100_000];
        noise.extend_from_slice(b"\n\nfirst\nsecond\nthird\n@@@@@@\nPermission denied (publickey).\n");
        tail.follow(noise.as_slice());
        assert_eq!(tail.words(), "second; third; Permission denied (publickey).");
        assert!(tail.lock().len() <= TAIL_BYTES);
    }
}
