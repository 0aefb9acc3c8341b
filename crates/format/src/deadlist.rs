//! Deadlists in pieces: a directory object refers to immutable pieces, whose records are in order
//! of (epoch, chunk).
//!
//! Up to version 6 of checkpoints a deadlist was one object of [`DeadRecord`]s in order of chunks.
//! Such an object can still be a piece: its records are counted in order of (epoch, chunk), too.
//! The first eight bytes distinguish the kinds: directories and pieces begin with a mark that, as a
//! number, is larger than any epoch; a [`DeadRecord`] begins with an epoch.

use crate::chunk::{DeadRecord, MAX_SLOT_WORDS};
use crate::codec::{Decoder, Encoder, FormatError};
use crate::{ChunkId, Epoch, ObjectRef};

/// First bytes of a directory. As a number they are larger than any epoch.
const DIRECTORY_MARK: [u8; 8] = *b"MPD list";
/// First bytes of a piece.
const PIECE_MARK: [u8; 8] = *b"MPDpiece";
/// Maximum records of a group, and so the number that a cursor in a piece decodes at once.
pub const DEAD_GROUP: usize = 256;
/// Maximum bytes, without the mark, of an object with one record: epoch, count, chunk, units, and a
/// whole bitmap.
pub const MAX_DEAD_RECORD: usize = 9 + 2 + 6 + 5 + 2 + 2 + MAX_SLOT_WORDS * 8;

/// A window of records in a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceRef {
    /// Place of the piece.
    pub at: ObjectRef,
    /// First record of the window, counted in order of (epoch, chunk).
    pub from: u32,
    /// End of the window: one more than its last record.
    pub to: u32,
}

impl PieceRef {
    /// Bytes of a reference.
    pub const BYTES: usize = ObjectRef::BYTES + 8;
}

/// The object of a deadlist.
///
/// | field | bytes | meaning |
/// |---|---|---|
/// | mark | 8 | `MPD list` |
/// | count | 4 | references |
/// | references | 24 each | place, checksum, first record, end |
/// | tail | rest | a piece without its mark: the newest records |
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadDirectory {
    /// The windows that it refers to.
    pub pieces: Vec<PieceRef>,
    /// Newest records, not in a piece yet, as [`DeadRecord::encode_piece`] encodes them.
    pub tail: Vec<u8>,
}

impl DeadDirectory {
    /// Bytes of a directory without references and tail.
    pub const FIXED: usize = 12;

    /// True when this object is a directory; false for a list of version 6 or older.
    pub fn is_one(bytes: &[u8]) -> bool {
        bytes.starts_with(&DIRECTORY_MARK)
    }

    /// Encodes the object.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::with_capacity(DeadDirectory::FIXED + self.pieces.len() * PieceRef::BYTES + self.tail.len());
        e.raw(&DIRECTORY_MARK);
        e.count(self.pieces.len());
        for piece in &self.pieces {
            piece.at.encode(&mut e);
            e.u32(piece.from);
            e.u32(piece.to);
        }
        e.raw(self.tail.strip_prefix(&PIECE_MARK[..]).unwrap_or_default());
        e.into_bytes()
    }

    /// Decodes the object.
    ///
    /// # Errors
    /// [`FormatError`] when it is invalid.
    pub fn decode(bytes: &[u8]) -> Result<DeadDirectory, FormatError> {
        let mut d = Decoder::new(bytes);
        if d.bytes::<8>()? != DIRECTORY_MARK {
            return Err(FormatError::Magic);
        }
        // each reference takes its bytes, so a count beyond the end is refused before anything is
        // allocated
        let count = d.count(PieceRef::BYTES)?;
        let mut pieces = Vec::with_capacity(count);
        for _ in 0..count {
            let piece = PieceRef { at: ObjectRef::decode(&mut d)?, from: d.u32()?, to: d.u32()? };
            if piece.from >= piece.to {
                return Err(FormatError::Field("deadlist"));
            }
            pieces.push(piece);
        }
        let rest = d.raw(d.remaining())?;
        let tail = if rest.is_empty() { Vec::new() } else { [&PIECE_MARK[..], rest].concat() };
        if !tail.is_empty() {
            DeadGroup::all(&tail)?;
        }
        Ok(DeadDirectory { pieces, tail })
    }
}

