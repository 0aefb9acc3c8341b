//! The pool's claim: seen in place now and then, written again so that others see that this host lives, and given back at the end.
//!
//! INV-CLAIM-1: nothing but reads is handed to a device later than [`LEASE_MILLIS`] after the beginning of the last look that found no other's claim. Who
//! takes a pool waits as long after its claim is in place everywhere, and only then reads what the pool is: so both never write, whatever time
//! this host was held up for. What a device was given before, and has not done yet, is beyond that. Operations may wait for long between the engine
//! and the device: whoever hands them over asks [`Engine::lease`](crate::Engine::lease) again, and gives back what comes too late. Looks and
//! claims overtake all of them.
//!
//! INV-CLAIM-3: every device that the labels call whole has the claim, durable: new ones with their first label, others before they are called so.

use std::collections::BTreeSet;
use std::rc::Rc;

use millpond_block::{Buf, ByteRange, Piece};
use millpond_device::{DeviceError, DeviceIndex};
use millpond_format::{CLAIM_OFFSET, Claim, FormatError, Holder, MemberState, PoolId, SECTOR_BYTES};

use super::checkpoint::second_area;
use crate::pool::{Context, Pool};
use crate::{PoolState, Time};

/// Milliseconds between two looks at the claim, after which it is written again.
pub(crate) const BEAT_MILLIS: u64 = 2_000;
/// Milliseconds after a look in which devices are given something to do: as long as a loaded disk may take to answer.
pub(crate) const LEASE_MILLIS: u32 = 10_000;

/// Milliseconds after the last look that came back in which looks fail until the pool stops, so that guests learn of it.
const UNSEEN_MILLIS: u64 = 30_000;

/// What a device was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ClaimIo {
    /// The second area's claim of the member at this position; asked then.
    Look { member: u16, position: usize, asked: Time },
    /// The first area's claim.
    Beat,
    /// Both claims say that nobody has the pool.
    Release,
    /// That is made durable.
    ReleaseFlush,
}

/// How far giving the pool back is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Release {
    #[default]
    No,
    /// A last look whether it is still this host's.
    Looking,
    /// So many writes are under way.
    Writing(usize),
    Flushing,
    Over,
}

/// The task that keeps the claim.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    /// What is claimed; nothing where nobody else can have the devices, or nothing is written to them.
    mine: Option<Claim>,
    /// Members, and the positions of their devices, that are asked just now.
    busy: BTreeSet<(u16, usize)>,
    /// When the last look began, and when the last one did that came back and found no other's claim.
    asked: Time,
    seen: Time,
    /// The time as it was told last, between turns, too.
    now: Time,
    release: Release,
    lost: bool,
}

impl Keeper {
    /// The claim was seen at a time.
    pub(crate) fn new(mine: Option<Claim>, seen: Time) -> Keeper {
        Keeper { mine, seen, asked: seen, ..Keeper::default() }
    }

    /// What is claimed.
    pub(crate) fn claim(&self) -> Option<&Claim> {
        self.mine.as_ref()
    }

    /// Another host has the pool.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost
    }

    /// The pool is being given back: nothing else is written.
    pub(crate) fn is_giving_back(&self) -> bool {
        self.release != Release::No
    }

    /// Until when devices may be given something else than reads; for ever where there is none.
    fn lease(&self) -> Option<Time> {
        if self.lost { Some(Time(0)) } else { self.mine.is_some().then(|| lease_of(self.seen)) }
    }

    /// Nothing may be given to a device now but reads.
    fn holds_back(&self) -> bool {
        self.lost || self.lease().is_some_and(|until| self.now > until)
    }

    /// Takes the time in before anything is given to a device.
    pub(crate) fn at(&mut self, now: Time) {
        self.now = now.max(self.now);
    }
}

/// Until when a look that began at a time allows writes.
pub(crate) fn lease_of(seen: Time) -> Time {
    Time(seen.0.saturating_add(u64::from(LEASE_MILLIS)))
}

