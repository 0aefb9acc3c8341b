//! Guest requests: their possible effects, and whether their answers are legal.

use millpond_block::{ByteRange, DiskError, IoSlices, Op, Request};
use smallvec::SmallVec;

use super::history::{Cell, Cut, PieceId, Value, ZERO, sharpen};
use super::{BLOCK, Frozen, Oracle, Verdict, Violation, broken};
use crate::base::is_content;
use crate::content::{Content, identify};
use crate::system::{Target, target_name};
use crate::trace::Moment;

/// A request in flight.
#[derive(Clone, Debug)]
pub struct Flight {
    pub(super) target: Target,
    pub(super) request: Request,
    pub(super) at: Moment,
    pieces: SmallVec<[PieceId; 2]>,
    expected: Option<DiskError>,
}

impl Flight {
    /// Returns the pieces that it writes.
    pub(super) fn pieces(&self) -> impl Iterator<Item = PieceId> + '_ {
        self.pieces.iter().copied()
    }
}

fn operation(op: Op) -> &'static str {
    match op {
        Op::Read => "read",
        Op::Write => "write",
        Op::Flush => "flush",
        Op::Discard => "discard",
        Op::WriteZeroes { .. } => "write-zeroes",
        Op::Cache => "cache",
    }
}

impl Oracle {
    /// Returns the number of the next operation and the serial of the volume, for the stamps in its
    /// cells.
    pub fn number(&mut self, target: Target) -> (u64, u32) {
        self.ops += 1;
        let serial = match target {
            Target::Head(id) => self.volumes.get(&id).map_or(0, |v| v.serial),
            Target::Snapshot(_) => 0,
        };
        (self.ops, serial)
    }

    /// Records a request; with `bytes`, it need not align to sectors. `value` is the content of a
    /// write: the number of its operation, or [`ZERO`] for a payload of zeroes.
    pub fn begin(&mut self, tag: u64, target: Target, request: Request, bytes: bool, value: Value, at: Moment) {
        let expected = self.refusal(target, &request, bytes);
        let mut flight = Flight { target, request, at, pieces: SmallVec::new(), expected };
        let horizon = self.horizon(at);
        if expected.is_none()
            && request.op.modifies()
            && let Target::Head(id) = target
            && let Some(volume) = self.volumes.get_mut(&id)
        {
            let (cells, per_block) = (self.grid.range(request.range), self.grid.per_block());
            let stable = volume.floor.min(horizon);
            let mut block = cells.start / per_block;
            while block * per_block < cells.end {
                let (low, high) = ((block * per_block).max(cells.start), ((block + 1) * per_block).min(cells.end));
                // A discard does not change blocks that it covers in part.
                if request.op != Op::Discard || high - low == per_block {
                    let value = if request.op == Op::Write { value } else { ZERO };
                    let piece = self.pieces.add(value, at);
                    flight.pieces.push(piece);
                    for cell in volume.cells.get_mut(low as usize..high as usize).into_iter().flatten() {
                        cell.prune(stable, horizon, &self.pieces);
                        cell.push(piece);
                    }
                }
                block += 1;
            }
        }
        self.flights.insert(tag, flight);
    }

    /// Returns whether a request of a guest with a disk is malformed.
    pub fn is_refused(&self, target: Target, request: &Request) -> bool {
        self.refusal(target, request, false).is_some()
    }

    /// Returns the error that a malformed request must get.
    fn refusal(&self, target: Target, request: &Request, bytes: bool) -> Option<DiskError> {
        let (size, sector) = self.geometry(target)?;
        if request.op == Op::Flush {
            return None;
        }
        let read_only = match target {
            Target::Snapshot(_) => true,
            Target::Head(id) => self.volumes.get(&id).is_some_and(|v| v.read_only || v.is_base()),
        };
        let sector = u64::from(sector.logical());
        if request.op.modifies() && read_only {
            Some(DiskError::ReadOnly)
        } else if request.range.end().is_none_or(|end| end > size) {
            Some(DiskError::OutOfBounds)
        } else if !bytes && (!request.range.offset.is_multiple_of(sector) || !request.range.length.is_multiple_of(sector)) {
            Some(DiskError::Invalid)
        } else {
            None
        }
    }

