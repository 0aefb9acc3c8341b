//! What blocks are whose place is known: from the headers that were written with them.

use millpond_format::{BLOCK_UNITS, BatchHeader, BlockIdentity, BlockNo, ChunkId, Item, Move};
use rustc_hash::FxHashMap;

use crate::space::Slots;

/// What the blocks of a chunk are that was never moved, by slot: from the headers between them.
pub(super) fn original_identities(bytes: &[u8], pool: millpond_format::PoolId, chunk: ChunkId) -> Vec<(u32, BlockIdentity)> {
    let mut found = Vec::new();
    let mut page = 0usize;
    while let Some(rest) = bytes.get(page * 4096..).filter(|rest| !rest.is_empty()) {
        let Ok((header, items)) = BatchHeader::decode(rest) else { break };
        if header.pool != pool || header.chunk != chunk || header.grain == 0 {
            break;
        }
        let grain = u32::from(header.grain);
        let mut unit = (page as u32 + u32::from(header.pages)) * BLOCK_UNITS;
        for item in items {
            let Item::Blocks { volume, block, stored } = item else { continue };
            for (i, (crc, units, coding)) in (0u64..).zip(stored) {
                let identity = BlockIdentity { volume, block: BlockNo(block.0 + i), lsn: header.lsn, crc, units, coding };
                found.push((unit / grain, identity));
                unit += u32::from(units);
            }
        }
        page += usize::from(header.pages) + header.payload as usize;
    }
    found
}

/// What the blocks of moved chunks are, by slot: from the header of the move. Nothing when it is damaged.
pub(super) fn moved_identities(bytes: &[u8]) -> Option<FxHashMap<ChunkId, Vec<(u32, BlockIdentity)>>> {
    let (_, items) = BatchHeader::decode(bytes).ok()?;
    let moves = items.into_iter().filter_map(|item| match item {
        Item::Move(moved) => Some((moved.chunk, identities_of(moved))),
        _ => None,
    });
    Some(moves.collect())
}

/// What the blocks of one move are, by slot.
pub(in crate::task) fn identities_of(moved: Move) -> Vec<(u32, BlockIdentity)> {
    let present = Slots::from_words(moved.present);
    let mut slots = present.iter();
    let mut found = Vec::with_capacity(moved.identities.len());
    for identity in moved.identities {
        let Some(slot) = slots.next() else { break };
        found.push((slot, identity));
        // a packed block has a slot for each of its units
        let more = u32::from(identity.units) / u32::from(moved.grain.max(1));
        (1..more).for_each(|_| {
            slots.next();
        });
    }
    found
}