/// The first claim of a holder that found others of terms below.
pub(crate) fn first_claim(pool: PoolId, holder: &Holder, term: u64, now: Time) -> Claim {
    Claim { pool, holder: holder.clone(), term, beat: 0, time: now.0, lease: LEASE_MILLIS, released: false }
}

/// Where the claim of a device of `size` bytes is, in its first or second area.
pub(crate) fn claim_at(size: u64, second: bool) -> ByteRange {
    let area = if second { second_area(size) } else { 0 };
    ByteRange { offset: area + CLAIM_OFFSET, length: SECTOR_BYTES as u64 }
}

/// What was read there.
pub(crate) fn read_claim(result: Result<(), DeviceError>, buf: Option<&Buf>) -> Result<Claim, FormatError> {
    let bytes = buf.filter(|_| result.is_ok()).and_then(|buf| buf.bytes().get(..SECTOR_BYTES));
    bytes.map_or(Err(FormatError::Truncated), Claim::decode)
}

impl Pool {
    /// The device of a member that says whose the pool is: one that the pool needs and that has everything. It got the claim before it was called so.
    fn claimable(&self, member: u16) -> Option<usize> {
        let known = self.config.shape.members.get(usize::from(member))?;
        let counts = known.state == MemberState::Present && !self.config.shape.is_aside(member);
        let position = self.io.position_of(member).filter(|_| counts && self.io.health.is_up(DeviceIndex(member)))?;
        Some(position).filter(|_| !self.relabeler.left.contains_key(&member) && !self.relabeler.fresh.contains(&member))
    }

    /// Members with the positions of their devices.
    fn claimable_members(&self) -> Vec<(u16, usize)> {
        let members = 0..u16::try_from(self.config.sizes.len()).unwrap_or(u16::MAX);
        members.filter_map(|member| Some((member, self.claimable(member)?))).collect()
    }

    /// Until when devices may be given something else than reads (INV-CLAIM-1).
    pub(crate) fn lease(&self) -> Option<Time> {
        self.keeper.lease()
    }

    /// True when writes wait until the claim is seen in place again (INV-CLAIM-1).
    pub(crate) fn holds_back(&self) -> bool {
        self.keeper.holds_back()
    }

    /// Looks at the claim when it is time to.
    pub(crate) fn step_claim(&mut self) {
        let due = self.now.0 >= self.keeper.asked.0.saturating_add(BEAT_MILLIS);
        if self.keeper.release != Release::No {
            // what is held back goes on when the claim is seen in place
            if due && self.holds_back() {
                self.keeper.asked = self.now;
                self.look();
            }
            return;
        }
        if !due {
            return;
        }
        let Some(mine) = &mut self.keeper.mine else { return };
        (mine.beat, mine.time) = (mine.beat + 1, self.now.0);
        self.keeper.asked = self.now;
        self.look();
    }

    /// Reads whose the pool is.
    fn look(&mut self) {
        let asked = self.now;
        for (member, position) in self.claimable_members() {
            if self.keeper.busy.insert((member, position)) {
                let context = Context::Claim(ClaimIo::Look { member, position, asked });
                let size = self.config.sizes.get(usize::from(member)).copied().unwrap_or(0);
                self.io.urgently(|io| io.read_raw(context, DeviceIndex(member), claim_at(size, true), &mut self.bufs));
            }
        }
    }

    /// The claim as it is now.
    pub(crate) fn claim_piece(&mut self) -> Option<Piece> {
        let sector = self.keeper.mine.as_ref()?.encode();
        let mut buf = self.bufs.take(SECTOR_BYTES);
        buf.bytes_mut().get_mut(..SECTOR_BYTES)?.copy_from_slice(&sector);
        Some(Piece::new(Rc::new(buf), 0..SECTOR_BYTES))
    }

    /// Nobody waits for it, and a device that cannot write it is judged by what else it cannot write.
    fn write_claim(&mut self, context: ClaimIo, member: u16, areas: &[bool]) {
        let Some(piece) = self.claim_piece() else { return };
        let size = self.config.sizes.get(usize::from(member)).copied().unwrap_or(0);
        let writes = areas.iter().map(|second| (member, claim_at(size, *second).offset, piece.clone())).collect();
        self.io.urgently(|io| io.write_loosely(Context::Claim(context), writes));
    }

