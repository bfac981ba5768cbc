//! What the tests share.
#![allow(dead_code)]

pub mod faulty;
pub mod pool;
pub mod sshd;
