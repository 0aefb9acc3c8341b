//! The objects of a checkpoint, packed into segments of their own, several to a write.

use std::rc::Rc;

use millpond_block::BufSlice;
use millpond_format::{BatchHeader, ChunkId, Encoder, HEADER_PAGE, Lsn, NO_SEGMENT, ObjectRef, Root, SegmentId, crc32c};

use crate::Tuning;
use crate::log::{Cursor, NODES_HEAD, OBJECT_CLASS, OBJECTS_HEAD};
use crate::space::{Pieces, SegmentState};
use crate::store::{Context, META_HEAD_PAGES, OBJECT_WRITE, Store};
use crate::task::Checkpointer;

/// Share (1/N) of the memory for maps that cached pieces of deadlists may take.
const PIECES_PART: u64 = 8;

/// Packs objects into writes.
#[derive(Debug, Default)]
pub(super) struct Packer {
    bytes: Vec<u8>,
    /// Place of the write: segment, page, and its capacity in bytes.
    at: Option<(SegmentId, u32, usize)>,
}

impl Checkpointer {
    /// Reserves the segments that the checkpoint may need: guests go on writing while it is
    /// encoded.
    pub(super) fn reserve_for_checkpoint(&mut self, store: &mut Store) {
        let count = store.checkpoint_segments();
        self.reserved = (0..count).map_while(|_| store.reserve_meta()).collect();
        // they are popped from the end
        self.reserved.reverse();
    }

    /// Frees the reserved segments that were not needed.
    pub(super) fn release_reserved(&mut self, store: &mut Store) {
        for segment in std::mem::take(&mut self.reserved) {
            store.core.space.segments.set_state(segment, SegmentState::Free);
        }
    }

    /// Allocates pages for nodes or objects. Returns segment, page, and the pages left there.
    pub(super) fn meta_space(&mut self, store: &mut Store, class: u8, pages: u32) -> Option<(SegmentId, u32, u32)> {
        let fits = |cursor: &Cursor| cursor.pages - cursor.page >= pages;
        let mut cursor = if class == OBJECT_CLASS { store.checkpoint.objects_at } else { store.checkpoint.nodes_at };
        if !cursor.as_ref().is_some_and(fits) {
            if let Some(old) = cursor.take() {
                store.core.space.segments.set_state(old.segment, SegmentState::Sealed);
                store.core.space.settle(old.segment);
            }
            let set_aside = self.reserved.pop();
            debug_assert!(set_aside.is_some(), "INV-CKPT-4: a checkpoint takes no more than what is set aside for it");
            let segment = set_aside.or_else(|| store.reserve_meta())?;
            store.core.space.segments.set_state(segment, SegmentState::Open);
            if let Some(s) = store.core.space.segments.get_mut(segment) {
                s.class = class;
            }
            self.head_meta_segment(store, segment, class);
            cursor = Some(Cursor { segment, page: META_HEAD_PAGES, pages: store.core.space.layout.pages(segment) });
        }
        let (mut cursor, place) =
            (cursor?, if class == OBJECT_CLASS { &mut store.checkpoint.objects_at } else { &mut store.checkpoint.nodes_at });
        let (at, left) = (cursor.page, cursor.pages - cursor.page);
        cursor.page += pages;
        *place = Some(cursor);
        (left >= pages).then_some((cursor.segment, at, left))
    }

    /// Writes the head page of a segment of nodes or objects, which names the checkpoint that took
    /// it (INV-REST-1). The page looks like a batch of incarnation 0, which no log has; its birth
    /// is the checkpoint's generation.
    fn head_meta_segment(&mut self, store: &mut Store, segment: SegmentId, class: u8) {
        let header = BatchHeader {
            stream: if class == OBJECT_CLASS { OBJECTS_HEAD } else { NODES_HEAD },
            pages: 1,
            pool: store.config.id,
            incarnation: 0,
            next: NO_SEGMENT,
            lsn: Lsn(store.log.next.0 - 1),
            durable: store.log.durable,
            epoch: store.core.epoch,
            chunk: ChunkId(0),
            birth: store.generation + 1,
            segment,
            offset: 0,
            base: 0,
            payload: 0,
            grain: 8,
        };
        let mut page = [0; HEADER_PAGE];
        header.encode(&[], &mut page);
        self.write_meta_page(store, segment, 0, &page);
    }