/// Consecutive records of one epoch in a piece. A reader of a window starts at a group.
///
/// | field | bytes | meaning |
/// |---|---|---|
/// | epoch | varint | difference to the epoch of the group before |
/// | count | varint | records, 1 to 256; 256 when the next group is of the same epoch |
/// | chunk | varint | id in the first record; in the others, difference to the record before |
/// | units | varint | of data among the slots |
/// | shape | varint | 2 n: n runs of slots; 2 n + 1: n words of a bitmap; the shorter is used |
/// | runs | 2 varints each | slots left out before the run, slots in the run less 1 |
/// | bitmap | varint, 8 n | words left out before it, words |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadGroup {
    /// Epoch when its chunks were begun.
    pub epoch: Epoch,
    /// Number of its first record in the piece.
    pub first: u32,
    /// Number of records.
    pub count: u32,
    /// Offset of its records in the piece.
    at: u32,
    /// Units of data in all groups before this one.
    pub units_before: u64,
    /// Units of data in this group.
    pub units: u64,
}

impl DeadGroup {
    /// True when this object is a piece (not a list of version 6 or older).
    pub fn is_piece(bytes: &[u8]) -> bool {
        bytes.starts_with(&PIECE_MARK)
    }

    /// Returns the groups of a piece.
    ///
    /// # Errors
    /// [`FormatError`] when the piece is invalid.
    pub fn all(bytes: &[u8]) -> Result<Vec<DeadGroup>, FormatError> {
        let mut d = Decoder::new(bytes);
        if d.bytes::<8>()? != PIECE_MARK {
            return Err(FormatError::Magic);
        }
        let mut groups: Vec<DeadGroup> = Vec::new();
        let mut last: Option<(Epoch, ChunkId)> = None;
        while d.remaining() > 0 {
            let before = groups.last().map_or(0, |group| group.epoch.0);
            let epoch = Epoch(before.checked_add(varint(&mut d)?).filter(|n| *n < 1 << 62).ok_or(FormatError::Field("epoch"))?);
            let count = u32::try_from(varint(&mut d)?).unwrap_or(u32::MAX);
            let first = groups.last().map_or(0, |group| group.first + group.count);
            // an epoch has two groups only where the first is full, so that equal pieces are equal
            // bytes
            let split = groups.last().is_some_and(|group| group.epoch == epoch && (group.count as usize) < DEAD_GROUP);
            if count == 0 || count as usize > DEAD_GROUP || split || first.checked_add(count).is_none() {
                return Err(FormatError::Field("deadlist"));
            }
            let at = u32::try_from(bytes.len() - d.remaining()).map_err(|_| FormatError::Field("deadlist"))?;
            let units_before = groups.last().map_or(0, |group| group.units_before + group.units);
            let mut units = 0;
            let mut chunk = None;
            for _ in 0..count {
                let record = get_record(&mut d, epoch, chunk)?;
                if chunk.is_none() && last.is_some_and(|last| last >= (epoch, record.chunk)) {
                    return Err(FormatError::Field("deadlist"));
                }
                units += u64::from(record.units);
                chunk = Some(record.chunk);
                last = Some((epoch, record.chunk));
            }
            groups.push(DeadGroup { epoch, first, count, at, units_before, units });
        }
        if groups.is_empty() { Err(FormatError::Truncated) } else { Ok(groups) }
    }

    /// Returns its records. `bytes` are the piece that the group was found in.
    ///
    /// # Errors
    /// [`FormatError`] when the group is of another piece.
    pub fn records(&self, bytes: &[u8]) -> Result<Vec<DeadRecord<'static>>, FormatError> {
        let mut d = Decoder::new(bytes.get(self.at as usize..).ok_or(FormatError::Truncated)?);
        let mut chunk = None;
        (0..self.count)
            .map(|_| {
                let record = get_record(&mut d, self.epoch, chunk)?;
                chunk = Some(record.chunk);
                Ok(record)
            })
            .collect()
    }
}

