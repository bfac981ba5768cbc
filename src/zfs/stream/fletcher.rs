//! Fletcher-4, the checksum of ZFS send streams: four running 64-bit sums over 32-bit words.
//!
//! With `a`, `b`, `c`, `d` starting at zero, every word `x` does `a += x; b += a; c += b; d += c`, modulo 2^64. A word that
//! has `m` words from itself to the end therefore counts 1, m, m(m+1)/2 and m(m+1)(m+2)/6 times in the four sums. That is
//! what lets long runs be summed in independent lanes, which the compiler turns into vector code, and put together later.

use super::record::ByteOrder;

/// Words summed side by side. Four lanes of four 64-bit sums fill eight SSE2 registers and leave room for the words.
const LANES: usize = 4;
/// Bytes that all lanes take in one step.
const STEP: usize = LANES * 4;
/// Bytes below which putting the lanes together costs more than they gain.
const LANES_PAY_FROM: usize = 512;

/// A running Fletcher-4 sum over bytes that arrive in pieces of any length.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fletcher4 {
    sums: [u64; 4],
    /// The bytes of a word that is not whole yet.
    partial: [u8; 4],
    partial_len: usize,
}

impl Fletcher4 {
    /// A sum over nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// The four sums over the whole words so far. One to three bytes of a word that is not whole are not counted.
    pub fn sums(&self) -> [u64; 4] {
        self.sums
    }

    /// Adds bytes, read as 32-bit words in `order`.
    pub fn update(&mut self, order: ByteOrder, bytes: &[u8]) {
        match order {
            ByteOrder::Little => self.update_with(u32::from_le_bytes, bytes),
            ByteOrder::Big => self.update_with(u32::from_be_bytes, bytes),
        }
    }

    #[inline(always)]
    fn update_with(&mut self, word: impl Fn([u8; 4]) -> u32 + Copy, bytes: &[u8]) {
        let Some(bytes) = self.complete_partial(word, bytes) else {
            return;
        };
        let (lanes, rest) = match bytes.len() {
            0..LANES_PAY_FROM => (&bytes[..0], bytes),
            len => bytes.split_at(len - len % STEP),
        };
        if !lanes.is_empty() {
            let appended = sum_in_lanes(word, lanes);
            self.append(appended, (lanes.len() / 4) as u64);
        }
        let (words, tail) = rest.as_chunks::<4>();
        for &bytes in words {
            self.add(word(bytes));
        }
        self.partial[..tail.len()].copy_from_slice(tail);
        self.partial_len = tail.len();
    }

    /// Fills up the word left over from before, and gives back what follows it; `None` if it still is not whole.
    #[inline(always)]
    fn complete_partial<'b>(&mut self, word: impl Fn([u8; 4]) -> u32, bytes: &'b [u8]) -> Option<&'b [u8]> {
        if self.partial_len == 0 {
            return Some(bytes);
        }
        let (now, rest) = bytes.split_at(bytes.len().min(self.partial.len() - self.partial_len));
        self.partial[self.partial_len..][..now.len()].copy_from_slice(now);
        self.partial_len += now.len();
        if self.partial_len < self.partial.len() {
            return None;
        }
        self.add(word(self.partial));
        self.partial_len = 0;
        Some(rest)
    }

    #[inline(always)]
    fn add(&mut self, word: u32) {
        let [a, b, c, d] = &mut self.sums;
        *a = a.wrapping_add(u64::from(word));
        *b = b.wrapping_add(*a);
        *c = c.wrapping_add(*b);
        *d = d.wrapping_add(*c);
    }

    /// Goes on by `words` words whose sums, taken from zero, are `appended`.
    fn append(&mut self, appended: [u64; 4], words: u64) {
        let n = u128::from(words);
        // In 128 bits, because the products must be whole before they are divided; 2^40 words are far away.
        let (triangle, tetrahedron) = (n * (n + 1) / 2, n * (n + 1) * (n + 2) / 6);
        let (one, two, three) = (words, triangle as u64, tetrahedron as u64);
        let [a, b, c, d] = self.sums;
        let times = u64::wrapping_mul;
        self.sums = [
            sum([a, appended[0]]),
            sum([b, times(one, a), appended[1]]),
            sum([c, times(one, b), times(two, a), appended[2]]),
            sum([d, times(one, c), times(two, b), times(three, a), appended[3]]),
        ];
    }
}

fn sum<const N: usize>(terms: [u64; N]) -> u64 {
    terms.into_iter().fold(0, u64::wrapping_add)
}

