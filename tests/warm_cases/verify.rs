//! `--verify`: how much is still cold.
//!
//! What is warm is slow here as well, and what is cold much slower, so that no busy machine makes the one the other.

use std::time::Duration;

use crate::run::{MIB, Place, one, touched, volume};
use crate::support::lazy_volume::Settings;

const CHUNKS: u64 = 16;

fn slow() -> Settings {
    Settings {
        size: CHUNKS * MIB / 2,
        cold_latency: Duration::from_millis(600),
        warm_latency: Duration::from_millis(40),
        ..Settings::default()
    }
}

#[test]
fn a_cold_volume_and_the_same_when_it_is_warm() {
    let Some(volumes) = one(slow()) else { return };
    let place = Place::new();
    let run = place.warm(&format!("--verify=all --json {}", volume(&volumes, 0))).exit(3);
    let verified = &run.events_of("verified")[0]["volumes"][0];
    assert_eq!(verified["looked_at"], CHUNKS, "{run}");
    assert!(verified["cold"].as_u64().unwrap() > 0, "{run}");
    assert_eq!(verified["failed"], 0);

    volumes.reset(0);
    place.warm(&volume(&volumes, 0)).silent();
    assert_eq!(volumes.cold_left(0), 0);
    let run = place.warm(&format!("--verify=all --json {}", volume(&volumes, 0))).exit(0);
    let verified = &run.events_of("verified")[0]["volumes"][0];
    assert_eq!((&verified["looked_at"], &verified["cold"]), (&CHUNKS.into(), &0.into()), "{run}");
    // A whole look reads each block twice more, and none of it counts as warmed up.
    assert!(touched(&volumes, 0).values().all(|times| *times == 3));
    let run = place.warm(&format!("--verify=4 {}", volume(&volumes, 0))).exit(0);
    run.says(&["0 of 4 blocks looked at were cold", "of 16 in all"]);
}

/// A sample, of the half that was left out.
#[test]
fn what_was_left_out_is_cold() {
    let Some(volumes) = one(slow()) else { return };
    let place = Place::new();
    place.warm(&format!("--length {} {}", CHUNKS / 2 * MIB / 2, volume(&volumes, 0))).silent();
    assert_eq!(volumes.cold_left(0), CHUNKS / 2);
    let run = place.warm(&format!("--verify --json {}", volume(&volumes, 0))).exit(3);
    let verified = &run.events_of("verified")[0]["volumes"][0];
    let cold = verified["cold"].as_u64().unwrap();
    assert!((1..=CHUNKS / 2).contains(&cold), "{run}");
    let line = format!("--verify=all --length {} {}", CHUNKS / 2 * MIB / 2, volume(&volumes, 0));
    place.warm(&line).exit(0).says(&["0 of 8 blocks"]);
}

#[test]
fn blocks_that_can_not_be_read_are_no_good_sign() {
    let settings = Settings { bad: vec![2], cold_latency: Duration::ZERO, ..slow() };
    let Some(volumes) = one(settings) else { return };
    let place = Place::new();
    let run = place.warm(&format!("--retries 0 --verify=all {}", volume(&volumes, 0))).exit(3);
    run.says(&["1 could not be read"]);
    let settings = Settings { bad: (0..CHUNKS).collect(), ..slow() };
    let Some(volumes) = one(settings) else { return };
    place.warm(&format!("--retries 0 --verify=all {}", volume(&volumes, 0))).fails(1, &["answers no read"]);
}
