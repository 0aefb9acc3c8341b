//! Identities of blocks in chunks, from the headers that were written with them.

use millpond_format::{BLOCK_UNITS, BatchHeader, BlockIdentity, BlockNo, ChunkId, Item, Move, PoolId, SegmentId, StoredBlock};
use rustc_hash::FxHashMap;

use crate::space::{Chunk, Slots};

/// Returns the identities of the blocks of a chunk that was never moved, by slot, from the headers
/// between them.
pub(crate) fn original_identities(bytes: &[u8], pool: PoolId, chunk: ChunkId) -> Vec<(u32, BlockIdentity)> {
    let mut found = Vec::new();
    let mut page = 0usize;
    while let Some(rest) = bytes.get(page * 4096..).filter(|rest| !rest.is_empty()) {
        let Ok((header, items)) = BatchHeader::decode(rest) else { break };
        if header.pool != pool || header.chunk != chunk || header.grain == 0 {
            break;
        }
        let grain = u32::from(header.grain);
        let mut unit = (page as u32 + u32::from(header.pages)) * BLOCK_UNITS;
        for (volume, block, stored) in items.into_iter().filter_map(Item::into_blocks) {
            for (i, StoredBlock { crc, units, coding, mark }) in (0u64..).zip(stored) {
                let identity = BlockIdentity { volume, block: BlockNo(block.0 + i), lsn: header.lsn, crc, units, coding, mark };
                found.push((unit / grain, identity));
                unit += u32::from(units);
            }
        }
        page += usize::from(header.pages) + header.payload as usize;
    }
    found
}

/// The moves in one header.
#[derive(Debug)]
pub(crate) struct Moves {
    /// Page of the segment where their payload begins.
    payload: u32,
    moves: FxHashMap<ChunkId, Move>,
}

impl Moves {
    /// Decodes the header in `bytes`; returns its moves and its pages, if it is one of this pool
    /// for this place.
    pub(crate) fn decode(bytes: &[u8], pool: PoolId, segment: SegmentId, page: u32) -> Option<(Moves, usize)> {
        let (header, items) = BatchHeader::decode(bytes).ok()?;
        if (header.pool, header.segment, header.offset) != (pool, segment, page) {
            return None;
        }
        let moves = items.into_iter().filter_map(|item| if let Item::Move(moved) = item { Some((moved.chunk, moved)) } else { None });
        Some((Moves { payload: page + u32::from(header.pages), moves: moves.collect() }, usize::from(header.pages)))
    }

    /// Returns the identities of a chunk's blocks, by slot. `None` when this header did not move
    /// the chunk: a copy that missed the write may still have a sound header of an earlier use of
    /// the segment at the same place.
    pub(crate) fn identities(&self, id: ChunkId, chunk: &Chunk) -> Option<Vec<(u32, BlockIdentity)>> {
        let moved = self.moves.get(&id).filter(|moved| chunk.is_moved_by(moved, self.payload))?;
        let present = Slots::from_words(moved.present.clone());
        let mut slots = present.iter();
        let mut found = Vec::with_capacity(moved.identities.len());
        for identity in &moved.identities {
            let Some(slot) = slots.next() else { break };
            found.push((slot, *identity));
            // a packed block has a slot for each of its units
            let more = u32::from(identity.units) / u32::from(moved.grain.max(1));
            (1..more).for_each(|_| {
                slots.next();
            });
        }
        Some(found)
    }
}
