//! What the program does, and what it says, where something is missing, wrong, damaged, forged or cut short; and how
//! its commands decide.

mod support {
    pub mod cli;
    pub mod pool;
    pub mod sshd;
}

#[path = "cases/bases.rs"]
mod bases;
#[path = "cases/damage.rs"]
mod damage;
#[path = "cases/forge.rs"]
mod forge;
#[path = "cases/interrupts.rs"]
mod interrupts;
#[path = "cases/keys.rs"]
mod keys;
#[path = "cases/profiles.rs"]
mod profiles;
#[path = "cases/prune.rs"]
mod prune;
#[path = "cases/restores.rs"]
mod restores;
#[path = "cases/snapshots.rs"]
mod snapshots;
#[path = "cases/sources.rs"]
mod sources;
#[path = "cases/stores.rs"]
mod stores;
#[path = "cases/words.rs"]
mod words;
