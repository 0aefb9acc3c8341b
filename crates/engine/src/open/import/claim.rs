//! Claims at an import: finds out which host has the pool before anything is read or written, and
//! claims it for this host.
//!
//! A pool that no host has is claimed after it was read and before the first write. If another host
//! has not closed it the import is refused; first the claim is watched for a while, to report
//! whether that host is alive. With `force` the pool is claimed at once: the claim is in place for
//! as long as the other host may go on without seeing it (INV-CLAIM-1), and only then the pool is
//! read.
//!
//! INV-CLAIM-2: of several imports that find the same second claims, at most one continues. Each
//! writes first claims, checks that the second ones are unchanged, writes those, and checks that no
//! claim of another import exists. Suppose two continued, and B wrote its first claim after A: A
//! saw no claim of B, so A had written its second claim before, and B found that changed.

use millpond_block::{Buf, BufSlice, DeviceError, MemberId};
use millpond_format::{Claim, FormatError, Holder, SECTOR_BYTES};
use std::collections::BTreeMap;

use super::{Import, ImportIo, Stage};
use crate::pool::Pool;
use crate::task::{HEARTBEAT_MILLIS, LEASE_MILLIS, claim_at, first_claim, lease_of, read_claim};
use crate::{ClaimRefusal, OpenErrorKind, Time};

/// Milliseconds for which a claim must not change before its host is called silent.
const WATCH_MILLIS: u64 = 10_000;
/// Milliseconds between two reads meanwhile.
const WATCH_STEP_MILLIS: u64 = 1_000;
/// Milliseconds that clocks may differ by over the time of a lease.
const CLOCK_MILLIS: u64 = 1_000;

/// Progress of claiming.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::open) enum Claiming {
    /// The claims are being read.
    Look,
    /// Waits until this time to read them again.
    Rest(Time),
    First,
    FirstFlush,
    /// The second claims are being read again: they must be unchanged.
    Unchanged,
    Second,
    SecondFlush,
    /// Waits until this time, by which the other host must have seen that it lost the pool.
    Settle(Time),
    /// All claims are being read again: none may be another import's.
    Confirm,
}

/// The claims that an import has read and written.
#[derive(Debug, Default)]
pub(in crate::open) struct Claims {
    /// The current time; claims that an import writes carry the time at which it began.
    now: Time,
    /// The claims read last, by member and area; reads in flight; and when they began.
    found: BTreeMap<(MemberId, bool), Claim>,
    newer: Option<FormatError>,
    reading: usize,
    asked: Time,
    /// Another host's claim as first seen, and when.
    watched: Option<(Claim, Time)>,
    /// The owner when the pool's content began to be read: session, term, and whether it was
    /// closed.
    before: Option<([u8; 16], u64, bool)>,
    /// The second claims when this import began to write its own.
    door: BTreeMap<MemberId, Claim>,
    pub(crate) mine: Option<Claim>,
    /// Start of the last read that saw this import's claim in place.
    pub(crate) seen: Option<Time>,
    /// Lease in milliseconds of the host from which the pool is taken.
    others_lease: Option<u32>,
    /// The pool has been read: from now on it is written to.
    late: bool,
}

impl Claims {
    /// Returns the valid claim: the newest of the second ones; if none is readable, of the first
    /// ones. Of its heartbeats, the last.
    fn owner(&self) -> Option<Claim> {
        let newest =
            |second: bool| self.found.iter().filter(|((_, at), _)| *at == second).map(|(_, claim)| claim).max_by_key(|claim| claim.term);
        let owner = newest(true).or_else(|| newest(false))?;
        let beats = self.found.values().filter(|claim| claim.holder.session == owner.holder.session && claim.term == owner.term);
        let last = beats.max_by_key(|claim| claim.heartbeat).unwrap_or(owner);
        Some(Claim { released: owner.released, ..last.clone() })
    }

    /// Returns another import's claim with the same term as this one's, or a later term.
    fn rival(&self) -> Option<&Claim> {
        let mine = self.mine.as_ref()?;
        self.found.values().find(|claim| claim.supersedes(mine))
    }