impl DeadRecord<'_> {
    /// Encodes a piece of records that are in order of (epoch, chunk) and have at least one slot
    /// each.
    pub fn encode_piece(records: &[DeadRecord<'_>]) -> Vec<u8> {
        DeadRecord::encode_groups(records).0
    }

    /// Encodes a piece, and returns its groups too.
    ///
    /// # Panics
    /// When the piece exceeds 4 GiB.
    pub fn encode_groups(records: &[DeadRecord<'_>]) -> (Vec<u8>, Vec<DeadGroup>) {
        let mut e = Encoder::default();
        e.raw(&PIECE_MARK);
        let mut groups: Vec<DeadGroup> = Vec::new();
        let mut before = 0;
        for of_epoch in records.chunk_by(|a, b| a.epoch == b.epoch) {
            for group in of_epoch.chunks(DEAD_GROUP) {
                let epoch = group.first().map_or(0, |record| record.epoch.0);
                put_varint(&mut e, epoch - before);
                put_varint(&mut e, group.len() as u64);
                before = epoch;
                let last = groups.last().map_or((0, 0), |last| (last.first + last.count, last.units_before + last.units));
                groups.push(DeadGroup {
                    epoch: Epoch(epoch),
                    first: last.0,
                    count: u32::try_from(group.len()).expect("a group is short"),
                    at: u32::try_from(e.len()).expect("a piece is short"),
                    units_before: last.1,
                    units: group.iter().map(|record| u64::from(record.units)).sum(),
                });
                let mut chunk = None;
                for record in group {
                    put_record(&mut e, record, chunk);
                    chunk = Some(record.chunk);
                }
            }
        }
        (e.into_bytes(), groups)
    }

    /// Decodes a piece, or a list of version 6 or older, whose records are then sorted.
    ///
    /// # Errors
    /// [`FormatError`] when it is invalid.
    pub fn decode_piece(bytes: &[u8]) -> Result<Vec<DeadRecord<'static>>, FormatError> {
        if !bytes.starts_with(&PIECE_MARK) {
            let mut records = DeadRecord::decode_list(bytes)?;
            records.retain(|record| record.slots.iter().any(|word| *word != 0));
            records.sort_by_key(|record| (record.epoch, record.chunk));
            return Ok(records);
        }
        let mut records = Vec::new();
        for group in DeadGroup::all(bytes)? {
            records.extend(group.records(bytes)?);
        }
        Ok(records)
    }
}

/// Returns the words of a bitmap without the empty ones at both ends, and the number of the first.
fn trimmed<'a>(record: &'a DeadRecord<'_>) -> (u16, &'a [u64]) {
    let empty = record.slots.iter().take_while(|word| **word == 0).count();
    let end = record.slots.iter().rposition(|word| *word != 0).map_or(empty, |last| last + 1);
    (record.first + empty as u16, record.slots.get(empty..end).unwrap_or_default())
}

/// Calls `run` with the first slot and the length of each run of set bits in a bitmap.
fn each_run(first: u16, words: &[u64], mut run: impl FnMut(u32, u32)) {
    let mut open: Option<u32> = None;
    for (at, word) in words.iter().enumerate() {
        let base = (u32::from(first) + at as u32) * 64;
        let mut from = 0;
        while from < 64 {
            let rest = word >> from;
            match open {
                None if rest == 0 => break,
                None => {
                    from += rest.trailing_zeros();
                    open = Some(base + from);
                }
                Some(start) => {
                    let ones = (!rest).trailing_zeros().min(64 - from);
                    from += ones;
                    if from < 64 {
                        run(start, base + from - start);
                        open = None;
                    }
                }
            }
        }
    }
    if let Some(start) = open {
        run(start, (u32::from(first) + words.len() as u32) * 64 - start);
    }
}

/// Returns the number of runs of a bitmap, and the bytes that they take when encoded.
fn runs_of(first: u16, words: &[u64]) -> (usize, usize) {
    let (mut count, mut bytes, mut end) = (0usize, 0, 0);
    each_run(first, words, |start, length| {
        bytes += varint_bytes(u64::from(start - end)) + varint_bytes(u64::from(length - 1));
        end = start + length;
        count += 1;
    });
    (count, bytes + varint_bytes(count as u64 * 2))
}

fn bitmap_bytes(first: u16, words: &[u64]) -> usize {
    varint_bytes(words.len() as u64 * 2 + 1) + varint_bytes(u64::from(first)) + words.len() * 8
}