    /// Writes one page among nodes or objects as part of the running checkpoint.
    fn write_meta_page(&mut self, store: &mut Store, segment: SegmentId, page: u32, bytes: &[u8]) {
        let mut buf = store.bufs.take(HEADER_PAGE);
        if let Some(to) = buf.bytes_mut().get_mut(..HEADER_PAGE) {
            to.copy_from_slice(bytes);
        }
        store.metrics.metadata_bytes += HEADER_PAGE as u64;
        self.pending += 1;
        let piece = BufSlice::new(buf, 0..HEADER_PAGE);
        store.write_pages(Context::Objects, segment, page, vec![piece]);
    }

    /// Writes a copy of the root behind the objects that it names: an import that lost every ring
    /// finds the checkpoint by it.
    pub(super) fn put_root(&mut self, store: &mut Store, root: &Root) -> Option<()> {
        let (segment, page, _) = self.meta_space(store, OBJECT_CLASS, 1)?;
        self.write_meta_page(store, segment, page, &root.encode());
        Some(())
    }

    /// Adds an object to the running checkpoint: whole, or in parts with an index if it is too
    /// long.
    pub(super) fn put_object(&mut self, store: &mut Store, packer: &mut Packer, bytes: &[u8]) -> Option<ObjectRef> {
        let most = store.core.pieces.part_bytes();
        if bytes.len() <= most {
            return self.put_part(store, packer, bytes, false);
        }
        let mut index = Encoder::default();
        let mut parts = Vec::new();
        for part in bytes.chunks(most) {
            let at = self.put_part(store, packer, part, false)?;
            at.encode(&mut index);
            parts.push(at);
        }
        let at = self.put_part(store, packer, index.bytes(), true)?;
        store.checkpoint.parts.insert((at.segment, at.offset), parts);
        Some(at)
    }

    fn put_part(&mut self, store: &mut Store, packer: &mut Packer, bytes: &[u8], index: bool) -> Option<ObjectRef> {
        let length = bytes.len().next_multiple_of(ObjectRef::STEP);
        if packer.at.is_some_and(|(_, _, room)| packer.bytes.len() + length > room) {
            self.flush_packer(store, packer);
        }
        if packer.at.is_none() {
            // the cursor moves when the length of the whole write is known
            let (segment, page, left) = self.meta_space(store, OBJECT_CLASS, u32::try_from(length.div_ceil(4096)).ok()?)?;
            packer.at = Some((segment, page, (left as usize * 4096).min(OBJECT_WRITE.max(length))));
        }
        let (segment, page, _) = packer.at?;
        let offset = page as usize * 4096 + packer.bytes.len();
        let object = ObjectRef {
            segment,
            offset: u32::try_from(offset / ObjectRef::STEP).ok()?,
            length: u32::try_from(bytes.len()).ok()? | if index { ObjectRef::INDEX } else { 0 },
            crc: crc32c(bytes),
        };
        packer.bytes.extend_from_slice(bytes);
        packer.bytes.resize(packer.bytes.len().next_multiple_of(ObjectRef::STEP), 0);
        store.core.space.add_object(segment, object.bytes());
        Some(object)
    }

    pub(super) fn flush_packer(&mut self, store: &mut Store, packer: &mut Packer) {
        let Some((segment, page, _)) = packer.at.take() else { return };
        let bytes = packer.bytes.len().next_multiple_of(4096);
        if let Some(cursor) = &mut store.checkpoint.objects_at {
            cursor.page = page + (bytes / 4096) as u32;
        }
        let mut buf = store.bufs.take(bytes);
        if let Some(to) = buf.bytes_mut().get_mut(..bytes) {
            let (content, rest) = to.split_at_mut(packer.bytes.len());
            content.copy_from_slice(&packer.bytes);
            rest.fill(0);
        }
        packer.bytes.clear();
        store.metrics.metadata_bytes += bytes as u64;
        self.pending += 1;
        let piece = BufSlice::new(buf, 0..bytes);
        store.write_pages(Context::Objects, segment, page, vec![piece]);
    }
}

/// Returns the most bytes of a part of an object, for extents of `extent_bytes`: few, so that an
/// unused end of a segment wastes little.
fn part_bytes(extent_bytes: u64) -> usize {
    (usize::try_from(extent_bytes).unwrap_or(usize::MAX) / 8).clamp(4096, 256 << 10)
}

/// Creates the store of pieces of deadlists for extents of `extent_bytes`: each piece is one part
/// at most.
pub(crate) fn pieces(extent_bytes: u64, tuning: &Tuning) -> Rc<Pieces> {
    let part = part_bytes(extent_bytes);
    let most = (tuning.piece_bytes as usize).min(part);
    let limit = tuning.piece_memory.min(tuning.map_memory / PIECES_PART);
    Pieces::new(most, part, usize::try_from(limit).unwrap_or(usize::MAX), tuning.planted)
}
