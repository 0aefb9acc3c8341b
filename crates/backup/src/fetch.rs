//! Reading single chunks of publications, for clones whose blocks are fetched when they are read.
//!
//! A chunk that is not there, or is not as it was written, is an answer; a target that cannot be read is
//! an error, and may be there later. A directory of a disk that is not mounted has no chunks either, so
//! the head is read before a chunk counts as missing or damaged.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use crate::page::SLOTS;
use crate::{BackupError, ChunkId, Target};

/// Lists that are kept in memory, of at most 128 KiB for pages and 256 KiB for roots: a page is the list of 1 GiB.
const LISTS: usize = 64;

/// The answer about a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// All zero.
    Zero,
    /// Its content.
    Data(Vec<u8>),
    /// The target does not have it.
    Missing,
    /// It, or a list on the way to it, is not as it was written: the reason.
    Damaged(String),
}

/// Reads single chunks of any publications of a target.
pub struct Fetcher {
    target: Arc<Target>,
    /// Lists that were read last, the newest at the end.
    lists: Mutex<VecDeque<(ChunkId, Arc<Vec<ChunkId>>)>>,
}

impl Fetcher {
    /// Reads from this target.
    pub fn new(target: Arc<Target>) -> Fetcher {
        Fetcher { target, lists: Mutex::default() }
    }

    /// Reads the chunk of this number of a volume of `size` bytes whose publication has this root.
    ///
    /// # Errors
    /// The store's: try again later. [`BackupError::OtherTarget`], likewise.
    pub fn fetch(&self, root: ChunkId, size: u64, chunk: u64) -> Result<Fetched, BackupError> {
        let first = self.find(root, size, chunk);
        if matches!(&first, Ok(Fetched::Missing)) || matches!(&first, Err(error) if error.is_damage()) {
            self.target.is_there()?;
            // it may have come back since the first look
            return match self.find(root, size, chunk) {
                Err(error) if error.is_damage() => Ok(Fetched::Damaged(error.to_string())),
                found => found,
            };
        }
        first
    }

    fn find(&self, root: ChunkId, size: u64, chunk: u64) -> Result<Fetched, BackupError> {
        let slots = SLOTS as u64;
        let pages = self.list(root, self.target.purpose().pages_of(size))?;
        let beyond = || BackupError::Damaged { of: self.target.purpose(), name: root.path(), why: format!("it has no chunk {chunk}") };
        let entry = |list: &[ChunkId], at: u64| usize::try_from(at).ok().and_then(|at| list.get(at)).copied();
        let page = entry(&pages, chunk / slots).ok_or_else(beyond)?;
        let id = entry(&self.list(page, SLOTS)?, chunk % slots).ok_or_else(beyond)?;
        if id.is_zero() {
            return Ok(Fetched::Zero);
        }
        Ok(self.target.find_chunk(id)?.map_or(Fetched::Missing, Fetched::Data))
    }

    fn list(&self, id: ChunkId, count: usize) -> Result<Arc<Vec<ChunkId>>, BackupError> {
        if id.is_zero() {
            return Ok(Arc::new(vec![ChunkId::ZERO; count]));
        }
        // held while it is read: others wait for the same list
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = lists.iter().position(|(other, _)| *other == id)
            && let Some(kept) = lists.remove(at)
        {
            let list = Arc::clone(&kept.1);
            lists.push_back(kept);
            return Ok(list);
        }
        let list = Arc::new(self.target.ids(id, count)?);
        lists.push_back((id, Arc::clone(&list)));
        while lists.len() > LISTS {
            lists.pop_front();
        }
        Ok(list)
    }
}
