//! The transforms between a stream and stored objects: cut, compress, seal, and back; and the ordered parallel
//! map that runs them on all cores. No I/O of their own.

#![warn(missing_docs)]

pub mod buffers;
pub mod codec;
pub mod ordered;
pub mod payload;
pub mod seal;
pub mod segment;
