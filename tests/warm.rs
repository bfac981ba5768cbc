//! `warm` on volumes that are loaded lazily: every planned block is touched once, and what is told of it is true.

mod support {
    pub mod lazy_volume;
    pub mod loop_device;
}

#[path = "warm_cases/devices.rs"]
mod devices;
#[path = "warm_cases/faults.rs"]
mod faults;
#[path = "warm_cases/files.rs"]
mod files;
#[path = "warm_cases/first.rs"]
mod first;
#[path = "warm_cases/names.rs"]
mod names;
#[path = "warm_cases/resume.rs"]
mod resume;
#[path = "warm_cases/run.rs"]
mod run;
#[path = "warm_cases/verify.rs"]
mod verify;
#[path = "warm_cases/which.rs"]
mod which;
#[path = "warm_cases/words.rs"]
mod words;
