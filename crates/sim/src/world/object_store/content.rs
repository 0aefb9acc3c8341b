//! Content of objects, and of the answers to reads.

use std::collections::BTreeSet;

use millpond_block::Buf;
use millpond_engine::{BucketError, BucketObject};
use millpond_format::{BatchHeader, ChunkId, Item, ObjectName, PoolId};

use super::{ObjectStore, RIGHT};
use crate::disk::PAGE;
use crate::oracle::{Verdict, broken};

/// In place of a stream's number in the headers of an object.
const UPLOAD_HEAD: u8 = 2;

impl ObjectStore {
    /// Reads part of an object: right, or as wrong as it is for a while. Returns a word for the trace.
    pub(super) fn read(&mut self, name: ObjectName, offset: u64, length: usize) -> (Result<Buf, BucketError>, &'static str) {
        if self.lost.contains(&name) {
            return (Err(BucketError::Missing), "lost");
        }
        if !self.good && self.rng.below(1000) < self.manners.wrong && !self.wrong.contains_key(&name) {
            let answers = self.rng.between(1, self.manners.wrongs);
            self.wrong.insert(name, answers);
        }
        let Some(left) = self.wrong.get_mut(&name).filter(|left| **left > 0 && !self.good) else {
            return (self.right(name, offset, length), RIGHT);
        };
        *left -= 1;
        match self.rng.below(5) {
            0 => (Err(BucketError::Missing), "missing"),
            1 => (Err(BucketError::Damaged), "damaged"),
            2 => {
                let whole = self.right(name, offset, length);
                let pages = self.rng.index(length / PAGE);
                (whole.map(|whole| part(&whole.bytes()[..pages * PAGE], pages * PAGE)), "cut off")
            }
            3 => {
                let others: Vec<ObjectName> = self.objects.keys().filter(|other| **other != name).copied().collect();
                if others.is_empty() {
                    return (Err(BucketError::Missing), "missing");
                }
                let other = *self.rng.pick(&others);
                let bytes = self.objects.get(&other).and_then(|object| object.get(offset as usize..)).unwrap_or_default();
                (Ok(part(&bytes[..bytes.len().min(length)], length)), "foreign")
            }
            _ => {
                let mut right = self.right(name, offset, length);
                let (at, bit) = (self.rng.index(length), self.rng.below(8));
                right.iter_mut().for_each(|buf| buf.bytes_mut()[at] ^= 1 << bit);
                (right, "rotten")
            }
        }
    }

    /// Returns part of an object as it was created, in a buffer that may be longer.
    pub(super) fn right(&mut self, name: ObjectName, offset: u64, length: usize) -> Result<Buf, BucketError> {
        let spare = if self.rng.percent(20) { PAGE } else { 0 };
        let begin = offset as usize;
        let bytes = self.objects.get(&name).and_then(|object| object.get(begin..begin + length)).ok_or(BucketError::Missing)?;
        Ok(part(bytes, length + spare))
    }

    /// Returns whether wrong answers may have failed a request: of an object that is lost, or wrong
    /// twice.
    pub(in crate::world) fn may_fail(&self) -> bool {
        self.manners.wrongs > 1 || !self.lost.is_empty()
    }

    /// Reads an object for an audit.
    pub(in crate::world) fn peek(&self, name: ObjectName, offset: u64, out: &mut [u8]) {
        let begin = offset as usize;
        let bytes = self.objects.get(&name).and_then(|object| object.get(begin..)).unwrap_or_default();
        let length = bytes.len().min(out.len());
        out.fill(0);
        out[..length].copy_from_slice(&bytes[..length]);
    }

    /// INV-OBJ-2: requires each object of the engine's table, with its pages, to exist and to have
    /// been reported. The store may have more.
    pub(in crate::world) fn compare(&self, table: &[BucketObject]) -> Verdict {
        for BucketObject { name, pages, .. } in table {
            let there = self.objects.get(name).map(|object| object.len() / PAGE);
            if !self.confirmed.contains(name) || there != Some(*pages as usize) {
                return broken(format!("INV-OBJ-2: the pool has object {name} of {pages} pages, and the bucket {there:?}"));
            }
        }
        Ok(())
    }

    /// Loses objects for good: some or all of these, or else some of the others. Returns their number.
    pub(in crate::world) fn lose(&mut self, table: &[BucketObject], of_table: bool) -> usize {
        let table: BTreeSet<ObjectName> = table.iter().map(|object| object.name).collect();
        let mut names: Vec<ObjectName> = self.objects.keys().filter(|name| table.contains(name) == of_table).copied().collect();
        let most = *self.rng.pick(&[1, 3, usize::MAX]);
        self.rng.shuffle(&mut names);
        names.truncate(most);
        self.lost.extend(names);
        self.lost.len()
    }
}

/// Returns the chunks of an object, which has to be its head and batches of moves, one after another, each
/// with its segment and page.
///
/// # Errors
/// The fault, in words.
pub(super) fn chunks_of(object: &[u8], pool: PoolId) -> Result<Vec<ChunkId>, String> {
    let (mut chunks, mut page, mut segment) = (Vec::new(), 1, None);
    while page * PAGE < object.len() {
        let (header, items) = BatchHeader::decode(&object[page * PAGE..]).map_err(|error| format!("page {page} is no header: {error}"))?;
        let of = *segment.get_or_insert(header.segment);
        if header.stream != UPLOAD_HEAD || header.pool != pool || header.offset as usize != page || header.segment != of {
            return Err(format!("the header at page {page} is wrong: {header:?}"));
        }
        for item in items {
            let Item::Move(moved) = item else { return Err(format!("the header at page {page} has {item:?}")) };
            chunks.push(moved.chunk);
        }
        page += usize::from(header.pages) + header.payload as usize;
    }
    if page * PAGE == object.len() { Ok(chunks) } else { Err(format!("its batches end at page {page}")) }
}

/// A buffer of this length that begins with these bytes; the others are no content.
fn part(bytes: &[u8], length: usize) -> Buf {
    let mut buf = Buf::zeroed(length);
    let target = buf.bytes_mut();
    target.fill(0xbe);
    target[..bytes.len()].copy_from_slice(bytes);
    buf
}