/// The sums, from zero, of bytes whose length is a multiple of [`STEP`].
#[inline(always)]
fn sum_in_lanes(word: impl Fn([u8; 4]) -> u32, bytes: &[u8]) -> [u64; 4] {
    let (mut a, mut b, mut c, mut d) = ([0u64; LANES], [0u64; LANES], [0u64; LANES], [0u64; LANES]);
    let (steps, _) = bytes.as_chunks::<STEP>();
    for step in steps {
        let (words, _) = step.as_chunks::<4>();
        for lane in 0..LANES {
            a[lane] = a[lane].wrapping_add(u64::from(word(words[lane])));
            b[lane] = b[lane].wrapping_add(a[lane]);
            c[lane] = c[lane].wrapping_add(b[lane]);
            d[lane] = d[lane].wrapping_add(c[lane]);
        }
    }
    join_lanes(a, b, c, d)
}

/// Puts the lanes together.
///
/// A word in lane `j` that has `w` words from itself to the end of its lane has `m = 4w - j` to the end of the whole. The
/// lane's own sums count it 1, w, w(w+1)/2 and w(w+1)(w+2)/6 times; writing 1, m, m(m+1)/2 and m(m+1)(m+2)/6 in terms of
/// those gives the factors below, which are whole numbers.
fn join_lanes(a: [u64; LANES], b: [u64; LANES], c: [u64; LANES], d: [u64; LANES]) -> [u64; 4] {
    const { assert!(LANES == 4, "the factors below are those of four lanes") };
    let times = u64::wrapping_mul;
    let minus = u64::wrapping_neg;
    let mut joined = [0u64; 4];
    for lane in 0..LANES {
        let (a, b, c, d, j) = (a[lane], b[lane], c[lane], d[lane], lane as u64);
        let pairs = j * j.saturating_sub(1) / 2;
        let triples = j * j.saturating_sub(1) * j.saturating_sub(2) / 6;
        joined = [
            sum([joined[0], a]),
            sum([joined[1], times(4, b), minus(times(j, a))]),
            sum([joined[2], times(16, c), minus(times(6 + 4 * j, b)), times(pairs, a)]),
            sum([
                joined[3],
                times(64, d),
                minus(times(48 + 16 * j, c)),
                times(4 + 4 * j + 2 * j * j, b),
                minus(times(triples, a)),
            ]),
        ];
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(order: ByteOrder, bytes: &[u8]) -> [u64; 4] {
        let mut s = [0u64; 4];
        for chunk in bytes.chunks_exact(4) {
            let chunk = [chunk[0], chunk[1], chunk[2], chunk[3]];
            let word = match order {
                ByteOrder::Little => u32::from_le_bytes(chunk),
                ByteOrder::Big => u32::from_be_bytes(chunk),
            };
            s[0] = s[0].wrapping_add(u64::from(word));
            for i in 1..4 {
                s[i] = s[i].wrapping_add(s[i - 1]);
            }
        }
        s
    }

    fn noise(len: usize) -> Vec<u8> {
        let mut x = 0x9e37_79b9_7f4a_7c15u64;
        std::iter::repeat_with(|| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 32) as u8
        })
        .take(len)
        .collect()
    }

    #[test]
    fn lanes_agree_with_the_definition_at_every_length_and_in_both_byte_orders() {
        for len in (0..1200).chain([4096, 65_536, 131_072, 1_000_004]) {
            let bytes = noise(len);
            for order in [ByteOrder::Little, ByteOrder::Big] {
                let mut sum = Fletcher4::new();
                sum.update(order, &bytes);
                assert_eq!(sum.sums(), plain(order, &bytes), "{len} bytes, {order:?}");
            }
        }
    }

    #[test]
    fn full_words_overflow_the_sums_the_same_way() {
        let bytes = vec![0xff; 16 << 20];
        let mut sum = Fletcher4::new();
        sum.update(ByteOrder::Little, &bytes);
        assert_eq!(sum.sums(), plain(ByteOrder::Little, &bytes));
    }

    #[test]
    fn any_split_gives_the_same_sums() {
        let bytes = noise(6000);
        let whole = plain(ByteOrder::Big, &bytes);
        for piece in [1, 2, 3, 5, 7, 511, 512, 513, 517, 1999, 5999] {
            let mut sum = Fletcher4::new();
            bytes.chunks(piece).for_each(|part| sum.update(ByteOrder::Big, part));
            assert_eq!(sum.sums(), whole, "pieces of {piece}");
        }
    }
}
