//! Which blocks of a volume are read, and in what order: a pure value.

use std::ops::Range;

use thiserror::Error;

use super::blockset::BlockSet;

/// Bytes of a block, unless told otherwise: what EBS snapshots are made of (`BlockSize` of the EBS direct APIs).
pub const DEFAULT_STEP: u64 = 512 * 1024;

/// The blocks of a whole volume, counted from its first byte, whatever part of it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Bytes of the volume.
    pub size: u64,
    /// Bytes of a block.
    pub step: u64,
}

impl Grid {
    /// How many blocks the volume has; the last may be short.
    pub fn blocks(&self) -> u64 {
        self.size.div_ceil(self.step)
    }

    /// The blocks that any byte of `bytes` lies in.
    pub fn blocks_of(&self, bytes: &Range<u64>) -> Range<u64> {
        if bytes.is_empty() {
            return 0..0;
        }
        (bytes.start / self.step).min(self.blocks())..bytes.end.div_ceil(self.step).min(self.blocks())
    }

    /// Bytes of the blocks in `set`.
    pub fn bytes_of(&self, set: &BlockSet) -> u64 {
        let last = self.blocks().saturating_sub(1);
        let short = if set.contains(last) { self.blocks() * self.step - self.size } else { 0 };
        set.len() * self.step - short
    }
}

/// What a person asked for, in the volume's own bytes and blocks.
#[derive(Clone, Debug, Default)]
pub struct Wishes {
    /// Parts of the volume, such as partitions. None: all of it.
    pub parts: Vec<Range<u64>>,
    /// What comes first, in order. Bytes.
    pub first: Vec<Range<u64>>,
    /// Nothing but what comes first.
    pub only_first: bool,
    /// Only these blocks, as the snapshot has them.
    pub blocks: Option<Vec<u64>>,
}

/// Wishes that can't be had.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PlanError {
    /// The list of blocks is of a larger volume.
    #[error("block {block} is beyond the end of the volume, which has {blocks} blocks")]
    BeyondTheEnd {
        /// Its number.
        block: u64,
        /// What there are.
        blocks: u64,
    },
    /// More blocks than a bitmap in memory should have.
    #[error("{blocks} blocks are too many: take a larger --step")]
    TooMany {
        /// How many.
        blocks: u64,
    },
}

/// No plan has more blocks: a bitmap of them is 512 MiB.
const MAX_BLOCKS: u64 = 1 << 32;

/// The blocks of one volume that are to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The volume's blocks.
    pub grid: Grid,
    /// All that are to be read.
    pub wanted: BlockSet,
    /// Which of them come first, in order; ranges may overlap and reach beyond what is wanted.
    pub first: Vec<Range<u64>>,
}

impl Plan {
    /// Makes the plan.
    pub fn new(grid: Grid, wishes: &Wishes) -> Result<Self, PlanError> {
        let blocks = grid.blocks();
        if blocks > MAX_BLOCKS {
            return Err(PlanError::TooMany { blocks });
        }
        let mut wanted = BlockSet::new(blocks);
        if wishes.parts.is_empty() {
            wanted.insert_range(0..blocks);
        }
        wishes.parts.iter().for_each(|part| wanted.insert_range(grid.blocks_of(part)));
        if let Some(listed) = &wishes.blocks {
            if let Some(&block) = listed.iter().find(|&&block| block >= blocks) {
                return Err(PlanError::BeyondTheEnd { block, blocks });
            }
            let mut present = BlockSet::new(blocks);
            for &block in listed {
                present.insert(block);
            }
            wanted.intersect(&present);
        }
        let first: Vec<Range<u64>> = wishes.first.iter().map(|bytes| grid.blocks_of(bytes)).collect();
        if wishes.only_first {
            let mut only = BlockSet::new(blocks);
            first.iter().for_each(|range| only.insert_range(range.clone()));
            wanted.intersect(&only);
        }
        Ok(Self { grid, wanted, first })
    }

    /// How many of the wanted blocks come first.
    pub fn first_blocks(&self) -> u64 {
        let mut first = BlockSet::new(self.grid.blocks());
        self.first.iter().for_each(|range| first.insert_range(range.clone()));
        first.intersect(&self.wanted);
        first.len()
    }

    /// Blocks of the volume that stay as they are.
    pub fn left_out(&self) -> u64 {
        self.grid.blocks() - self.wanted.len()
    }
}

/// Goes through what is still to be read, in the order of a plan.
#[derive(Debug)]
pub struct Walk {
    first: std::vec::IntoIter<Range<u64>>,
    current: Range<u64>,
    rest: u64,
}