    /// Judges the answer to a request.
    ///
    /// # Errors
    /// If the answer is not legal.
    pub fn complete(&mut self, tag: u64, result: &Result<IoSlices, DiskError>, now: Moment) -> Verdict {
        let Some(flight) = self.flights.remove(&tag) else { return broken(format!("an answer to request #{tag}, which has none to get")) };
        let what = || {
            format!(
                "#{tag} {} of {} at {}+{}",
                operation(flight.request.op),
                target_name(flight.target),
                flight.request.range.offset,
                flight.request.range.length
            )
        };
        match (result, flight.expected) {
            (Err(error), Some(expected)) if *error == expected => Ok(()),
            (Err(DiskError::Io | DiskError::Shutdown), Some(_)) if self.errors_allowed => Ok(()),
            (answer, Some(expected)) => {
                broken(format!("{}: '{expected}' is due, the answer is {:?}", what(), answer.as_ref().map(|_| "success")))
            }
            (Ok(data), None) if flight.request.op == Op::Read => {
                self.judge_read(&flight, data, now).map_err(|v| Violation(format!("{}: {v}", what())))
            }
            (Ok(_), None) => {
                self.acknowledge(&flight, now);
                Ok(())
            }
            (Err(error), None) => {
                for piece in &flight.pieces {
                    let piece = self.pieces.get_mut(*piece);
                    piece.end = piece.end.min(now);
                }
                let growing = matches!(flight.request.op, Op::Write | Op::WriteZeroes { .. });
                match error {
                    DiskError::NoSpace if growing || self.errors_allowed => Ok(()),
                    DiskError::Io | DiskError::Shutdown if self.errors_allowed => Ok(()),
                    error if self.excuses(&flight, *error) || self.objects_excuse(&flight, *error) => Ok(()),
                    _ => broken(format!("{} fails: {error}", what())),
                }
            }
        }
    }

    fn acknowledge(&mut self, flight: &Flight, now: Moment) {
        for piece in &flight.pieces {
            let piece = self.pieces.get_mut(*piece);
            piece.high = piece.high.min(now);
        }
        let Target::Head(id) = flight.target else { return };
        let Some(volume) = self.volumes.get_mut(&id) else { return };
        if self.held || !volume.cache.honours_flush() {
            return;
        }
        if flight.request.op == Op::Flush {
            volume.floor = volume.floor.max(flight.at);
        } else if !flight.pieces.is_empty() && (flight.request.fua || volume.cache.every_write_durable()) {
            // The write is durable, and since a crash leaves a prefix, so is everything
            // acknowledged before it began.
            volume.floor = volume.floor.max(flight.at);
            for piece in &flight.pieces {
                self.pieces.get_mut(*piece).durable = true;
            }
            self.note_durable(flight);
        }
    }

