//! Reads the log after a checkpoint: along every stream, batch by batch, while they are sound.

use millpond_format::{BLOCK, BatchHeader, Item, LogTail, Lsn, NO_SEGMENT, NODE_UNITS, Node, PoolId, SegmentId, StreamStart, crc32c};

use crate::log::Stream;

/// Pages read at a time.
pub(crate) const WINDOW: u32 = 512;

/// A batch that was found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) header: BatchHeader,
    pub(crate) items: Vec<Item>,
    /// Its payload matches its checksums.
    pub(crate) sound: bool,
}

impl Found {
    /// Returns how many batches directly before this one may be missing along with special devices.
    fn small_before(&self) -> u64 {
        self.items.iter().map(|item| if let Item::Small { batches, .. } = item { u64::from(*batches) } else { 0 }).sum()
    }

    /// Returns the bytes of guests' blocks in it; 0 for blocks that were gathered.
    pub(super) fn guest_bytes(&self) -> u64 {
        if !Stream::from_number(self.header.stream).is_some_and(Stream::is_guests) {
            return 0;
        }
        let blocks = self.items.iter().map(|item| if let Item::Blocks { stored, .. } = item { stored.len() as u64 } else { 0 });
        blocks.sum::<u64>() * 4096
    }
}

/// A scan of one stream of one log tail.
#[derive(Debug)]
pub(crate) struct StreamScan {
    pool: PoolId,
    incarnation: u32,
    end: Lsn,
    stream: Stream,
    pub(crate) segment: SegmentId,
    pub(crate) page: u32,
    next: SegmentId,
    last: Lsn,
    /// Copy of the segment that is read, and the number of copies that had nothing more since the
    /// last batch.
    pub(crate) copy: u8,
    tried: u8,
    /// A copy that was read since then ends here.
    ended: bool,
    /// A copy that was read since then has a batch with an unsound payload here.
    unsound: Option<u8>,
    /// Page where the segment broke off. Reading continues behind it: a batch there shows whether
    /// the missing one was durable.
    broke: Option<u32>,
    /// Pages to read: more than [`WINDOW`] when a batch is longer.
    pub(crate) want: u32,
    /// Segments that hold batches of this stream.
    pub(crate) visited: Vec<SegmentId>,
    pub(crate) done: bool,
    /// Number of devices that had been given up at the last read.
    pub(crate) losses: u32,
}

impl StreamScan {
    pub(super) fn new(pool: PoolId, log_tail: &LogTail, stream: Stream, start: StreamStart, after: Lsn) -> StreamScan {
        let mut scan = StreamScan {
            pool,
            incarnation: log_tail.incarnation,
            end: log_tail.end,
            stream,
            segment: start.segment,
            page: start.offset,
            next: start.next,
            last: after,
            copy: 0,
            tried: 0,
            ended: false,
            unsound: None,
            broke: None,
            want: WINDOW,
            visited: Vec::new(),
            done: false,
            losses: 0,
        };
        if scan.segment == NO_SEGMENT {
            scan.follow();
        } else {
            scan.visited.push(scan.segment);
        }
        scan
    }

    /// Returns the incarnation whose batches are read.
    pub(super) fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// Returns whether it is the stream of small writes.
    pub(super) fn is_small(&self) -> bool {
        self.stream == Stream::Small
    }

    /// Continues in the next segment.
    fn follow(&mut self) {
        self.begin_place();
        self.segment = std::mem::replace(&mut self.next, NO_SEGMENT);
        self.page = 0;
        self.want = WINDOW;
        self.done = self.segment == NO_SEGMENT;
    }

    /// Starts anew with the copies at the current place.
    pub(super) fn begin_place(&mut self) {
        (self.copy, self.tried, self.ended, self.unsound) = (0, 0, false, None);
    }

    /// Moves on to the next of `copies` copies at the same place; returns false after the last.
    /// After a crash each copy may have batches that others lack.
    fn next_copy(&mut self, copies: u8) -> bool {
        self.tried += 1;
        self.copy = (self.copy + 1) % copies.max(1);
        self.tried < copies
    }

