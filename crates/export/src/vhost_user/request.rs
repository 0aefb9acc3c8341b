//! Decoding of chains into virtio-blk requests.

use millpond_block::{ByteRange, MAX_REQUEST_BYTES, Op};
use smallvec::SmallVec;
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID,
    VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_WRITE_ZEROES, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};
use vm_memory::{Address, GuestAddress};

use super::chain::{Chain, Segments};
use super::config::{MAX_RANGES, SECTOR};
use super::memory::{Memory, copy_out};

/// Size of a request's header in bytes: type (4), reserved (4), sector (8).
const HEADER: usize = 16;
/// Size of a range in bytes: sector (8), sectors (4), flags (4).
const RANGE: usize = 16;

/// Status of a request that the guest sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Status {
    Ok = VIRTIO_BLK_S_OK as u8,
    IoError = VIRTIO_BLK_S_IOERR as u8,
    Unsupported = VIRTIO_BLK_S_UNSUPP as u8,
}

/// Part of a request for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub op: Op,
    pub range: ByteRange,
}

/// Kind of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// For the disk: several parts for discards and zeroings of several ranges, else one.
    Disk(SmallVec<[Part; 1]>),
    /// Get the volume's serial number.
    Identity,
}

/// Request whose status can be written.
#[derive(Debug)]
pub(super) struct Ask {
    /// Kind of the request, or the status with which it is refused.
    pub kind: Result<Kind, Status>,
    /// Segments that data comes from or goes to.
    pub data: Segments,
    /// Bytes of data.
    pub length: u32,
    /// Guest address of the status byte.
    pub status_at: GuestAddress,
}

impl Ask {
    /// Decodes the request in a chain. Returns `None` if there is no space for a status.
    pub fn read(memory: &Memory, chain: &mut Chain) -> Option<Ask> {
        let last = chain.writable.last_mut()?;
        last.length -= 1; // no segment is empty
        let status_at = last.at.checked_add(u64::from(last.length))?;
        if last.length == 0 {
            chain.writable.pop();
        }
        let mut ask = Ask { kind: Err(Status::IoError), data: Segments::new(), length: 0, status_at };
        let mut header = [0; HEADER];
        if take(memory, &mut chain.readable, &mut header).is_none() {
            return Some(ask);
        }
        let [t0, t1, t2, t3, _, _, _, _, sector @ ..] = header;
        let (kind, sector) = (u32::from_le_bytes([t0, t1, t2, t3]), u64::from_le_bytes(sector));
        // Data moves in one direction; segments for the other direction are ignored.
        let incoming = matches!(kind, VIRTIO_BLK_T_IN | VIRTIO_BLK_T_GET_ID);
        ask.data = std::mem::take(if incoming { &mut chain.writable } else { &mut chain.readable });
        let total: u64 = ask.data.iter().map(|segment| u64::from(segment.length)).sum();
        match u32::try_from(total) {
            Ok(length) if total <= MAX_REQUEST_BYTES => ask.length = length,
            _ => return Some(ask),
        }
        ask.kind = match kind {
            VIRTIO_BLK_T_IN => transfer(Op::Read, sector, total),
            VIRTIO_BLK_T_OUT => transfer(Op::Write, sector, total),
            VIRTIO_BLK_T_FLUSH => Ok(one(Op::Flush, ByteRange { offset: 0, length: 0 })),
            VIRTIO_BLK_T_GET_ID => Ok(Kind::Identity),
            VIRTIO_BLK_T_DISCARD => ranges(memory, &mut ask, false),
            VIRTIO_BLK_T_WRITE_ZEROES => ranges(memory, &mut ask, true),
            _ => Err(Status::Unsupported),
        };
        Some(ask)
    }
}

fn one(op: Op, range: ByteRange) -> Kind {
    Kind::Disk(SmallVec::from_buf([Part { op, range }]))
}

fn transfer(op: Op, sector: u64, length: u64) -> Result<Kind, Status> {
    let offset = sector.checked_mul(SECTOR).filter(|_| length > 0).ok_or(Status::IoError)?;
    Ok(one(op, ByteRange { offset, length }))
}

/// Decodes the ranges of a discard or zeroing, which are its data.
fn ranges(memory: &Memory, ask: &mut Ask, zeroing: bool) -> Result<Kind, Status> {
    let count = ask.length / RANGE as u32;
    if count == 0 || count > MAX_RANGES || !ask.length.is_multiple_of(RANGE as u32) {
        return Err(Status::IoError);
    }
    let mut parts = SmallVec::new();
    for _ in 0..count {
        let mut range = [0; RANGE];
        take(memory, &mut ask.data, &mut range).ok_or(Status::IoError)?;
        let [s0, s1, s2, s3, s4, s5, s6, s7, n0, n1, n2, n3, flags @ ..] = range;
        let (sector, sectors) = (u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]), u32::from_le_bytes([n0, n1, n2, n3]));
        let flags = u32::from_le_bytes(flags);
        // "The device MUST set the status byte to UNSUPP for discard, secure erase and write zeroes
        // commands if any unknown flag is set."
        let known = if zeroing { VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP } else { 0 };
        if flags & !known != 0 {
            return Err(Status::Unsupported);
        }
        let op = if zeroing { Op::WriteZeroes { may_unmap: flags != 0 } } else { Op::Discard };
        let offset = sector.checked_mul(SECTOR).ok_or(Status::IoError)?;
        parts.push(Part { op, range: ByteRange { offset, length: u64::from(sectors) * SECTOR } });
    }
    ask.length = 0;
    Ok(Kind::Disk(parts))
}

/// Takes bytes from the front of segments; returns `None` if there are too few.
fn take(memory: &Memory, segments: &mut Segments, target: &mut [u8]) -> Option<()> {
    let mut rest = target;
    while !rest.is_empty() {
        let first = segments.first_mut()?;
        let count = rest.len().min(first.length as usize);
        let (part, after) = rest.split_at_mut_checked(count)?;
        copy_out(memory, first.at, part).ok()?;
        rest = after;
        first.at = first.at.checked_add(count as u64)?;
        first.length -= count as u32; // at most the length
        if first.length == 0 {
            segments.remove(0);
        }
    }
    Some(())
}

#[cfg(test)]
mod tests;
