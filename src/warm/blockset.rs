//! A set of block numbers, one bit each: 4 MiB for a volume of 16 TiB.

/// Blocks 0 up to a fixed number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockSet {
    words: Vec<u64>,
    /// Blocks from here on can't be in it.
    limit: u64,
    count: u64,
}

impl BlockSet {
    /// An empty set of blocks below `limit`.
    pub fn new(limit: u64) -> Self {
        Self { words: vec![0; limit.div_ceil(64) as usize], limit, count: 0 }
    }

    /// How many blocks are in it.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether `block` is in it.
    pub fn contains(&self, block: u64) -> bool {
        block < self.limit && self.words[(block / 64) as usize] & bit(block) != 0
    }

    /// Blocks 64·n to 64·n + 63, a bit each.
    pub fn word(&self, n: usize) -> u64 {
        self.words[n]
    }

    /// Adds a block; says whether it is new. Blocks beyond the limit are not taken.
    pub fn insert(&mut self, block: u64) -> bool {
        let new = block < self.limit && !self.contains(block);
        if new {
            self.words[(block / 64) as usize] |= bit(block);
            self.count += 1;
        }
        new
    }

    /// Adds a range of blocks, cut at the limit.
    pub fn insert_range(&mut self, blocks: std::ops::Range<u64>) {
        let end = blocks.end.min(self.limit);
        let mut block = blocks.start;
        while block < end {
            let word = (block / 64) as usize;
            if block.is_multiple_of(64) && end - block >= 64 {
                self.count += u64::from(self.words[word].count_zeros());
                self.words[word] = u64::MAX;
                block += 64;
            } else {
                self.insert(block);
                block += 1;
            }
        }
    }

    /// Takes a block out; says whether it was in it.
    pub fn remove(&mut self, block: u64) -> bool {
        let there = self.contains(block);
        if there {
            self.words[(block / 64) as usize] &= !bit(block);
            self.count -= 1;
        }
        there
    }

    /// Adds whatever is in `other`.
    pub fn unite(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word |= other);
        self.count = ones(&self.words);
    }

    /// Takes out whatever is in `other` as well.
    pub fn subtract(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word &= !other);
        self.count = ones(&self.words);
    }

    /// Leaves only what is in `other` as well.
    pub fn intersect(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word &= other);
        self.count = ones(&self.words);
    }

    /// The first block from `from` on that is in it.
    pub fn next_from(&self, from: u64) -> Option<u64> {
        let mut word = (from / 64) as usize;
        let mut bits = *self.words.get(word)? & (u64::MAX << (from % 64));
        while bits == 0 {
            word += 1;
            bits = *self.words.get(word)?;
        }
        Some(word as u64 * 64 + u64::from(bits.trailing_zeros()))
    }

    /// Its blocks, in order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        let mut next = 0;
        std::iter::from_fn(move || {
            let block = self.next_from(next)?;
            next = block + 1;
            Some(block)
        })
    }

    /// Its runs of neighbouring blocks, in order.
    pub fn ranges(&self) -> impl Iterator<Item = std::ops::Range<u64>> + '_ {
        let mut blocks = self.iter().peekable();
        std::iter::from_fn(move || {
            let start = blocks.next()?;
            let mut end = start + 1;
            while blocks.next_if_eq(&end).is_some() {
                end += 1;
            }
            Some(start..end)
        })
    }

    /// Little-endian words, for a file.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// What [`Self::to_bytes`] wrote for the same limit; `None` if it can't be that.
    pub fn from_bytes(bytes: &[u8], limit: u64) -> Option<Self> {
        let (chunks, rest) = bytes.as_chunks::<8>();
        let words: Vec<u64> = chunks.iter().map(|chunk| u64::from_le_bytes(*chunk)).collect();
        let set = Self { count: ones(&words), words, limit };
        let right = rest.is_empty() && set.words.len() as u64 == limit.div_ceil(64) && set.next_from(limit).is_none();
        right.then_some(set)
    }
}

fn bit(block: u64) -> u64 {
    1 << (block % 64)
}

fn ones(words: &[u64]) -> u64 {
    words.iter().map(|word| u64::from(word.count_ones())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_what_was_put_in() {
        let mut set = BlockSet::new(200);
        assert!(set.insert(0) && set.insert(199) && !set.insert(199) && !set.insert(200));
        set.insert_range(60..70);
        set.insert_range(128..1000);
        assert_eq!(set.len(), 1 + 10 + 72);
        assert_eq!(set.ranges().collect::<Vec<_>>(), [0..1, 60..70, 128..200]);
        assert_eq!((set.next_from(1), set.next_from(70), set.next_from(200)), (Some(60), Some(128), None));
        assert!(set.remove(65) && !set.remove(65) && !set.contains(65));
        let mut other = BlockSet::new(200);
        other.insert_range(0..100);
        let mut both = set.clone();
        both.intersect(&other);
        assert_eq!(both.len(), 1 + 9);
        both.unite(&set);
        assert_eq!(both, set);
        set.subtract(&other);
        assert_eq!((set.len(), set.iter().next()), (72, Some(128)));
    }

    #[test]
    fn a_file_of_another_length_or_with_blocks_beyond_the_end_is_refused() {
        let mut set = BlockSet::new(70);
        set.insert_range(3..70);
        let bytes = set.to_bytes();
        assert_eq!(BlockSet::from_bytes(&bytes, 70), Some(set));
        assert_eq!(BlockSet::from_bytes(&bytes[1..], 70), None);
        assert_eq!(BlockSet::from_bytes(&bytes, 69), None);
        assert_eq!(BlockSet::from_bytes(&bytes, 129), None);
    }
}
