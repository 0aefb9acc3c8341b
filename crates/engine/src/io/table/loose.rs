//! Writes whose failure does not make the table give a device up.

use millpond_block::{BufSlice, ByteRange, MemberId};

use super::{IoTable, Kind, Replica};

impl<C> IoTable<C> {
    /// Writes to one member. Does not wait for space; the requester decides what a failure means.
    pub(crate) fn write_loose(&mut self, context: C, member: MemberId, offset: u64, piece: BufSlice) {
        let group = self.add(context, Kind::Loose, None);
        let range = ByteRange { offset, length: piece.len() as u64 };
        self.push_write(group, member, range, vec![piece], Replica::Current);
        self.begin(group);
    }

    /// Writes to several places in the same way.
    pub(crate) fn write_loosely(&mut self, context: C, writes: Vec<(MemberId, u64, BufSlice)>) {
        let group = self.add(context, Kind::Loose, None);
        for (member, offset, piece) in writes {
            let range = ByteRange { offset, length: piece.len() as u64 };
            self.push_write(group, member, range, vec![piece], Replica::Current);
        }
        self.begin(group);
    }

    /// Writes the same bytes to ranges of several members.
    pub(crate) fn overwrite(&mut self, context: C, ranges: &[(MemberId, ByteRange)], pieces: &[BufSlice]) {
        let group = self.add(context, Kind::Loose, None);
        for (device, range) in ranges {
            self.push_write(group, *device, *range, pieces.to_vec(), Replica::Current);
        }
        self.begin(group);
    }
}