    /// Takes in pages that were read at the scan's place from one of `copies` copies. Afterwards
    /// the place has moved on, another copy is to be read there, or the scan is done. Batches begin
    /// at multiples of `quantum` pages.
    pub(super) fn take(&mut self, bytes: &[u8], segment_pages: u32, quantum: u32, copies: u8, found: &mut Vec<Found>) {
        if self.broke.is_some() {
            return self.seek(bytes, segment_pages, quantum, copies);
        }
        let segment = (segment_pages, quantum);
        let mut at = 0usize;
        loop {
            let rest = bytes.get(at * 4096..).unwrap_or_default();
            if rest.is_empty() {
                return self.end_of_window(segment_pages);
            }
            let Some(pages) = BatchHeader::peek_pages(rest) else { return self.broken(segment, copies) };
            if rest.len() < pages * 4096 {
                return self.more(at, pages as u32, segment, copies);
            }
            let Ok((header, items)) = BatchHeader::decode(rest) else { return self.broken(segment, copies) };
            if !self.belongs(&header, self.page) {
                return self.broken(segment, copies);
            }
            let whole = pages + header.payload as usize;
            if rest.len() < whole * 4096 {
                return self.more(at, whole as u32, segment, copies);
            }
            let payload = rest.get(pages * 4096..whole * 4096).unwrap_or_default();
            let sound = payload_sound(&header, &items, payload);
            let copy = self.copy;
            if !sound && self.next_copy(copies) {
                self.unsound = Some(copy);
                return;
            }
            (self.tried, self.ended, self.unsound) = (0, false, None);
            if self.visited.last() != Some(&self.segment) {
                self.visited.push(self.segment);
            }
            self.last = header.lsn;
            self.next = header.next;
            let padded = (whole as u32).next_multiple_of(quantum);
            self.page += padded;
            self.want = WINDOW;
            at += padded as usize;
            found.push(Found { header, items, sound });
        }
    }

    /// Returns whether a header is that of a batch of this stream, at a page of its segment, after
    /// the checkpoint.
    fn belongs(&self, header: &BatchHeader, page: u32) -> bool {
        header.pool == self.pool
            && header.incarnation == self.incarnation
            && Stream::from_number(header.stream) == Some(self.stream)
            && header.segment == self.segment
            && header.offset == page
            && header.lsn > self.last
            && header.lsn <= self.end
    }

    /// Handles a place without a batch of this stream. Usually the log ends there; but a damaged
    /// header looks the same, and batches behind it may show that it was durable. So the rest of
    /// the segment is read before the scan continues in the next one.
    fn broken(&mut self, segment: (u32, u32), copies: u8) {
        self.ended = true;
        if !self.next_copy(copies) {
            self.break_off(segment);
        }
    }

    /// Marks where the segment breaks off, when no copy has more.
    fn break_off(&mut self, (segment_pages, quantum): (u32, u32)) {
        self.broke = Some(self.page);
        self.seek_from(self.page + quantum, segment_pages);
    }

    /// Looks for a batch from `page` on, behind the place where the segment broke off.
    fn seek_from(&mut self, page: u32, segment_pages: u32) {
        self.begin_place();
        (self.page, self.want) = (page.min(segment_pages), WINDOW);
        if self.page == segment_pages {
            self.end();
        }
    }

    /// Looks for a batch in pages behind the place where the segment broke off. Older content of
    /// the segment does not belong: the checkpoint contains it.
    fn seek(&mut self, bytes: &[u8], segment_pages: u32, quantum: u32, copies: u8) {
        let pages = bytes.len() / 4096;
        for at in (0..pages).step_by(quantum.max(1) as usize) {
            let rest = bytes.get(at * 4096..).unwrap_or_default();
            let Some(header_pages) = BatchHeader::peek_pages(rest) else { continue };
            let cut = at > 0 && rest.len() < header_pages * 4096;
            let page = self.page + at as u32;
            if cut || BatchHeader::decode(rest).is_ok_and(|(header, _)| self.belongs(&header, page)) {
                // a header that is cut off is read again from its first page on
                self.broke = self.broke.filter(|_| cut);
                self.begin_place();
                (self.page, self.want) = (page, WINDOW);
                return;
            }
        }
        if !self.next_copy(copies) {
            self.seek_from(self.page + pages.max(1) as u32, segment_pages);
        }
    }

    /// Handles an unreadable copy. Returns false when no copy is readable. A durable batch is on
    /// all copies, so one readable copy is enough to prove that there is none, or that it is torn.
    pub(super) fn unreadable(&mut self, segment: (u32, u32), copies: u8) -> bool {
        if self.broke.is_some() {
            // unreadable pages here need not be part of the log
            if !self.next_copy(copies) {
                self.seek_from(self.page + self.want, segment.0);
            }
            return true;
        }
        if !self.next_copy(copies) {
            if let Some(copy) = self.unsound.take().filter(|_| !self.ended) {
                // it is read once more, and taken as it is
                (self.copy, self.tried) = (copy, copies);
                return true;
            }
            if !self.ended {
                return false;
            }
            self.break_off(segment);
        }
        true
    }

    /// Ends the segment: the stream continues in the next one, or ends.
    pub(super) fn end(&mut self) {
        let page = self.broke.take().unwrap_or(self.page);
        if page == 0 && !self.visited.contains(&self.segment) {
            self.done = true;
        } else {
            self.follow();
        }
    }

