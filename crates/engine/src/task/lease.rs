//! The pool's claim on its devices: read now and then to see that it is in place, rewritten as a
//! heartbeat for other hosts, and released at the end.
//!
//! INV-CLAIM-1: nothing but reads is handed to a device later than [`LEASE_MILLIS`] after the start
//! of the last look that found no claim of another host. A host that takes over a pool waits as
//! long after its claim is in place on every device, and reads the pool's state only then. So two
//! hosts never both write, however long this host was paused. Operations that a device received
//! earlier and has not completed are not covered. Operations may wait for long between the engine
//! and the device: the code that hands them over asks [`Engine::lease`](crate::Engine::lease)
//! again, and returns those that come too late. Reads and writes of claims overtake all of them.
//!
//! INV-CLAIM-3: every device that the labels call whole has the claim, durably: new devices get it
//! with their first label, others before the labels call them whole.

use millpond_block::{Buf, BufSlice, ByteRange, DeviceError, DeviceSlot, MemberId};
use millpond_format::{CLAIM_OFFSET, Claim, FormatError, Holder, MemberState, PoolId, SECTOR_BYTES, second_area};
use std::collections::BTreeSet;

use crate::store::{ClaimIo, Context, Store};
use crate::{Fault, PoolState, Time};

/// Milliseconds between two looks at the claim, after each of which the claim is written again.
pub(crate) const HEARTBEAT_MILLIS: u64 = 2_000;
/// Milliseconds after the start of a look during which devices may be written: as long as a loaded
/// disk may take to answer.
pub(crate) const LEASE_MILLIS: u32 = 10_000;

/// Milliseconds after the last successful look until failing looks stop the pool, so that guests
/// get errors.
const UNSEEN_MILLIS: u64 = 30_000;

/// Progress of releasing the claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Release {
    #[default]
    No,
    /// A last look whether the claim is still this host's.
    Looking,
    /// Number of writes in flight.
    Writing(usize),
    Flushing,
    Over,
}

/// The task that keeps the claim: the host's lease on the pool.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    /// The claim of this import; `None` where no other host can have the devices, or nothing is
    /// written to them.
    mine: Option<Claim>,
    /// Members, with the slots of their devices, with a look in flight.
    busy: BTreeSet<(MemberId, DeviceSlot)>,
    /// Start of the last look, and start of the last look that succeeded and found no claim of
    /// another host.
    asked: Time,
    seen: Time,
    /// The newest time that is known, also between turns.
    now: Time,
    release: Release,
    lost: bool,
}

impl Lease {
    /// Creates the lease of a claim that was seen in place at `seen`.
    pub(crate) fn new(mine: Option<Claim>, seen: Time) -> Lease {
        Lease { mine, seen, asked: seen, ..Lease::default() }
    }

    /// Returns the claim of this import.
    pub(super) fn claim(&self) -> Option<&Claim> {
        self.mine.as_ref()
    }

    /// Returns whether another host has the pool.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost
    }

    /// Returns whether the claim is being released: nothing else is written.
    pub(crate) fn is_giving_back(&self) -> bool {
        self.release != Release::No
    }

    /// Returns the time until which devices may be written (INV-CLAIM-1); `None` means without limit.
    pub(crate) fn lease(&self) -> Option<Time> {
        if self.lost { Some(Time(0)) } else { self.mine.is_some().then(|| lease_of(self.seen)) }
    }

    /// Returns whether devices may only be read now: writes wait until the claim is seen in place
    /// again (INV-CLAIM-1).
    pub(crate) fn holds_back(&self) -> bool {
        self.lost || self.lease().is_some_and(|until| self.now > until)
    }

    /// Takes in the current time, before operations are handed to a device.
    pub(crate) fn at(&mut self, now: Time) {
        self.now = now.max(self.now);
    }
}

/// Returns the time until which a look that began at `seen` allows writes.
pub(crate) fn lease_of(seen: Time) -> Time {
    Time(seen.0.saturating_add(u64::from(LEASE_MILLIS)))
}

