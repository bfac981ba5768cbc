//! The blocks that a snapshot has, as `aws ebs list-snapshot-blocks` prints them.

use std::io::Read;

use serde::Deserialize;
use thiserror::Error;

/// One page. Everything else in it (tokens, checksums, times) is of no interest here.
#[derive(Deserialize)]
struct Page {
    #[serde(rename = "Blocks")]
    blocks: Option<Vec<Listed>>,
    #[serde(rename = "ChangedBlocks")]
    changed: Option<Vec<Listed>>,
    #[serde(rename = "BlockSize")]
    block_size: Option<u64>,
    #[serde(rename = "NextToken")]
    next: Option<String>,
}

#[derive(Deserialize)]
struct Listed {
    #[serde(rename = "BlockIndex")]
    index: u64,
}

/// A list that can't be used.
#[derive(Debug, Error)]
pub enum BlocksError {
    /// It is no JSON, or not of that shape.
    #[error("this is no output of \"aws ebs list-snapshot-blocks\": {0}")]
    Malformed(#[from] serde_json::Error),
    /// Nothing there at all.
    #[error("the list of blocks is empty: not a single page")]
    Empty,
    /// Another grid than the one to be read.
    #[error("its blocks have {found} bytes, and --step is {step}")]
    BlockSize {
        /// The list's.
        found: u64,
        /// What was asked for.
        step: u64,
    },
    /// The last page names another one behind it.
    #[error("the list goes on: its last page has a NextToken, and the pages behind it are missing")]
    Cut,
}

/// The block numbers of all pages, one behind the other, in any order. `step`: bytes of a block, as they will be read.
pub fn read(source: impl Read, step: u64) -> Result<Vec<u64>, BlocksError> {
    let (mut blocks, mut pages, mut goes_on) = (Vec::new(), 0, false);
    for page in serde_json::Deserializer::from_reader(source).into_iter::<Page>() {
        let page = page?;
        pages += 1;
        let listed = [page.blocks, page.changed].into_iter().flatten().collect::<Vec<_>>();
        if listed.is_empty() {
            return Err(BlocksError::Malformed(serde::de::Error::custom("a page without \"Blocks\"")));
        }
        if let Some(found) = page.block_size.filter(|found| *found != step) {
            return Err(BlocksError::BlockSize { found, step });
        }
        blocks.extend(listed.into_iter().flatten().map(|block| block.index));
        goes_on = page.next.is_some_and(|token| !token.is_empty());
    }
    match (pages, goes_on) {
        (0, _) => Err(BlocksError::Empty),
        (_, true) => Err(BlocksError::Cut),
        _ => Ok(blocks),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(indexes: &[u64], rest: &str) -> String {
        let blocks: Vec<String> =
            indexes.iter().map(|n| format!("{{\"BlockIndex\": {n}, \"BlockToken\": \"AAAB\"}}")).collect();
        format!(
            "{{\"Blocks\": [{}], \"ExpiryTime\": \"2026-01-01T00:00:00Z\", \"VolumeSize\": 8{rest}}}",
            blocks.join(",")
        )
    }

    #[test]
    fn pages_follow_one_another() {
        let two = page(&[7, 3], ", \"BlockSize\": 524288, \"NextToken\": \"x\"")
            + "\n"
            + &page(&[3], ", \"BlockSize\": 524288");
        assert_eq!(read(two.as_bytes(), 524_288).unwrap(), [7, 3, 3]);
        assert!(read(page(&[], "").as_bytes(), 524_288).unwrap().is_empty());
    }

    #[test]
    fn what_is_no_such_list_is_refused() {
        let words = |text: &str| read(text.as_bytes(), 524_288).unwrap_err().to_string();
        assert!(words("").contains("not a single page"));
        assert!(words("hello").contains("no output of"));
        assert!(words("{}").contains("without \"Blocks\""));
        assert!(words("[1, 2]").contains("no output of"));
        assert!(words(&page(&[1], "")[..40]).contains("no output of"));
        assert!(words(&page(&[1], ", \"BlockSize\": 4096")).contains("4096 bytes"));
        assert!(words(&page(&[1], ", \"NextToken\": \"more\"")).contains("goes on"));
        assert!(words("{\"Blocks\": [{\"BlockIndex\": -1}]}").contains("no output of"));
    }
}
