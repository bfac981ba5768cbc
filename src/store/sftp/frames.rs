//! Looks at the frames of a server's SFTP packets before the SFTP library does.
//!
//! The library reserves what a length field asks for and subtracts header sizes from it unchecked. That is fine
//! with a friend; a server that nobody needs to trust must not get that far. So every length is held against
//! what a packet of its type can need, and the first one that does not fit ends the session.

use thiserror::Error;

use super::text::harmless;

/// What the library takes as a greeting.
const GREETING_MAX: u32 = 4096;
/// OpenSSH sends at most 256 KiB in one packet; some servers put a little more into a listing.
const PACKET_MAX: u32 = 1 << 20;
/// Status, attributes and extended replies are short.
const SHORT_MAX: u32 = 64 << 10;
/// The protocol's limit.
const HANDLE_MAX: u32 = 256;
/// Type and request number.
const PREFIX: u32 = 5;
/// The answer to `limits@openssh.com`, four numbers of 64 bits. No other extended reply is as long.
const LIMITS_REPLY: u32 = PREFIX + 32;

const VERSION: u8 = 2;
const STATUS: u8 = 101;
const HANDLE: u8 = 102;
const DATA: u8 = 103;
const NAME: u8 = 104;
const ATTRS: u8 = 105;
const EXTENDED_REPLY: u8 = 201;

/// Why what came is not SFTP.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// Text in place of the greeting.
    #[error("the server sent text before SFTP began (does a shell start-up file there print something?): {0}")]
    Noise(String),
    /// A packet type that no server sends.
    #[error("the server sent an SFTP packet of the unknown type {0}")]
    Type(u8),
    /// A length that a packet of this type cannot have.
    #[error("the server sent an SFTP packet of type {packet_type} with an impossible length {length}")]
    Length {
        /// The packet's type.
        packet_type: u8,
        /// The length that is wrong.
        length: u32,
    },
    /// An answer to `limits@openssh.com` from which no size of a request can be worked out.
    #[error("the server's limits for requests make no sense")]
    Limits,
}

/// Follows the frames in a byte stream that arrives in pieces.
#[derive(Debug, Default)]
pub struct FrameCheck {
    head: Vec<u8>,
    body_left: u64,
    greeted: bool,
}

impl FrameCheck {
    /// Checks the next piece of the stream. After an error nothing more of the stream may be used.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), FrameError> {
        while !bytes.is_empty() {
            if self.body_left > 0 {
                let skip = usize::try_from(self.body_left).unwrap_or(usize::MAX).min(bytes.len());
                self.body_left -= skip as u64;
                bytes = &bytes[skip..];
                continue;
            }
            self.head.push(bytes[0]);
            bytes = &bytes[1..];
            self.check_head(bytes)?;
        }
        Ok(())
    }

    /// Decides as soon as enough of a packet's head is there: its length and type, then, for a packet with a
    /// length inside, that one too.
    fn check_head(&mut self, following: &[u8]) -> Result<(), FrameError> {
        if self.head.len() == 5 {
            self.check_type_and_length(following)?;
        }
        let Some(&packet_type) = self.head.get(4) else { return Ok(()) };
        let length = number_at(&self.head, 0);
        let needed = match packet_type {
            HANDLE | DATA | NAME => 13,
            EXTENDED_REPLY if length == LIMITS_REPLY => 33,
            _ => 5,
        };
        if self.head.len() < needed {
            return Ok(());
        }
        match needed {
            13 => check_inner(packet_type, length, number_at(&self.head, 9))?,
            33 => check_limits(&self.head)?,
            _ => {}
        }
        self.body_left = u64::from(length) + 4 - needed as u64;
        self.head.clear();
        Ok(())
    }

    fn check_type_and_length(&mut self, following: &[u8]) -> Result<(), FrameError> {
        let (length, packet_type) = (number_at(&self.head, 0), self.head[4]);
        if !self.greeted {
            if packet_type != VERSION || !(PREFIX..=GREETING_MAX).contains(&length) {
                let text = [&self.head, &following[..following.len().min(200)]].concat();
                return Err(FrameError::Noise(harmless(&text, 80)));
            }
            self.greeted = true;
            return Ok(());
        }
        let allowed = match packet_type {
            STATUS => PREFIX + 4..=SHORT_MAX,
            HANDLE => PREFIX + 4..=PREFIX + 4 + HANDLE_MAX,
            DATA | NAME => PREFIX + 4..=PACKET_MAX,
            ATTRS => PREFIX + 4..=SHORT_MAX,
            EXTENDED_REPLY => PREFIX..=SHORT_MAX,
            unknown => return Err(FrameError::Type(unknown)),
        };
        if allowed.contains(&length) { Ok(()) } else { Err(FrameError::Length { packet_type, length }) }
    }
}