/// Returns the first claim of a holder; `term` must be above all terms that it found.
pub(crate) fn first_claim(pool: PoolId, holder: &Holder, term: u64, now: Time) -> Claim {
    Claim { pool, holder: holder.clone(), term, heartbeat: 0, time: now.0, lease: LEASE_MILLIS, released: false }
}

/// Returns the place of the claim on a device of `size` bytes, in its first or second area.
pub(crate) fn claim_at(size: u64, second: bool) -> ByteRange {
    let area = if second { second_area(size) } else { 0 };
    ByteRange { offset: area + CLAIM_OFFSET, length: SECTOR_BYTES as u64 }
}

/// Decodes the claim in a sector that was read.
pub(crate) fn read_claim(result: Result<(), DeviceError>, buf: Option<&Buf>) -> Result<Claim, FormatError> {
    let bytes = buf.filter(|_| result.is_ok()).and_then(|buf| buf.bytes().get(..SECTOR_BYTES));
    bytes.map_or(Err(FormatError::Truncated), Claim::decode)
}

impl Lease {
    /// Handles the end of a read or write of the claim.
    pub(crate) fn claim_done(&mut self, store: &mut Store, io: ClaimIo, result: Result<(), DeviceError>, buf: Option<Buf>) {
        match io {
            ClaimIo::Look { member, slot, asked } => {
                self.busy.remove(&(member, slot));
                let found = read_claim(result, buf.as_ref());
                buf.into_iter().for_each(|buf| store.bufs.give(buf));
                self.looked(store, member, slot, asked, result.err(), &found);
            }
            ClaimIo::Heartbeat => {}
            ClaimIo::Release => {
                let Release::Writing(left) = self.release else { return };
                self.release = Release::Writing(left - 1);
                if left == 1 {
                    let flushes = store.io.flush(Context::Claim(ClaimIo::ReleaseFlush));
                    self.release = if flushes { Release::Flushing } else { Release::Over };
                }
            }
            ClaimIo::ReleaseFlush => self.release = Release::Over,
        }
    }

    fn looked(
        &mut self,
        store: &mut Store,
        member: MemberId,
        slot: DeviceSlot,
        asked: Time,
        failed: Option<DeviceError>,
        found: &Result<Claim, FormatError>,
    ) {
        let Some(mine) = &self.mine else { return };
        match found {
            Ok(other) if other.supersedes(mine) => return self.lose_claim(store, format!("host '{}'", other.holder.name)),
            Err(FormatError::Version(_)) => return self.lose_claim(store, "a newer program".to_owned()),
            _ => {}
        }
        match failed {
            // a damaged claim is not another host's: a host that takes a pool makes sure that
            // its claim can be read
            None => self.seen = self.seen.max(asked),
            // the read failed: another host's claim may be there
            Some(error) if store.now.0 > self.seen.0.saturating_add(UNSEEN_MILLIS) => return cannot_look(store, error),
            Some(DeviceError::Gone) if store.state == PoolState::Online => store.io.leave_out_gone(member, slot),
            Some(_) => {}
        }
        let right = found.as_ref().is_ok_and(|found| found.holder == mine.holder);
        if matches!(store.state, PoolState::Faulted(_)) {
            return;
        }
        match self.release {
            Release::No if claimable(store, member) == Some(slot) => {
                self.write_claim(store, ClaimIo::Heartbeat, member, if right { &[false] } else { &[false, true] });
            }
            Release::Looking if self.busy.is_empty() => self.write_release(store),
            _ => {}
        }
    }

    /// Stops the pool because another host has it: nothing is written any more, and no data that is
    /// read can be trusted.
    fn lose_claim(&mut self, store: &mut Store, by: String) {
        self.lost = true;
        store.fault(Fault::TakenOver { by });
    }
}

