//! Reads the objects of the checkpoint, and all that they name.

use std::collections::BTreeMap;
use std::rc::Rc;

use millpond_block::{Buf, DeviceError};
use millpond_format::{Checkpoint, ObjectRef, SegmentId};

use super::{Import, ImportIo, Stage};
use crate::core::Core;
use crate::open::load::snapshot_page;
use crate::space::{Deadlist, PAGE, Piece, Pieces, Space};
use crate::task::pieces;
use crate::tree::NodeCache;
use crate::{Damage, OpenErrorKind, Planted};

/// Objects read at a time.
const OBJECTS_AT_ONCE: usize = 64;

/// Pieces by place, with the first and last epochs of the windows on them.
type Named = BTreeMap<(SegmentId, u32), (ObjectRef, Vec<u32>)>;

/// The pieces that deadlists name; the form that stays in memory is made as each is read.
pub(super) struct NamedPieces {
    pub(super) home: Rc<Pieces>,
    named: Named,
    known: BTreeMap<(SegmentId, u32), Rc<Piece>>,
}

impl NamedPieces {
    /// Returns whether `at` is a piece as a whole, not an index of parts.
    fn names(&self, at: ObjectRef) -> bool {
        !at.is_index() && self.named.contains_key(&(at.segment, at.offset))
    }

    fn make(&self, at: ObjectRef, bytes: &[u8]) -> Result<Rc<Piece>, OpenErrorKind> {
        let ends = self.named.get(&(at.segment, at.offset)).map_or(&[][..], |(_, ends)| ends);
        self.home.load(bytes, at, ends).map_err(|error| Damage::DeadlistPiece(error).into())
    }

    fn take_in(&mut self, at: ObjectRef, bytes: &[u8]) -> Result<(), OpenErrorKind> {
        let piece = self.make(at, bytes)?;
        self.known.insert((at.segment, at.offset), piece);
        Ok(())
    }

    /// Returns a piece; one that was not made yet, as with older versions of the format, is made of
    /// `bytes`.
    fn get(&self, at: ObjectRef, bytes: impl FnOnce() -> Result<Vec<u8>, OpenErrorKind>) -> Result<Rc<Piece>, OpenErrorKind> {
        match self.known.get(&(at.segment, at.offset)) {
            Some(piece) => Ok(Rc::clone(piece)),
            None => self.make(at, &bytes()?),
        }
    }
}

impl Import {
    /// Reads objects, a limited number at a time; continues when all are read.
    pub(super) fn read_objects(&mut self) -> Result<(), OpenErrorKind> {
        while self.io.in_flight() < OBJECTS_AT_ONCE {
            let Some(at) = self.wanted.pop() else { break };
            self.read_object(at, 0)?;
        }
        if self.io.in_flight() > 0 || !self.wanted.is_empty() {
            return Ok(());
        }
        self.objects_read()
    }

    fn read_object(&mut self, at: ObjectRef, attempt: u8) -> Result<(), OpenErrorKind> {
        {
            let layout = self.layout.as_ref().ok_or(OpenErrorKind::OutOfOrder("no layout"))?;
            let start = u64::from(at.offset) * ObjectRef::STEP as u64;
            let page = start / PAGE;
            let pages = (start + u64::from(at.bytes())).div_ceil(PAGE) - page;
            let limit = u64::from(layout.pages(at.segment));
            if page + pages > limit {
                return Err(Damage::ObjectOutside.into());
            }
            self.io.read(ImportIo::Object(at, attempt), layout, at.segment, page as u32, pages as u32, attempt, &mut self.bufs);
        }
        Ok(())
    }

    /// Continues when all objects of a stage are read.
    fn objects_read(&mut self) -> Result<(), OpenErrorKind> {
        match self.stage {
            Stage::Root => {
                let at = self.root.as_ref().map(|root| root.checkpoint).ok_or(OpenErrorKind::OutOfOrder("no root"))?;
                let bytes = self.object(at)?;
                let checkpoint = Checkpoint::decode(&bytes).map_err(Damage::Checkpoint)?;
                self.wanted.extend(checkpoint.chunk_pages.iter().map(|(_, at)| *at));
                self.wanted.extend(checkpoint.lineages.iter().filter_map(|line| line.deadlist));
                self.wanted.extend(checkpoint.snapshot_pages.iter().map(|(_, at)| *at));
                self.wanted.extend(checkpoint.frees.iter().map(|(_, at)| *at));
                self.wanted.extend(checkpoint.name_pages.iter().map(|(_, at)| *at).chain(checkpoint.doomed));
                self.checkpoint = Some(checkpoint);
                self.stage = Stage::Objects;
                self.read_objects()
            }
            Stage::Objects => {
                let pages = self.checkpoint.iter().flat_map(|checkpoint| &checkpoint.snapshot_pages);
                let pages =
                    pages.map(|(_, at)| self.object(*at).and_then(|bytes| Ok(snapshot_page(&bytes)?))).collect::<Result<Vec<_>, _>>()?;
                self.wanted.extend(pages.iter().flatten().filter_map(|s| s.deadlist));
                self.stage = Stage::Lists;
                self.read_objects()
            }
            Stage::Lists => {
                let named = self.named_pieces()?;
                self.wanted.extend(named.values().map(|(at, _)| *at));
                let extent_bytes = self.config.as_ref().ok_or(OpenErrorKind::OutOfOrder("no label"))?.shape.extent_bytes;
                self.pieces = Some(NamedPieces { home: pieces(extent_bytes, &self.tuning), named, known: BTreeMap::new() });
                self.stage = Stage::Pieces;
                self.read_objects()
            }
            _ => self.load(),
        }
    }

