//! Writes that nothing waits for: those to a device that is being filled.
//!
//! Such a device is no copy of anything yet, so a write is safe without it, and is acknowledged when
//! the devices in service have it. Otherwise each write of a guest waits for the copies that fill the
//! device. Until the device counts as whole, each of these writes has to end (INV-FILL-3).

use millpond_block::{BufSlice, ByteRange, MemberId};
use millpond_format::SegmentId;
use smallvec::SmallVec;

use super::slots::Replica;
use super::{IoTable, Kind};

/// Most bytes of such writes in flight. Beyond that requests wait for the device as well, so that a
/// slow device holds a bounded part of memory.
const MOST_BYTES: u64 = 8 << 20;

/// State of the writes that nothing waits for.
#[derive(Debug, Default)]
pub(super) struct Behind {
    /// The device that may lag. Any other one, such as one that is about to count as whole, is waited
    /// for.
    lagging: Option<(MemberId, Replica)>,
    bytes: u64,
    writes: usize,
    /// True when a planted bug violates INV-FILL-3.
    for_ever: bool,
}

/// A write to a device that is being filled, to be begun by
/// [`write_behind`](IoTable::write_behind).
#[derive(Debug)]
#[must_use]
pub(crate) struct BehindWrite {
    device: MemberId,
    replica: Replica,
    range: ByteRange,
    pieces: Vec<BufSlice>,
}

impl BehindWrite {
    /// Length of the write in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.range.length
    }
}

/// Writes that a write of a segment leaves to be begun.
pub(crate) type BehindWrites = SmallVec<[BehindWrite; 1]>;

impl<C> IoTable<C> {
    /// From now on nothing waits for writes to this device, which is being filled; `None`: all writes
    /// are waited for.
    pub(crate) fn let_lag(&mut self, lagging: Option<(MemberId, Replica)>) {
        self.behind.lagging = lagging;
    }

    /// Plants a bug that violates INV-FILL-3.
    pub(crate) fn let_lag_for_ever(&mut self) {
        self.behind.for_ever = true;
    }

    /// Number of writes in flight that nothing waits for.
    pub(crate) fn writes_behind(&self) -> usize {
        self.behind.writes
    }

    /// Begins a write that nothing waits for. The caller has pinned the segment: another write to the
    /// same place may only begin when this one has ended.
    pub(crate) fn write_behind(&mut self, context: C, segment: SegmentId, write: BehindWrite) {
        let BehindWrite { device, replica, range, pieces } = write;
        (self.behind.bytes, self.behind.writes) = (self.behind.bytes + range.length, self.behind.writes + 1);
        let group = self.add(context, Kind::Write, Some(segment));
        self.push_write(group, device, range, pieces, replica);
        self.begin(group);
    }

    /// Records the end of a write that nothing waited for.
    pub(crate) fn ended_behind(&mut self, bytes: u64) {
        (self.behind.bytes, self.behind.writes) = (self.behind.bytes - bytes, self.behind.writes - 1);
    }

    /// Writes to the devices of a member: starts those that are waited for, and adds the others to
    /// `later`.
    pub(super) fn push_both(&mut self, group: u32, device: MemberId, range: ByteRange, pieces: Vec<BufSlice>, later: &mut BehindWrites) {
        let in_flight = self.behind.bytes + later.iter().map(BehindWrite::bytes).sum::<u64>();
        let lagging = self.behind.lagging.filter(|(member, _)| *member == device && in_flight < MOST_BYTES).map(|(_, replica)| replica);
        if self.replacement(device).is_some() {
            let replica = Replica::Replacement;
            // a member without a device in service has its replacement alone
            if lagging == Some(replica) && self.health.is_up(device) {
                later.push(BehindWrite { device, replica, range, pieces: pieces.clone() });
            } else {
                self.push_write(group, device, range, pieces.clone(), replica);
            }
        }
        if (lagging == Some(Replica::Current) && self.health.is_filling(device)) || (self.behind.for_ever && lagging.is_some()) {
            later.push(BehindWrite { device, replica: Replica::Current, range, pieces });
        } else {
            self.push_write(group, device, range, pieces, Replica::Current);
        }
    }

    /// Starts the write of a segment. When no device in service takes it, the ones that are being
    /// filled are waited for; when there is none either, it fails.
    pub(super) fn begin_write(&mut self, group: u32, later: BehindWrites) -> BehindWrites {
        let is_without = |table: &IoTable<C>| table.groups.get(group).is_some_and(|g| g.left == 0);
        if !is_without(self) {
            return later;
        }
        if self.behind.for_ever && !later.is_empty() {
            self.idle.push_back(group);
            return later;
        }
        for BehindWrite { device, replica, range, pieces } in later {
            self.push_write(group, device, range, pieces, replica);
        }
        if is_without(self) {
            self.fail_group(group);
        }
        BehindWrites::new()
    }
}
