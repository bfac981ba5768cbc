//! Which signals end a run.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Those that end it, without what whoever started the program wants ignored, as `nohup` does.
pub fn ending() -> Vec<i32> {
    let ignored = std::fs::read_to_string("/proc/self/status").ok().and_then(|status| ignored(&status)).unwrap_or(0);
    [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0).collect()
}

/// The mask in the line `SigIgn` of proc_pid_status(5).
fn ignored(status: &str) -> Option<u64> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_is_read() {
        assert_eq!(ignored("Name:\tx\nSigIgn:\t0000000000001001\n"), Some(0x1001));
        assert_eq!(ignored("nothing"), None);
    }
}
