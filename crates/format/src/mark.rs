//! Encryption of a stored block, as addresses and headers of batches mark it.

use crate::{BLOCK_UNITS, Coding};

/// Encryption of a stored block. An encrypted block keeps its length and its coding: blocks are
/// compressed first (`docs/decisions/0045-encryption.md`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mark {
    /// None.
    #[default]
    Clear,
    /// By the data key of its volume, under its own address.
    Encrypted,
    /// By the data key of its volume, in another pool, from which it came in a raw stream. The 16 bytes
    /// before it are the address and the domain under which it was encrypted.
    Foreign,
}

impl Mark {
    /// Returns the two bits: encrypted, foreign.
    pub(crate) fn bits(self) -> u8 {
        match self {
            Mark::Clear => 0,
            Mark::Encrypted => 1,
            Mark::Foreign => 2,
        }
    }

    /// Returns the mark of two bits; `None` if both are set.
    pub(crate) fn from_bits(bits: u8) -> Option<Mark> {
        match bits {
            0 => Some(Mark::Clear),
            1 => Some(Mark::Encrypted),
            2 => Some(Mark::Foreign),
            _ => None,
        }
    }

    /// Returns whether a block with this mark can have such a stored length. The cipher takes 1 to 8
    /// units; compression saves a unit at least; the bytes before a foreign block take one more at
    /// most.
    pub(crate) fn allows(self, units: u32, coding: Coding) -> bool {
        let most = match coding {
            Coding::Raw => BLOCK_UNITS,
            Coding::Lz4 | Coding::Zstd => BLOCK_UNITS - 1,
        };
        match self {
            Mark::Clear => true,
            Mark::Encrypted if coding == Coding::Raw => units == most,
            Mark::Foreign if coding == Coding::Raw => units == most + 1,
            Mark::Encrypted => units <= most,
            Mark::Foreign => units <= most + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Addr, ChunkId, ChunkRecord, Encoder, Epoch, FormatError, SegmentId, VolumeId};

    const MARKS: [Mark; 3] = [Mark::Clear, Mark::Encrypted, Mark::Foreign];

    #[test]
    fn addresses_have_marks_that_fit_their_length() {
        for (coding, units) in
            [Coding::Raw, Coding::Lz4, Coding::Zstd].into_iter().flat_map(|coding| (1..=15).map(move |units| (coding, units)))
        {
            let addr = Addr::new(ChunkId(5), 6, units, coding);
            for bits in 0..4 {
                let read = Addr::from_bits(addr.to_bits() | bits << 56).ok();
                let sound = match (bits, coding) {
                    (0, _) => true,
                    (1, Coding::Raw) => units == 8,
                    (1, _) => units < 8,
                    (2, Coding::Raw) => units == 9,
                    (2, _) => units < 9,
                    _ => false,
                };
                assert_eq!(read.is_some(), sound, "{coding:?} {units} {bits}");
                let Some(read) = read else { continue };
                let mark = MARKS[bits as usize];
                assert_eq!((read.mark(), read), (mark, addr.marked(mark)));
                assert_eq!((read.identity(), read.units(), read.coding()), (addr.identity(), units, coding));
                assert_eq!(read.marked(Mark::Clear), addr);
            }
        }
    }

    #[test]
    fn neither_holes_nor_bases_nor_pending_addresses_have_marks() {
        let (base, pending) = (Addr::of_base(VolumeId(3)), Addr::new(ChunkId(5), 6, 8, Coding::Raw).pending());
        for bits in [0, base.to_bits(), pending.to_bits()] {
            assert!(Addr::from_bits(bits | 1 << 56).is_err() && Addr::from_bits(bits | 1 << 57).is_err(), "{bits:x}");
        }
    }

    /// The map has the mark of a block whose slot has a forward.
    #[test]
    fn targets_of_forwards_have_no_marks() {
        let target = Addr::new(ChunkId(900), 9, 8, Coding::Raw);
        let read = |mark| {
            let record = ChunkRecord {
                chunk: ChunkId(64),
                epoch: Epoch(2),
                birth: 500,
                segment: SegmentId(7),
                base: 10,
                identities: ChunkRecord::IN_LINE,
                grain: 8,
                class: 0,
                slots: 70,
                live: vec![1].into(),
                present: vec![].into(),
                forwarded: vec![2].into(),
                targets: vec![target.marked(mark)].into(),
            };
            let mut e = Encoder::default();
            record.encode(&mut e);
            ChunkRecord::decode_page(e.bytes()).map(|page| page.len())
        };
        assert_eq!((read(Mark::Clear), read(Mark::Encrypted)), (Ok(1), Err(FormatError::Field("forward"))));
    }
}