    /// Returns the pieces that deadlists name, each once, with the first and last epochs of the
    /// windows on it.
    fn named_pieces(&self) -> Result<Named, OpenErrorKind> {
        let Some(checkpoint) = &self.checkpoint else { return Ok(BTreeMap::new()) };
        let mut lists: Vec<ObjectRef> = checkpoint.lineages.iter().filter_map(|line| line.deadlist).collect();
        lists.extend(checkpoint.frees.iter().map(|(_, at)| *at));
        for (_, at) in &checkpoint.snapshot_pages {
            lists.extend(snapshot_page(&self.object(*at)?)?.iter().filter_map(|s| s.deadlist));
        }
        let mut pieces = BTreeMap::new();
        for at in lists {
            for (at, ends) in Deadlist::named(&self.object(at)?)? {
                pieces.entry((at.segment, at.offset)).or_insert((at, Vec::new())).1.extend(ends);
            }
        }
        Ok(pieces)
    }

    pub(super) fn object_read(
        &mut self,
        at: ObjectRef,
        attempt: u8,
        result: Result<(), DeviceError>,
        buf: Option<&Buf>,
    ) -> Result<(), OpenErrorKind> {
        let outcome = self.take_object(at, result, buf);
        let more = self.layout.as_ref().is_some_and(|layout| attempt + 1 < self.io.attempts(layout, at.segment));
        if outcome.is_err() && more { self.read_object(at, attempt + 1) } else { outcome }
    }

    fn take_object(&mut self, at: ObjectRef, result: Result<(), DeviceError>, buf: Option<&Buf>) -> Result<(), OpenErrorKind> {
        let skip = usize::try_from(u64::from(at.offset) * ObjectRef::STEP as u64 % PAGE).unwrap_or(0);
        let bytes = match (result, buf) {
            (Ok(()), Some(buf)) => buf.bytes().get(skip..skip + at.bytes() as usize).unwrap_or_default(),
            (Err(error), _) => return Err(OpenErrorKind::ObjectUnreadable(error)),
            (Ok(()), None) => &[],
        };
        if millpond_format::crc32c(bytes) != at.crc {
            return Err(Damage::ObjectChecksum.into());
        }
        if let Some(pieces) = self.pieces.as_mut().filter(|pieces| pieces.names(at)) {
            return pieces.take_in(at, bytes);
        }
        self.objects.insert((at.segment, at.offset), bytes.to_vec());
        if at.is_index() {
            let parts = ObjectRef::decode_index(bytes).map_err(Damage::ObjectParts)?;
            self.wanted.extend(&parts);
            self.parts.insert((at.segment, at.offset), parts);
        }
        Ok(())
    }

    /// Returns the bytes of an object that was read, joined from its parts.
    fn object(&self, at: ObjectRef) -> Result<Vec<u8>, OpenErrorKind> {
        let part = |at: &ObjectRef| self.objects.get(&(at.segment, at.offset)).ok_or(Damage::ObjectMissing);
        if !at.is_index() {
            return Ok(part(&at)?.clone());
        }
        let parts = self.parts.get(&(at.segment, at.offset)).ok_or(Damage::ObjectMissing)?;
        let mut joined = Vec::new();
        for at in parts {
            joined.extend_from_slice(part(at)?);
        }
        Ok(joined)
    }

    /// Builds the state from the checkpoint and starts reading the log.
    fn load(&mut self) -> Result<(), OpenErrorKind> {
        let (layout, config) = (
            self.layout.take().ok_or(OpenErrorKind::OutOfOrder("no layout"))?,
            self.config.clone().ok_or(OpenErrorKind::OutOfOrder("no label"))?,
        );
        let (root, checkpoint) = (
            self.root.clone().ok_or(OpenErrorKind::OutOfOrder("no root"))?,
            self.checkpoint.take().ok_or(OpenErrorKind::OutOfOrder("no checkpoint"))?,
        );
        let mut space = Space::new(layout);
        space.reuse_at_once = cfg!(feature = "planted") && self.tuning.planted == Some(Planted::FreeTooEarly);
        space.wipe_once = cfg!(feature = "planted") && self.tuning.planted == Some(Planted::WipeOnce);
        space.keeps_targets = self.tuning.plants(Planted::ForwardKeepsTarget);
        space.chunks.forgets_forwarded = self.tuning.plants(Planted::ForwardForgotten);
        let nodes = NodeCache::new(self.tuning.map_memory);
        let pieces = self.pieces.take().ok_or(OpenErrorKind::OutOfOrder("no pieces"))?;
        let mut core = Core::new(space, nodes, config.shape.chunk_units, Rc::clone(&pieces.home), self.tuning.planted);
        let named = |at: ObjectRef| pieces.get(at, || self.object(at));
        crate::open::load::load(&mut core, &checkpoint, &root, &|at| self.object(at), &named, &self.parts)?;
        self.checkpoint = Some(checkpoint);
        self.core = Some(core);
        self.scan_from(&root)
    }
}