    /// A look or a write of the claim is over.
    pub(crate) fn claim_done(&mut self, io: ClaimIo, result: Result<(), DeviceError>, buf: Option<Buf>) {
        match io {
            ClaimIo::Look { member, position, asked } => {
                self.keeper.busy.remove(&(member, position));
                let found = read_claim(result, buf.as_ref());
                buf.into_iter().for_each(|buf| self.bufs.give(buf));
                self.looked(member, position, asked, result.err(), &found);
            }
            ClaimIo::Beat => {}
            ClaimIo::Release => {
                let Release::Writing(left) = self.keeper.release else { return };
                self.keeper.release = Release::Writing(left - 1);
                if left == 1 {
                    let flushes = self.io.flush(Context::Claim(ClaimIo::ReleaseFlush));
                    self.keeper.release = if flushes { Release::Flushing } else { Release::Over };
                }
            }
            ClaimIo::ReleaseFlush => self.keeper.release = Release::Over,
        }
    }

    fn looked(&mut self, member: u16, position: usize, asked: Time, failed: Option<DeviceError>, found: &Result<Claim, FormatError>) {
        let Some(mine) = &self.keeper.mine else { return };
        match found {
            Ok(other) if other.supersedes(mine) => return self.lose_claim(&format!("host '{}'", other.holder.name)),
            Err(FormatError::Version(_)) => return self.lose_claim("a newer program"),
            _ => {}
        }
        match failed {
            // what is damaged is no other's: who takes a pool makes sure that its claim can be read
            None => self.keeper.seen = self.keeper.seen.max(asked),
            // nothing was seen: another's claim may be there
            Some(error) if self.now.0 > self.keeper.seen.0.saturating_add(UNSEEN_MILLIS) => return self.cannot_look(error),
            Some(_) => {}
        }
        let right = found.as_ref().is_ok_and(|found| found.holder == mine.holder);
        if matches!(self.state, PoolState::Faulted(_)) {
            return;
        }
        match self.keeper.release {
            Release::No if self.claimable(member) == Some(position) => {
                self.write_claim(ClaimIo::Beat, member, if right { &[false] } else { &[false, true] });
            }
            Release::Looking if self.keeper.busy.is_empty() => self.write_release(),
            _ => {}
        }
    }

    /// For long no look has come back: writes cannot wait for ever.
    fn cannot_look(&mut self, error: DeviceError) {
        self.fault(format!(
            "the claim cannot be read on any device ({error}), so another host may have taken the pool: repair the devices, then export the pool \
             here and import it again"
        ));
    }

    /// Another host has the pool: nothing is written any more, and nothing that is read can be trusted.
    fn lose_claim(&mut self, who: &str) {
        self.keeper.lost = true;
        self.fault(format!(
            "{who} took the pool over while this one was not heard of: stop the guests here, and export the pool here; it is in use there"
        ));
    }

    /// Everything is durable: gives the pool back. True when that is over.
    pub(crate) fn give_back_claim(&mut self) -> bool {
        if self.keeper.mine.is_none() {
            return true;
        }
        if self.keeper.release == Release::No {
            self.keeper.release = Release::Looking;
            self.look();
            if self.keeper.busy.is_empty() {
                self.write_release();
            }
        }
        self.keeper.release == Release::Over
    }

    fn write_release(&mut self) {
        let members: Vec<u16> = self.claimable_members().into_iter().map(|(member, _)| member).collect();
        self.keeper.release = if members.is_empty() { Release::Over } else { Release::Writing(members.len()) };
        if let Some(mine) = &mut self.keeper.mine {
            (mine.released, mine.time) = (true, self.now.0);
        }
        for member in members {
            self.write_claim(ClaimIo::Release, member, &[false, true]);
        }
    }
}
