//! Checks a device's cap: bytes and operations stay below it, and delayed operations leave in order
//! and in time.

use std::collections::VecDeque;

use millpond_block::{Io, IoId, IoKind};
use millpond_device::DeviceLimit;

use super::meter::{Meter, cost};
use crate::oracle::{Verdict, broken};

/// Allowance that an idle device accumulates, in nanoseconds: a twentieth of a second.
const BURST: u64 = 50_000_000;
/// Tolerance for the time at which the gate wants to be asked again, in nanoseconds.
const LATE: u64 = 1_000;

/// The cap of one device.
#[derive(Debug)]
pub struct Cap {
    limit: DeviceLimit,
    /// For bytes, for operations, and for the more expensive of the two per operation.
    meters: [Meter; 3],
    held: VecDeque<IoId>,
}

/// Properties of an operation, kept after it was handed to the gate.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    pub id: IoId,
    /// Bytes that the cap counts; `None` if it does not count the operation.
    pub counts: Option<u64>,
    /// The operation reads or writes the claim.
    pub claim: bool,
}

impl Known {
    /// Takes the properties of an operation.
    pub fn of(io: &Io, claim: bool) -> Known {
        let bytes = match &io.kind {
            IoKind::Read { length, .. } => Some(*length as u64),
            IoKind::Write { pieces, .. } => Some(pieces.iter().map(|piece| piece.len() as u64).sum()),
            IoKind::Zero { length, .. } => Some(*length),
            IoKind::Flush | IoKind::Discard { .. } => None,
        };
        Known { id: io.id, counts: bytes.filter(|_| !io.urgent), claim }
    }
}

impl Cap {
    /// Starts with full allowances.
    pub fn new(limit: DeviceLimit, now: u64) -> Cap {
        let meter = || Meter::new(BURST, now);
        Cap { limit, meters: [meter(), meter(), meter()], held: VecDeque::new() }
    }

    /// Changes the limit; delayed operations stay.
    pub fn set(&mut self, limit: DeviceLimit, now: u64) {
        *self = Cap { held: std::mem::take(&mut self.held), ..Cap::new(limit, now) };
    }

    /// Checks an operation that the gate admitted.
    pub fn passes(&mut self, io: Known, now: u64) -> Verdict {
        let Some(bytes) = io.counts.filter(|_| self.limit != DeviceLimit::default()) else { return Ok(()) };
        if let Some(first) = self.held.front() {
            return broken(format!("operation {} overtakes {} at the gate", io.id.0, first.0));
        }
        let rates = [self.limit.bytes_per_second, self.limit.ops_per_second];
        let costs = [bytes, 1].into_iter().zip(rates).map(|(amount, rate)| rate.map_or(0, |rate| cost(amount, rate)));
        let costs: Vec<u64> = costs.collect();
        let dearer = costs.iter().copied().max().unwrap_or(0);
        for (meter, cost) in self.meters.iter_mut().zip(costs.into_iter().chain([dearer])) {
            if meter.is_over(now) {
                return broken(format!("operation {} of {bytes} bytes passes a device's cap: {:?}", io.id.0, self.limit));
            }
            meter.pay(cost, now);
        }
        Ok(())
    }

    /// Checks an operation that the gate delays.
    pub fn holds(&mut self, io: Known) -> Verdict {
        if io.claim {
            return broken(format!("operation {} of the claim is held back by a cap", io.id.0));
        }
        if io.counts.is_none() {
            return broken(format!("operation {} is held back by a cap that does not count it", io.id.0));
        }
        self.held.push_back(io.id);
        Ok(())
    }

    /// Checks a delayed operation that the gate releases.
    pub fn releases(&mut self, io: Known, now: u64) -> Verdict {
        if self.held.pop_front() != Some(io.id) {
            return broken(format!("operation {} leaves the gate before others that were held longer", io.id.0));
        }
        let behind = std::mem::take(&mut self.held);
        let verdict = self.passes(io, now);
        self.held = behind;
        verdict
    }

    /// Checks, after the gate released all that it may, that nothing is delayed too long.
    pub fn is_kept(&mut self, now: u64, next: Option<u64>) -> Verdict {
        let Some(first) = self.held.front() else { return Ok(()) };
        let [_, _, dearer] = &mut self.meters;
        if dearer.is_due(now) || self.limit == DeviceLimit::default() {
            return broken(format!("operation {} is held although its time has come: {:?}", first.0, self.limit));
        }
        let due = dearer.due(now);
        if next.is_none_or(|next| next > due + LATE) {
            return broken(format!("operation {} may go at {due} ns, and the gate wants to be asked at {next:?}", first.0));
        }
        Ok(())
    }
}