/// Holds the length (or, in a listing, the count) inside a packet against the packet's own.
fn check_inner(packet_type: u8, length: u32, inner: u32) -> Result<(), FrameError> {
    let room = length - PREFIX - 4;
    let fits = match packet_type {
        // Two strings and the attributes' flags: no entry is smaller than three numbers.
        NAME => u64::from(inner) * 12 <= u64::from(room),
        _ => inner == room,
    };
    if fits { Ok(()) } else { Err(FrameError::Length { packet_type, length: inner }) }
}

/// With a limit beyond 32 bits the library takes the packet's limit less 300 in its place.
fn check_limits(head: &[u8]) -> Result<(), FrameError> {
    let is_huge = |at| number_at(head, at) != 0;
    let packet_is_tiny = !is_huge(9) && number_at(head, 13) < 1024;
    if packet_is_tiny && (is_huge(17) || is_huge(25)) { Err(FrameError::Limits) } else { Ok(()) }
}

fn number_at(head: &[u8], at: usize) -> u32 {
    head[at..at + 4].iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packet(packet_type: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = u32::try_from(body.len() + 1).unwrap().to_be_bytes().to_vec();
        bytes.push(packet_type);
        bytes.extend_from_slice(body);
        bytes
    }

    fn greeting() -> Vec<u8> {
        packet(VERSION, &[0, 0, 0, 3])
    }

    fn after_greeting(bytes: &[u8]) -> Result<(), FrameError> {
        let mut check = FrameCheck::default();
        check.feed(&greeting()).unwrap();
        check.feed(bytes)
    }

    #[test]
    fn good_packets_pass_in_any_pieces() {
        let mut stream = greeting();
        stream.extend(packet(STATUS, &[0; 16]));
        stream.extend(packet(HANDLE, &[0, 0, 0, 1, 0, 0, 0, 4, 1, 2, 3, 4]));
        stream.extend(packet(DATA, &[0, 0, 0, 1, 0, 0, 0, 3, 1, 2, 3]));
        stream.extend(packet(NAME, &[0, 0, 0, 1, 0, 0, 0, 0]));
        stream.extend(packet(EXTENDED_REPLY, &[0, 0, 0, 1]));
        for size in 1..stream.len() {
            let mut check = FrameCheck::default();
            stream.chunks(size).for_each(|piece| check.feed(piece).unwrap());
            assert!(check.head.is_empty() && check.body_left == 0);
        }
    }

    #[test]
    fn noise_is_shown_without_control_characters() {
        let mut check = FrameCheck::default();
        let error = check.feed(b"Welcome \x1b[31mto host\nmore").unwrap_err();
        assert_eq!(error, FrameError::Noise("Welcome ?[31mto host?more".into()));
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused() {
        let length = |packet_type, length| FrameError::Length { packet_type, length };
        let huge = |packet_type: u8| [&[0xff, 0xff, 0xff, 0xff], [packet_type].as_slice()].concat();
        assert_eq!(after_greeting(&huge(DATA)), Err(length(DATA, u32::MAX)));
        assert_eq!(after_greeting(&huge(STATUS)), Err(length(STATUS, u32::MAX)));
        assert_eq!(after_greeting(&[0, 0, 0, 1, STATUS]), Err(length(STATUS, 1)));
        assert_eq!(after_greeting(&[0, 0, 0, 0, DATA]), Err(length(DATA, 0)));
        assert_eq!(after_greeting(&packet(DATA, &[0, 0, 0, 1, 0, 0, 0, 4, 1, 2, 3])), Err(length(DATA, 4)));
        assert_eq!(after_greeting(&packet(NAME, &[0, 0, 0, 1, 0, 0, 1, 0])), Err(length(NAME, 256)));
        assert_eq!(after_greeting(&greeting()), Err(FrameError::Type(VERSION)));
    }

    #[test]
    fn limits_that_make_no_sense_are_refused() {
        let reply = |packet: u64, read: u64, write: u64| {
            let numbers = [packet, read, write, 0].map(u64::to_be_bytes).concat();
            after_greeting(&packet_of_limits(&numbers))
        };
        assert_eq!(reply(256 << 10, 255 << 10, 255 << 10), Ok(()));
        assert_eq!(reply(0, 0, 0), Ok(()));
        assert_eq!(reply(256 << 10, u64::MAX, u64::MAX), Ok(()));
        assert_eq!(reply(10, u64::MAX, 1), Err(FrameError::Limits));
        assert_eq!(reply(10, 1, u64::MAX), Err(FrameError::Limits));
    }

    fn packet_of_limits(numbers: &[u8]) -> Vec<u8> {
        packet(EXTENDED_REPLY, &[&[0, 0, 0, 1], numbers].concat())
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged_alike_in_any_pieces(bytes in proptest::collection::vec(any::<u8>(), 0..400), size in 1usize..50) {
            let stream = [greeting(), bytes].concat();
            let whole = FrameCheck::default().feed(&stream);
            let mut check = FrameCheck::default();
            let pieces = stream.chunks(size).try_for_each(|piece| check.feed(piece));
            prop_assert_eq!(whole, pieces);
            prop_assert!(check.head.len() <= 33 && check.body_left <= u64::from(PACKET_MAX));
        }
    }
}
