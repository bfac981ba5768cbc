//! The failing point moved through whole commands: every operation of the store, every kind of fault, and the
//! source, the sink, the process itself and an attacker besides.
//!
//! What must hold is the same everywhere: no manifest, or the restore is identical; and a restore is identical, or
//! an error after a true beginning.

mod support {
    pub mod faulty;
    pub mod pool;
}

#[path = "walks/attacker.rs"]
mod attacker;
#[path = "walks/backup.rs"]
mod backup;
#[path = "walks/bench.rs"]
mod bench;
#[path = "walks/keys.rs"]
mod keys;
#[path = "walks/killed.rs"]
mod killed;
#[path = "walks/machine.rs"]
mod machine;
#[path = "walks/restore.rs"]
mod restore;
#[path = "walks/source.rs"]
mod source;