    fn judge_read(&mut self, flight: &Flight, data: &IoSlices, now: Moment) -> Verdict {
        let length: u64 = data.iter().map(|p| p.len() as u64).sum();
        if length != flight.request.range.length {
            return broken(format!("{length} bytes come back"));
        }
        let mut joined: Vec<u8>;
        let bytes = match data.as_slice() {
            [one] => one.bytes(),
            many => {
                joined = Vec::with_capacity(length as usize);
                many.iter().for_each(|piece| joined.extend_from_slice(piece.bytes()));
                &joined
            }
        };
        let mut offset = flight.request.range.offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let length = (BLOCK - offset % BLOCK).min(rest.len() as u64) as usize;
            let (block, after) = rest.split_at(length);
            let mut cut = Cut::between(flight.at, now);
            for (cell, place) in self.grid.places(ByteRange { offset, length: length as u64 }) {
                let value = seen(block.get(place).unwrap_or_default(), cell, self.grid.start(cell))?;
                match flight.target {
                    _ if self.rewound => {}
                    Target::Head(id) => self.judge_head(id, cell as usize, value, &mut cut)?,
                    Target::Snapshot(id) => self.judge_snapshot(id, cell as usize, value)?,
                }
            }
            sharpen(&cut, &mut self.pieces);
            offset += length as u64;
            rest = after;
        }
        Ok(())
    }

    pub(super) fn judge_head(&mut self, id: millpond_engine::VolumeId, index: usize, value: Value, cut: &mut Cut) -> Verdict {
        let at = self.grid.start(index as u64);
        let Some(volume) = self.volumes.get_mut(&id) else { return Ok(()) };
        let Some(cell) = volume.cells.get_mut(index) else { return Ok(()) };
        let adopting = self.adopting;
        let fine = match &mut volume.crash {
            None => cell.observe(value, cut, &self.pieces),
            Some(crash) => {
                if let Some(seen) = volume.recovered.get_mut(index) {
                    if seen.is_some_and(|before| before != value) {
                        return broken(format!(
                            "byte {at} holds {}, and held {} before, with no write between",
                            show(value),
                            show(seen.unwrap_or(ZERO))
                        ));
                    }
                    *seen = Some(value);
                }
                adopting || cell.observe(value, crash, &self.pieces)
            }
        };
        if fine {
            return Ok(());
        }
        let crash = volume.crash.as_ref();
        let when = crash.map_or("", |_| ", after the power cut,");
        broken(format!("byte {at}{when} holds {}; legal: {}", show(value), legal(cell, crash.unwrap_or(cut), &self.pieces)))
    }

    pub(super) fn judge_snapshot(&mut self, id: millpond_engine::SnapshotId, index: usize, value: Value) -> Verdict {
        let at = self.grid.start(index as u64);
        let Some(snapshot) = self.snapshots.get_mut(&id) else { return Ok(()) };
        let Some(frozen) = snapshot.cells.get_mut(index) else { return Ok(()) };
        match frozen {
            Frozen::Known(known) if *known == value => Ok(()),
            Frozen::Known(known) => broken(format!("byte {at} of the snapshot holds {}, must hold {}", show(value), show(*known))),
            Frozen::Open(cell) => {
                let Some(cut) = self.cuts.get_mut(snapshot.cut) else { return Ok(()) };
                if !cell.observe(value, cut, &self.pieces) {
                    return broken(format!("byte {at} of the snapshot holds {}; legal: {}", show(value), legal(cell, cut, &self.pieces)));
                }
                *frozen = Frozen::Known(value);
                sharpen(cut, &mut self.pieces);
                Ok(())
            }
        }
    }
}

fn seen(bytes: &[u8], cell: u64, at: u64) -> Result<Value, Violation> {
    match identify(bytes) {
        Content::Zero => Ok(ZERO),
        Content::Stamp { op, cell: own, .. } if own == cell => Ok(op),
        Content::Stamp { op, cell: own, volume } => {
            broken(format!("byte {at} (cell {cell}) holds what op {op} wrote to cell {own} of the volume with serial {volume}"))
        }
        Content::Garbage => broken(format!("byte {at} holds garbage: {:02x?}...", bytes.get(..16).unwrap_or(bytes))),
    }
}

fn show(value: Value) -> String {
    match value {
        ZERO => "zeroes".to_owned(),
        value if is_content(value) => format!("content of a base ({value:x})"),
        op => format!("op {op}"),
    }
}

fn legal(cell: &Cell, cut: &Cut, pieces: &super::history::Pieces) -> String {
    let possible: Vec<String> = cell.possible(cut, pieces).iter().map(|v| show(*v)).collect();
    if possible.is_empty() { "nothing (the rest of this state excludes it)".to_owned() } else { possible.join(", ") }
}
