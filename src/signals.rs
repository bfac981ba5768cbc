//! Which signals end a run.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Those that end it: SIGINT and SIGTERM always, and SIGHUP unless whoever started the program wants it ignored, as
/// `nohup` does. (A shell without job control starts what is in the background with SIGINT ignored, and yet a script that
/// sends it to just that program means it.)
pub fn ending() -> Vec<i32> {
    let ignored = std::fs::read_to_string("/proc/self/status").ok().and_then(|status| ignored(&status)).unwrap_or(0);
    let hangup = (ignored & (1 << (SIGHUP - 1)) == 0).then_some(SIGHUP);
    [SIGINT, SIGTERM].into_iter().chain(hangup).collect()
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