    /// Returns a second claim that is not this import's, and was not there before it. On a device
    /// that lost this import's claim, the old one is read.
    fn overwritten(&self) -> Option<&Claim> {
        let mine = self.mine.as_ref()?;
        let mut second = self.found.iter().filter(|((_, second), _)| *second);
        let rival =
            second.find(|((member, _), claim)| claim.holder.session != mine.holder.session && self.door.get(member) != Some(*claim));
        rival.map(|(_, claim)| claim)
    }

    /// Returns whether this import's second claim was read on any device.
    fn is_in_place(&self) -> bool {
        let mine = self.mine.as_ref().map(|mine| mine.holder.session);
        self.found.iter().any(|((_, second), claim)| *second && Some(claim.holder.session) == mine)
    }

    /// Returns the owner in the form of [`before`](Self::before).
    fn owned(&self) -> Option<([u8; 16], u64, bool)> {
        self.owner().map(|owner| (owner.holder.session, owner.term, owner.released))
    }

    fn second_ones(&self) -> BTreeMap<MemberId, Claim> {
        let second = self.found.iter().filter(|((_, second), _)| *second);
        second.map(|((member, _), claim)| (*member, claim.clone())).collect()
    }
}

impl Import {
    fn holder(&self) -> Option<&Holder> {
        self.tuning.holder.as_ref().filter(|_| !self.surveying)
    }

    /// Continues after the labels: finds out which host has the pool before it is read.
    pub(super) fn claim_before_reading(&mut self) -> Result<(), OpenErrorKind> {
        if self.holder().is_none() {
            self.read_rings();
            return Ok(());
        }
        self.look_at_claims(Claiming::Look);
        Ok(())
    }

    /// Continues after replay: claims the pool before the first write.
    pub(super) fn claim_before_writing(&mut self) -> Option<Pool> {
        self.claims.late = true;
        if self.holder().is_none() {
            self.stage = Stage::Level;
            return self.level_on();
        }
        self.look_at_claims(if self.claims.seen.is_some() { Claiming::Confirm } else { Claiming::Look });
        None
    }

    /// Takes in the current time, before operations are handed to a device.
    pub(crate) fn at(&mut self, now: Time) {
        self.claims.now = now.max(self.claims.now);
    }

    /// Returns whether the import only waits for time to pass.
    pub(crate) fn rests(&self) -> bool {
        matches!(self.stage, Stage::Claim(Claiming::Rest(until) | Claiming::Settle(until)) if self.claims.now < until)
    }

    /// Returns the time until which devices may be written (INV-CLAIM-1). Claims themselves are
    /// written without a lease: other hosts see them (INV-CLAIM-2).
    pub(crate) fn lease(&self) -> Option<Time> {
        self.claims.seen.filter(|_| !matches!(self.stage, Stage::Claim(_))).map(lease_of)
    }

    /// Returns whether devices may only be read now.
    pub(super) fn holds_back(&self) -> bool {
        self.lease().is_some_and(|until| self.claims.now > until)
    }

    /// Returns whether claims are being read.
    pub(super) fn is_looking_at_claims(&self) -> bool {
        self.claims.reading > 0
    }

    fn look_at_claims(&mut self, step: Claiming) {
        self.stage = Stage::Claim(step);
        self.read_claims();
    }

    fn read_claims(&mut self) {
        self.claims.found.clear();
        self.claims.asked = self.claims.now;
        for member in self.claimed_members() {
            for second in [false, true] {
                self.claims.reading += 1;
                let place = claim_at(self.member_size(member), second);
                let asked = ImportIo::Claim(member, second);
                self.io.urgently(|io| io.read_raw(asked, member, place, &mut self.bufs));
            }
        }
    }

    /// Returns the members whose claims count: the same as those whose roots count.
    fn claimed_members(&self) -> Vec<MemberId> {
        self.rings.as_ref().map(|rings| rings.members()).unwrap_or_default()
    }

    fn member_size(&self, member: MemberId) -> u64 {
        self.config.as_ref().map_or(0, |config| config.size_of(member))
    }