impl Lease {
    /// Looks at the claim when it is time to.
    pub(crate) fn step_claim(&mut self, store: &mut Store) {
        let due = store.now.0 >= self.asked.0.saturating_add(HEARTBEAT_MILLIS);
        if self.release != Release::No {
            // writes that wait go on once the claim is seen in place
            if due && self.holds_back() {
                self.asked = store.now;
                self.look(store);
            }
            return;
        }
        if !due {
            return;
        }
        let Some(mine) = &mut self.mine else { return };
        (mine.heartbeat, mine.time) = (mine.heartbeat + 1, store.now.0);
        self.asked = store.now;
        self.look(store);
    }

    /// Reads the claims on all devices.
    fn look(&mut self, store: &mut Store) {
        let asked = store.now;
        for (member, slot) in claimable_members(store) {
            if self.busy.insert((member, slot)) {
                let context = Context::Claim(ClaimIo::Look { member, slot, asked });
                let size = store.config.size_of(member);
                store.io.urgently(|io| io.read_raw(context, member, claim_at(size, true), &mut store.bufs));
            }
        }
    }

    /// Releases the claim; everything must be durable. Returns true when that is over.
    pub(crate) fn give_back_claim(&mut self, store: &mut Store) -> bool {
        if self.mine.is_none() {
            return true;
        }
        if self.release == Release::No {
            self.release = Release::Looking;
            self.look(store);
            if self.busy.is_empty() {
                self.write_release(store);
            }
        }
        self.release == Release::Over
    }

    fn write_release(&mut self, store: &mut Store) {
        let members: Vec<MemberId> = claimable_members(store).into_iter().map(|(member, _)| member).collect();
        self.release = if members.is_empty() { Release::Over } else { Release::Writing(members.len()) };
        if let Some(mine) = &mut self.mine {
            (mine.released, mine.time) = (true, store.now.0);
        }
        for member in members {
            self.write_claim(store, ClaimIo::Release, member, &[false, true]);
        }
    }
}

impl Lease {
    /// Encodes the current claim.
    pub(super) fn claim_piece(&mut self, store: &mut Store) -> Option<BufSlice> {
        let sector = self.mine.as_ref()?.encode();
        let mut buf = store.bufs.take(SECTOR_BYTES);
        buf.bytes_mut().get_mut(..SECTOR_BYTES)?.copy_from_slice(&sector);
        Some(BufSlice::new(buf, 0..SECTOR_BYTES))
    }

    /// Writes the claim to areas of a member. No operation waits for it; a device that cannot write
    /// it is judged by its other writes.
    fn write_claim(&mut self, store: &mut Store, context: ClaimIo, member: MemberId, areas: &[bool]) {
        let Some(piece) = self.claim_piece(store) else { return };
        let size = store.config.size_of(member);
        let writes = areas.iter().map(|second| (member, claim_at(size, *second).offset, piece.clone())).collect();
        store.io.urgently(|io| io.write_loosely(Context::Claim(context), writes));
    }
}

/// Returns the slot of a member's device if its claim counts: the pool needs the device, and
/// the device is whole. It got the claim before the labels called it whole.
fn claimable(store: &Store, member: MemberId) -> Option<DeviceSlot> {
    let known = store.config.shape.member(member)?;
    let counts = known.state == MemberState::Present && !store.config.shape.is_auxiliary(member);
    let slot = store.io.slot_of(member).filter(|_| counts && store.io.health.is_up(member))?;
    Some(slot).filter(|_| !store.labels.left.contains_key(&member) && !store.labels.fresh.contains(&member))
}

/// Returns all members whose claims count, with the slots of their devices.
fn claimable_members(store: &Store) -> Vec<(MemberId, DeviceSlot)> {
    store.config.shape.ids().filter_map(|member| Some((member, claimable(store, member)?))).collect()
}

/// Stops the pool after no look has succeeded for long: writes cannot wait for ever.
fn cannot_look(store: &mut Store, error: DeviceError) {
    store.fault(Fault::ClaimUnreadable(error));
}