    fn end_of_window(&mut self, segment_pages: u32) {
        if self.page >= segment_pages {
            self.follow();
        }
    }

    /// Handles a batch that extends beyond the pages that were read.
    fn more(&mut self, at: usize, whole: u32, segment: (u32, u32), copies: u8) {
        if self.page + whole > segment.0 {
            return self.broken(segment, copies);
        }
        if at == 0 {
            if whole <= self.want {
                return self.broken(segment, copies);
            }
            self.want = whole;
        }
    }
}

/// Returns whether the payload matches the checksums in the header.
pub(crate) fn payload_sound(header: &BatchHeader, items: &[Item], payload: &[u8]) -> bool {
    let mut at = 0usize;
    let sound = |from: usize, bytes: usize, crc: u32| payload.get(from..from + bytes).is_some_and(|stored| crc32c(stored) == crc);
    items.iter().all(|item| match item {
        Item::Blocks { stored, .. } => stored.iter().all(|block| {
            let bytes = usize::from(block.units) * 512;
            at += bytes;
            sound(at - bytes, bytes, block.crc)
        }),
        Item::Forward { sources, .. } => sources.iter().all(|(_, crc)| {
            at += BLOCK;
            sound(at - BLOCK, BLOCK, *crc)
        }),
        Item::Move(moved) => {
            let mut at = moved.at as usize * 4096;
            moved.identities.iter().all(|identity| {
                let bytes = usize::from(identity.units) * 512;
                at += bytes;
                if identity.units == NODE_UNITS as u8 {
                    let stored = payload.get(at - bytes..at);
                    return stored.and_then(Node::checksum) == Some(identity.crc);
                }
                sound(at - bytes, bytes, identity.crc)
            })
        }
        Item::Clear { .. } | Item::Record(_) | Item::Small { .. } | Item::Placed(_) => true,
    }) && header.payload as usize * 4096 == payload.len()
}

/// The valid part of the log.
pub(crate) enum Extent {
    /// Everything up to the first batch number counts; batches after the second may not be durable.
    Until(Lsn, Lsn),
    /// This batch was durable and is missing.
    Damaged(Lsn),
}

/// Sorts the batches and finds the end of the log: the first batch after `after` that is missing or
/// unsound and was not durable yet. A durable batch may have rotten blocks (reads of those will
/// fail), but must not be missing. `lost`: the last incarnation whose small writes were on lost
/// special devices. Batches of those may be missing if a later batch indexes them (INV-LOG-4), or
/// if they come after all other durable ones.
pub(crate) fn extent(found: &mut Vec<Found>, after: Lsn, log_tails: &[LogTail], lost: Option<u32>) -> Extent {
    found.sort_by_key(|f| f.header.lsn);
    found.dedup_by_key(|f| f.header.lsn);
    let settled = log_tails.iter().filter(|log_tail| log_tail.end != LogTail::RUNNING).map(|log_tail| log_tail.end).max().unwrap_or(after);
    let mut durable = found.iter().map(|f| f.header.durable).max().unwrap_or(after).max(settled);
    let mut last = after;
    let mut count = 0;
    // the first batch that each index covers, and the batch with the index
    let tells = |f: &&Found| lost.is_some_and(|lost| f.header.incarnation <= lost) && f.small_before() > 0;
    let indexes: Vec<(u64, Lsn)> =
        found.iter().filter(tells).map(|f| (f.header.lsn.0.saturating_sub(f.small_before()), f.header.lsn)).collect();
    for f in found.iter() {
        let next = Lsn(last.0 + 1);
        let known = || indexes.get(indexes.partition_point(|(_, by)| *by < f.header.lsn)).is_some_and(|(first, _)| *first <= next.0);
        if f.header.lsn < next || (f.header.lsn > next && !known()) {
            // durable small writes without a durable index: the batch with their index came before
            // this one, whose own index does not cover them
            let first_indexed = f.header.lsn.0.saturating_sub(f.small_before() + 1);
            if first_indexed > durable.0 && lost.is_some_and(|lost| f.header.incarnation <= lost) {
                durable = durable.min(last);
            }
            break;
        }
        if !f.sound && f.header.lsn > durable {
            // the batches that it indexes came directly before it, so nothing after them is durable
            if f.header.lsn > next {
                durable = durable.min(last);
            }
            break;
        }
        last = f.header.lsn;
        count += 1;
    }
    let none_behind =
        count == found.len() && log_tails.last().is_some_and(|log_tail| lost.is_some_and(|lost| log_tail.incarnation <= lost));
    if none_behind {
        durable = durable.min(last);
    }
    found.truncate(count);
    if last < durable { Extent::Damaged(Lsn(last.0 + 1)) } else { Extent::Until(last, durable) }
}