    /// Handles a read of a claim. A damaged or unreadable copy is ignored, because others exist.
    pub(super) fn claim_read(
        &mut self,
        member: MemberId,
        second: bool,
        result: Result<(), DeviceError>,
        buf: Option<&Buf>,
    ) -> Result<(), OpenErrorKind> {
        self.claims.reading -= 1;
        match read_claim(result, buf) {
            Ok(claim) if self.config.as_ref().is_some_and(|config| config.id == claim.pool) => {
                self.claims.found.insert((member, second), claim);
            }
            Err(why @ FormatError::Version(_)) => self.claims.newer = Some(why),
            _ => {}
        }
        if self.claims.reading > 0 || matches!(self.stage, Stage::Claim(_)) {
            return Ok(());
        }
        // a check while the pool is being written to
        self.confirm()
    }

    /// Checks now and then that the pool is still this host's, while its log and root are repaired.
    pub(super) fn keep_claim(&mut self) {
        let writing = matches!(self.stage, Stage::Level | Stage::Mend(_)) && self.claims.seen.is_some() && self.claims.reading == 0;
        if writing && self.claims.now.0 >= self.claims.asked.0.saturating_add(HEARTBEAT_MILLIS) {
            self.read_claims();
        }
    }

    /// Continues when all operations have ended.
    pub(super) fn claim_on(&mut self, step: Claiming) -> Result<(), OpenErrorKind> {
        match step {
            Claiming::Look => self.looked(),
            Claiming::Rest(until) => {
                if self.claims.now >= until {
                    self.look_at_claims(Claiming::Look);
                }
                Ok(())
            }
            Claiming::First => self.flush_claims(Claiming::FirstFlush),
            Claiming::FirstFlush => {
                self.look_at_claims(Claiming::Unchanged);
                Ok(())
            }
            Claiming::Unchanged => {
                let there = self.claims.second_ones();
                if there.iter().any(|(member, claim)| self.claims.door.get(member).is_some_and(|before| before != claim)) {
                    return Err(self.refusal(ClaimRefusal::Importing));
                }
                if there.keys().any(|member| !self.claims.door.contains_key(member)) {
                    // it is new, or could not be read before: find out which host has the pool
                    self.look_at_claims(Claiming::Look);
                    return Ok(());
                }
                self.write_claims(true);
                self.stage = Stage::Claim(Claiming::Second);
                Ok(())
            }
            Claiming::Second => self.flush_claims(Claiming::SecondFlush),
            Claiming::SecondFlush => {
                match self.claims.others_lease {
                    Some(lease) => {
                        let until = self.claims.now.0.saturating_add(u64::from(lease) + CLOCK_MILLIS);
                        self.stage = Stage::Claim(Claiming::Settle(Time(until)));
                    }
                    None => self.look_at_claims(Claiming::Confirm),
                }
                Ok(())
            }
            Claiming::Settle(until) => {
                if self.claims.now >= until {
                    self.look_at_claims(Claiming::Confirm);
                }
                Ok(())
            }
            Claiming::Confirm => {
                self.confirm()?;
                if self.claims.late {
                    self.stage = Stage::Level;
                } else {
                    self.read_rings();
                }
                Ok(())
            }
        }
    }

    fn flush_claims(&mut self, step: Claiming) -> Result<(), OpenErrorKind> {
        self.stage = Stage::Claim(step);
        self.io.flush(ImportIo::Claimed);
        Ok(())
    }