impl Walk {
    /// From the beginning.
    pub fn new(first: Vec<Range<u64>>) -> Self {
        Self { first: first.into_iter(), current: 0..0, rest: 0 }
    }

    /// The next block of `todo`; it is the caller's to take it out.
    pub fn next(&mut self, todo: &BlockSet) -> Option<u64> {
        loop {
            if let Some(block) = todo.next_from(self.current.start).filter(|block| self.current.contains(block)) {
                self.current.start = block + 1;
                return Some(block);
            }
            match self.first.next() {
                Some(range) => self.current = range,
                None => break,
            }
        }
        self.current = 0..0;
        let block = todo.next_from(self.rest)?;
        self.rest = block + 1;
        Some(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = 1024;

    fn grid(size: u64) -> Grid {
        Grid { size, step: DEFAULT_STEP }
    }

    fn order(plan: &Plan) -> Vec<u64> {
        let (mut todo, mut walk, mut order) = (plan.wanted.clone(), Walk::new(plan.first.clone()), Vec::new());
        while let Some(block) = walk.next(&todo) {
            todo.remove(block);
            order.push(block);
        }
        order
    }

    #[test]
    fn a_volume_has_all_its_blocks_the_last_one_short() {
        for (size, blocks) in [(1, 1), (512 * K, 1), (512 * K + 1, 2), (5 * 512 * K, 5)] {
            let plan = Plan::new(grid(size), &Wishes::default()).unwrap();
            assert_eq!(order(&plan), (0..blocks).collect::<Vec<_>>());
            assert_eq!((plan.left_out(), plan.grid.bytes_of(&plan.wanted)), (0, size));
        }
    }

    /// Counted from the beginning of a partition, the last block of one that begins within a block would be missed.
    #[test]
    fn parts_are_counted_on_the_grid_of_the_whole_volume() {
        let part = 256 * K..256 * K + 5 * 1024 * K;
        let plan = Plan::new(grid(100 * 512 * K), &Wishes { parts: vec![part], ..Wishes::default() }).unwrap();
        assert_eq!(order(&plan), (0..=10).collect::<Vec<_>>());
        let parts = vec![0..1, 512 * K * 7 + 511 * K..512 * K * 8 + 1, 3..4, 10..10, 512 * K * 99..u64::MAX];
        let plan = Plan::new(grid(100 * 512 * K), &Wishes { parts, ..Wishes::default() }).unwrap();
        assert_eq!(order(&plan), [0, 7, 8, 99]);
        assert_eq!(plan.left_out(), 96);
    }

    #[test]
    fn what_comes_first_comes_once() {
        let first = vec![512 * K * 6..512 * K * 8, 0..1, 512 * K * 7..512 * K * 9, 512 * K * 5000..512 * K * 5001];
        let wishes = Wishes { first, ..Wishes::default() };
        let plan = Plan::new(grid(10 * 512 * K), &wishes).unwrap();
        assert_eq!(order(&plan), [6, 7, 0, 8, 1, 2, 3, 4, 5, 9]);
        assert_eq!(plan.first_blocks(), 4);
        let plan = Plan::new(grid(10 * 512 * K), &Wishes { only_first: true, ..wishes }).unwrap();
        assert_eq!(order(&plan), [6, 7, 0, 8]);
        assert_eq!(plan.left_out(), 6);
    }

    #[test]
    fn a_list_of_blocks_is_taken_as_a_set() {
        let listed = |blocks: &[u64]| Wishes { blocks: Some(blocks.to_vec()), ..Wishes::default() };
        assert_eq!(order(&Plan::new(grid(10 * 512 * K), &listed(&[9, 2, 2, 4])).unwrap()), [2, 4, 9]);
        assert!(order(&Plan::new(grid(10 * 512 * K), &listed(&[])).unwrap()).is_empty());
        let error = Plan::new(grid(10 * 512 * K), &listed(&[1, 10])).unwrap_err();
        assert_eq!(error, PlanError::BeyondTheEnd { block: 10, blocks: 10 });
    }

    #[test]
    fn offsets_beyond_4_gib_and_2_tib() {
        let tib = 1u64 << 40;
        let plan = Plan::new(
            grid(16 * tib),
            &Wishes { parts: std::iter::once(4 * tib - 1..4 * tib + 1).collect(), ..Wishes::default() },
        )
        .unwrap();
        let at = 4 * tib / DEFAULT_STEP;
        assert_eq!(order(&plan), [at - 1, at]);
        assert!(Plan::new(Grid { size: u64::MAX, step: 4096 }, &Wishes::default()).is_err());
    }
}