fn put_record(e: &mut Encoder, record: &DeadRecord<'_>, before: Option<ChunkId>) {
    put_varint(e, record.chunk.0 - before.map_or(0, |chunk| chunk.0));
    put_varint(e, u64::from(record.units));
    let (first, words) = trimmed(record);
    let (count, bytes) = runs_of(first, words);
    if bytes <= bitmap_bytes(first, words) {
        put_varint(e, count as u64 * 2);
        let mut end = 0;
        each_run(first, words, |start, length| {
            put_varint(e, u64::from(start - end));
            put_varint(e, u64::from(length - 1));
            end = start + length;
        });
    } else {
        put_varint(e, words.len() as u64 * 2 + 1);
        put_varint(e, u64::from(first));
        e.u64s(words.iter().copied());
    }
}

fn get_record(d: &mut Decoder<'_>, epoch: Epoch, before: Option<ChunkId>) -> Result<DeadRecord<'static>, FormatError> {
    const WRONG: FormatError = FormatError::Field("deadlist");
    let delta = varint(d)?;
    let chunk = before.map_or(0, |chunk| chunk.0).checked_add(delta).filter(|n| *n < 1 << 40).ok_or(WRONG)?;
    if before.is_some() && delta == 0 {
        return Err(WRONG);
    }
    let units = u32::try_from(varint(d)?).map_err(|_| WRONG)?;
    let shape = varint(d)?;
    let count = usize::try_from(shape / 2).unwrap_or(usize::MAX);
    if count == 0 || count > MAX_SLOT_WORDS * 64 {
        return Err(WRONG);
    }
    let (first, words) = if shape % 2 == 1 { get_bitmap(d, count)? } else { get_runs(d, count)? };
    let (_, bytes) = runs_of(first, &words);
    if (bytes <= bitmap_bytes(first, &words)) != (shape % 2 == 0) {
        return Err(WRONG);
    }
    Ok(DeadRecord { epoch, chunk: ChunkId(chunk), units, first, slots: words.into() })
}

fn get_bitmap(d: &mut Decoder<'_>, count: usize) -> Result<(u16, Vec<u64>), FormatError> {
    let first = usize::try_from(varint(d)?).unwrap_or(usize::MAX);
    if count > MAX_SLOT_WORDS || first > MAX_SLOT_WORDS - count {
        return Err(FormatError::Field("deadlist"));
    }
    let words = (0..count).map(|_| d.u64()).collect::<Result<Vec<_>, _>>()?;
    if words.first() == Some(&0) || words.last() == Some(&0) {
        return Err(FormatError::Field("deadlist"));
    }
    Ok((first as u16, words))
}

fn get_runs(d: &mut Decoder<'_>, count: usize) -> Result<(u16, Vec<u64>), FormatError> {
    let most = MAX_SLOT_WORDS as u64 * 64;
    let (mut first, mut words, mut end) = (0, Vec::new(), 0u64);
    for at in 0..count {
        let (gap, length) = (varint(d)?, varint(d)?.saturating_add(1));
        // runs that touch would have been one
        if gap > most || length > most || end + gap + length > most || (at > 0 && gap == 0) {
            return Err(FormatError::Field("deadlist"));
        }
        let start = end + gap;
        end = start + length;
        if at == 0 {
            first = start / 64;
        }
        words.resize((end.div_ceil(64) - first) as usize, 0);
        let mut slot = start;
        while slot < end {
            let count = (64 - slot % 64).min(end - slot);
            if let Some(word) = words.get_mut((slot / 64 - first) as usize) {
                *word |= (u64::MAX >> (64 - count)) << (slot % 64);
            }
            slot += count;
        }
    }
    Ok((first as u16, words))
}

fn put_varint(e: &mut Encoder, mut n: u64) {
    while n >= 0x80 {
        e.u8(n as u8 | 0x80);
        n >>= 7;
    }
    e.u8(n as u8);
}

fn varint_bytes(n: u64) -> usize {
    (64 - (n | 1).leading_zeros() as usize).div_ceil(7)
}

/// Reads a number of seven bits a byte, lowest first; in several bytes the last one is not 0.
fn varint(d: &mut Decoder<'_>) -> Result<u64, FormatError> {
    let mut n = 0;
    for shift in (0..63).step_by(7) {
        let byte = d.u8()?;
        n |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return if byte == 0 && shift > 0 { Err(FormatError::Field("number")) } else { Ok(n) };
        }
    }
    Err(FormatError::Field("number"))
}

#[cfg(test)]
mod tests;