    /// Decides by the claims that were read.
    fn looked(&mut self) -> Result<(), OpenErrorKind> {
        let me = self.holder().map(|holder| holder.host);
        if let Some(why) = self.claims.newer {
            return Err(self.refusal(ClaimRefusal::Newer(why)));
        }
        let others = self.claims.owner().filter(|owner| !owner.released && Some(owner.holder.host) != me);
        let Some(owner) = others else {
            if !self.claims.late {
                self.claims.before = self.claims.owned();
                self.read_rings();
            } else if self.claims.before == self.claims.owned() {
                self.begin_claim();
            } else {
                // the pool was written to since, so the state that was read is old
                return Err(self.refusal(ClaimRefusal::UsedMeanwhile));
            }
            return Ok(());
        };
        if self.tuning.force && !self.claims.late {
            if self.tuning.read_only {
                self.read_rings();
            } else {
                self.claims.others_lease = Some(owner.lease);
                self.begin_claim();
            }
            return Ok(());
        }
        let Some((first, since)) = self.claims.watched.clone().filter(|_| !self.claims.late) else {
            if self.claims.late {
                return Err(self.in_use(&owner));
            }
            self.claims.watched = Some((owner, self.claims.now));
            return self.rest();
        };
        if first.holder.session != owner.holder.session || first.heartbeat != owner.heartbeat {
            return Err(self.in_use(&owner));
        }
        if self.claims.now.0 < since.0.saturating_add(WATCH_MILLIS) {
            return self.rest();
        }
        if self.tuning.read_only {
            // nothing is written that could harm the pool
            self.read_rings();
            return Ok(());
        }
        let (host, heard_millis) = (owner.holder.name.clone(), self.claims.now.0.saturating_sub(owner.time));
        Err(self.refusal(ClaimRefusal::NotClosed { host, heard_millis, watched_millis: WATCH_MILLIS }))
    }

    fn rest(&mut self) -> Result<(), OpenErrorKind> {
        self.stage = Stage::Claim(Claiming::Rest(Time(self.claims.now.0.saturating_add(WATCH_STEP_MILLIS))));
        Ok(())
    }

    fn refusal(&self, why: ClaimRefusal) -> OpenErrorKind {
        let pool = self.config.as_ref().map_or_else(String::new, |config| config.name.clone());
        OpenErrorKind::Claimed { pool, why }
    }

    fn in_use(&self, owner: &Claim) -> OpenErrorKind {
        let (host, heard_millis) = (owner.holder.name.clone(), self.claims.now.0.saturating_sub(owner.time));
        self.refusal(ClaimRefusal::InUse { host, heard_millis })
    }

    /// Starts writing this import's claims.
    fn begin_claim(&mut self) {
        let (Some(holder), Some(config)) = (self.tuning.holder.clone(), &self.config) else { return };
        let term = self.claims.found.values().map(|claim| claim.term).max().unwrap_or(0) + 1;
        self.claims.mine = Some(first_claim(config.id, &holder, term, self.claims.now));
        self.claims.door = self.claims.second_ones();
        self.write_claims(false);
        self.stage = Stage::Claim(Claiming::First);
    }

    fn write_claims(&mut self, second: bool) {
        let Some(sector) = self.claims.mine.as_ref().map(Claim::encode) else { return };
        let mut buf = self.bufs.take(SECTOR_BYTES);
        if let Some(to) = buf.bytes_mut().get_mut(..SECTOR_BYTES) {
            to.copy_from_slice(&sector);
        }
        let piece = BufSlice::new(buf, 0..SECTOR_BYTES);
        let place = |member: MemberId| (member, claim_at(self.member_size(member), second).offset, piece.clone());
        let writes = self.claimed_members().into_iter().map(place).collect();
        self.io.write_raw(ImportIo::Claimed, writes);
    }

    /// Checks the claims that were read again: none may be another import's.
    fn confirm(&mut self) -> Result<(), OpenErrorKind> {
        if let Some(why) = self.claims.newer {
            return Err(self.refusal(ClaimRefusal::Newer(why)));
        }
        // every second claim was this import's, so a different one was written after that
        if let Some(rival) = self.claims.rival().or_else(|| self.claims.overwritten()).cloned() {
            return Err(self.in_use(&rival));
        }
        if self.claims.is_in_place() {
            self.claims.seen = Some(self.claims.asked);
        } else if self.claims.seen.is_none() {
            return Err(self.refusal(ClaimRefusal::Unreadable));
        }
        Ok(())
    }
}

const _: () = assert!(WATCH_MILLIS > 2 * HEARTBEAT_MILLIS && LEASE_MILLIS as u64 > 2 * HEARTBEAT_MILLIS);
