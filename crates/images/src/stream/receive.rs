//! The steps of a receive.
//!
//! While a snapshot is received, the volume has a snapshot named [`RECEIVING`] that says how far,
//! and everything before that position was read back from it. So an interrupted receive continues
//! from the medium alone, whatever the daemon or the host forgot. A received snapshot gets its name
//! last: before, it is named [`RECEIVED_UNVERIFIED`], and it must differ from the last [`RECEIVING`]
//! only in ranges of the stream, which must read as the stream has them. A snapshot does not
//! change, so no later write makes that untrue.
//!
//! | step | after a crash here |
//! |---|---|
//! | take `receiving-next`; it equals the base | it is destroyed: nothing was written |
//! | name it `receiving` | the volume equals the base |
//! | write; take `receiving-next` and verify it | it is destroyed: writes since `receiving` come again |
//! | name it `receiving-verified`; destroy `receiving` | it gets the name `receiving` |
//! | take `received-unverified` and verify it | it is destroyed, as above |
//! | give it its name | complete; `receiving` is superfluous |

use std::io::Read;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use millpond_api::Snapshot;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::identity::{
    RECEIVED_UNVERIFIED, RECEIVING, RECEIVING_NEXT, RECEIVING_VERIFIED, Receiving, ResumeToken, SnapshotIdentity, SnapshotOrigin,
};

use super::frame::{Frame, FrameReader, StreamError};
use super::head::{StreamHead, StreamSnapshot};
use super::target::{Check, Content, Target};
use crate::copy::CopyProgress;

/// Bytes of data after which progress is made durable.
const TURN_BYTES: u64 = 4 << 30;
/// Time after which progress is made durable.
const TURN_TIME: Duration = Duration::from_secs(20);
/// Most ranges that are remembered to be read back: about 32 MiB.
const TURN_CHECKS: usize = 1 << 20;

/// Rules of a receive that the simulated world can leave out, to show that it finds what each
/// prevents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checks {
    /// The volume must equal the base, or the last progress.
    pub start: bool,
    /// A receive continues only with a stream on the same base.
    pub base: bool,
    /// A new snapshot may differ from the last progress only in ranges of the stream.
    pub ranges: bool,
    /// These ranges must read as the stream has them.
    pub contents: bool,
}

impl Checks {
    /// All rules.
    pub const ALL: Checks = Checks { start: true, base: true, ranges: true, contents: true };
}

/// How a receive is wanted.
#[derive(Clone, Debug)]
pub struct Reception {
    /// Token that the volume's incomplete receive must have.
    pub resume: Option<ResumeToken>,
    /// Roll the volume back to the base when it was written since.
    pub force: bool,
    /// Rules.
    pub checks: Checks,
    /// Bytes of data after which progress is made durable; none: the default.
    pub turn_bytes: Option<u64>,
}

/// Result of a receive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Names of the snapshots that were received, the part after `@`.
    pub snapshots: Vec<String>,
    /// Number of snapshots of the stream that were there before.
    pub there: usize,
    /// Names of snapshots that keep states of the volume before it was rolled back.
    pub kept: Vec<String>,
}

/// The snapshot that is being received.
struct Incoming {
    index: usize,
    /// Bytes from the start that need not be written; all when the snapshot is there.
    from: Option<u64>,
    /// Bytes from the start that were written.
    position: u64,
}

/// A receive.
pub struct Receiver<'a, T> {
    target: &'a mut T,
    head: StreamHead,
    how: Reception,
    done: Received,
    incoming: Option<Incoming>,
    /// Snapshots of the stream before this index are not received: a later one is there.
    first: usize,
    /// Ranges of the stream since the last progress, ascending: offset and end.
    ranges: Vec<(u64, u64)>,
    checks: Vec<Check>,
    bytes: u64,
    turned: Instant,
}

impl<'a, T: Target> Receiver<'a, T> {
    /// Makes a receiver of the stream with this head.
    pub fn new(target: &'a mut T, head: StreamHead, how: Reception) -> Receiver<'a, T> {
        let done = Received::default();
        Receiver {
            target,
            head,
            how,
            done,
            incoming: None,
            first: 0,
            ranges: Vec::new(),
            checks: Vec::new(),
            bytes: 0,
            turned: Instant::now(),
        }
    }

    /// Receives until the end of the stream. When it ends early, progress is made durable where
    /// that is possible.
    ///
    /// # Errors
    /// The stream's, the target's, or that a rule is violated.
    pub fn run<R: Read>(mut self, frames: &mut FrameReader<R>, progress: &CopyProgress) -> Outcome<Received> {
        settle(self.target)?;
        self.look()?;
        let ended = self.frames(frames, progress);
        let Err((failure, whole)) = ended else { return Ok(self.done) };
        if !whole {
            return Err(failure);
        }
        // the target still works: keep what came
        let kept = self.target.reconnect().and_then(|()| self.turn());
        let failure = kept.err().map_or(failure.clone(), |error| Failure::failed(format!("{failure}; its progress is lost: {error}")));
        Err(failure)
    }

    /// Carries out frames. An error has with it whether the target still works.
    fn frames<R: Read>(&mut self, frames: &mut FrameReader<R>, progress: &CopyProgress) -> Result<(), (Failure, bool)> {
        loop {
            if progress.stop.load(Relaxed) {
                return Err((Failure::failed("interrupted"), true));
            }
            let frame = frames.frame().map_err(|error| (stream_failure(&error), true))?;
            let refused = |failure| (failure, false);
            match frame {
                Frame::Head(_) => {}
                Frame::Snapshot(index, position) => self.begin(index, position).map_err(refused)?,
                Frame::Data(offset, bytes) => {
                    let check = Check::of(offset, &bytes);
                    if self.is_wanted(offset + check.length) {
                        self.write(&check, |target| target.write(offset, &bytes))?;
                        self.written(check);
                        progress.written.fetch_add(check.length, Relaxed);
                    }
                }
                Frame::Zero(offset, length) => {
                    if self.is_wanted(offset + length) {
                        let check = Check { offset, length, content: Content::Zero };
                        self.write(&check, |target| target.write_zeroes(offset, length))?;
                        self.written(check);
                    }
                }
                Frame::Complete(_) => self.complete().map_err(refused)?,
                Frame::End => return Ok(()),
            }
            let most = self.how.turn_bytes.unwrap_or(TURN_BYTES);
            if self.bytes >= most || self.checks.len() >= TURN_CHECKS || (self.bytes > 0 && self.turned.elapsed() >= TURN_TIME) {
                self.turn().map_err(refused)?;
            }
        }
    }

    /// Finds out what the volume has already. Refuses a stream of which a snapshot that is to be
    /// received has the name of another one.
    fn look(&mut self) -> Outcome {
        let there = self.target.snapshots()?;
        let newest = self.head.snapshots.iter().rposition(|wanted| named(&there, &wanted.identity).is_some());
        self.first = newest.map_or(0, |newest| newest + 1);
        for wanted in self.head.snapshots.iter().skip(self.first) {
            let taken = there.iter().find(|snapshot| part(snapshot) == wanted.name);
            if taken.is_some_and(|snapshot| snapshot.identity.as_ref() != Some(&wanted.identity)) {
                let message = format!("there is another snapshot '{}'; rename it, or receive into another volume", wanted.name);
                return Err(Failure::failed(message));
            }
        }
        Ok(())
    }

    /// Begins the snapshot at `index`, of which the stream leaves out `position` bytes.
    fn begin(&mut self, index: usize, position: u64) -> Outcome {
        let snapshots = self.target.snapshots()?;
        let wanted = self.wanted(index)?.clone();
        self.turned = Instant::now();
        if index < self.first {
            self.done.there += usize::from(named(&snapshots, &wanted.identity).is_some());
            self.incoming = Some(Incoming { index, from: None, position: 0 });
            return Ok(());
        }
        let from = match snapshots.iter().find(|snapshot| part(snapshot) == RECEIVING) {
            Some(snapshot) => self.go_on(snapshot, (index, &wanted), position)?,
            None => {
                self.check_token(None, &snapshots)?;
                self.start(&snapshots, index, &wanted)?
            }
        };
        if position > from {
            let message =
                format!("the stream begins at byte {position} of '{}', and only {from} are received; send all of it", wanted.name);
            return Err(Failure::failed(message));
        }
        if self.target.size()? != wanted.size {
            self.target.resize(wanted.size)?;
        }
        self.incoming = Some(Incoming { index, from: Some(from), position: from });
        Ok(())
    }

    /// Checks the token that the user gave, if any.
    fn check_token(&self, there: Option<ResumeToken>, snapshots: &[Snapshot]) -> Outcome {
        match &self.how.resume {
            // all of that snapshot came, and the receive ended before its last step
            Some(given) if named(snapshots, &given.identity).is_some() => Ok(()),
            Some(given) if self.done.snapshots.is_empty() && there.as_ref() != Some(given) => {
                let there = there.map_or_else(|| "it has no incomplete receive".to_owned(), |token| format!("its token is {token}"));
                Err(Failure::failed(format!("the token is not that of this volume: {there}")))
            }
            _ => Ok(()),
        }
    }

    /// Continues an incomplete receive; returns the bytes that are received.
    fn go_on(&mut self, snapshot: &Snapshot, (index, wanted): (usize, &StreamSnapshot), position: u64) -> Outcome<u64> {
        let receiving = snapshot.receiving.clone().ok_or_else(unknown_mark)?;
        if receiving.identity != wanted.identity {
            let message = "a receive of another snapshot into it is incomplete; continue that, or give it up with '--abandon'";
            return Err(Failure::failed(message));
        }
        self.check_token(Some(receiving.token()), &[])?;
        let base = self.base_identity(index);
        if self.how.checks.base && receiving.base != base {
            let of = |base: &Option<SnapshotIdentity>| base.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string);
            let message = format!(
                "the incomplete receive builds on another snapshot ({}) than the stream ({}); send from that one, or give the receive up \
                 with '--abandon'",
                of(&receiving.base),
                of(&base)
            );
            return Err(Failure::failed(message));
        }
        if position > receiving.position {
            return Ok(receiving.position);
        }
        let same = self.target.size()? == snapshot.size && self.target.differences(RECEIVING, None)?.is_empty();
        // a receive that ended between progress and its next step leaves a volume of the new size
        let unwritten = same || receiving.position == 0 && self.is_resized()?;
        if self.how.checks.start && !unwritten {
            self.done.kept.push(self.target.roll_back(RECEIVING, true)?);
        }
        Ok(receiving.position)
    }

    /// True if the volume differs from the last progress in its size alone.
    fn is_resized(&mut self) -> Outcome<bool> {
        let size = self.target.size()?;
        Ok(self.target.differences(RECEIVING, None)?.iter().all(|(offset, _)| *offset >= size))
    }

    /// Begins to receive: the volume must equal the base, or be empty. Returns the bytes that are
    /// received: none.
    fn start(&mut self, snapshots: &[Snapshot], index: usize, wanted: &StreamSnapshot) -> Outcome<u64> {
        let base = match self.head.base_of(index) {
            None if self.target.is_published() => {
                return Err(Failure::failed("the volume exists and has no snapshot of the stream; receive into a new name"));
            }
            None => None,
            Some(base) => Some(named(snapshots, &base.identity).cloned().ok_or_else(|| {
                Failure::failed(format!(
                    "the stream builds on snapshot '{}' ({}), which the volume does not have; send from a common snapshot, or all",
                    base.name, base.identity
                ))
            })?),
        };
        let base = base.as_ref();
        if self.mark(base, wanted)? {
            return Ok(0);
        }
        let Some(base) = base else {
            return Err(Failure::failed("the new volume was written by something else; end that, and receive again"));
        };
        if !self.how.force {
            let message =
                format!("the volume was written since '{}'; --force rolls it back first, and keeps its state as a snapshot", part(base));
            return Err(Failure::failed(message));
        }
        let kept = self.target.roll_back(part(base), false)?;
        self.done.kept.push(kept);
        if self.mark(Some(base), wanted)? {
            return Ok(0);
        }
        Err(Failure::failed("something writes to the volume; end that, and receive again"))
    }

    /// Takes the first snapshot of the receive, and keeps it if it equals the base. Returns whether
    /// it does. It gets its name afterwards, so that one of this name was verified.
    fn mark(&mut self, base: Option<&Snapshot>, wanted: &StreamSnapshot) -> Outcome<bool> {
        let identity = base.and_then(|base| base.identity.clone());
        let origin = SnapshotOrigin { identity: wanted.identity.clone(), position: Some(0), base: identity };
        self.target.take(RECEIVING_NEXT, &format!("receiving '{}'", wanted.name), &origin)?;
        let there = self.target.snapshots()?;
        let taken = there.iter().find(|snapshot| part(snapshot) == RECEIVING_NEXT).ok_or_else(unknown_mark)?;
        let same = match base {
            None => taken.referenced_bytes == 0,
            Some(base) => taken.size == base.size && self.target.differences(part(base), Some(RECEIVING_NEXT))?.is_empty(),
        };
        if same || !self.how.checks.start {
            self.target.rename(RECEIVING_NEXT, RECEIVING)?;
            return Ok(true);
        }
        self.target.destroy(RECEIVING_NEXT)?;
        Ok(false)
    }

    fn is_wanted(&self, end: u64) -> bool {
        self.incoming.as_ref().and_then(|incoming| incoming.from).is_some_and(|from| end > from)
    }

    /// Writes a range. A write that fails may change a part of the range, so the range may differ from
    /// the last progress; the part that changed has the data of the snapshot.
    fn write(&mut self, check: &Check, write: impl FnOnce(&mut T) -> Outcome) -> Result<(), (Failure, bool)> {
        let end = check.offset + check.length;
        match self.ranges.last_mut() {
            Some(last) if last.1 == check.offset => last.1 = end,
            _ => self.ranges.push((check.offset, end)),
        }
        write(self.target).map_err(|failure| (failure, true))
    }

    fn written(&mut self, check: Check) {
        let end = check.offset + check.length;
        self.checks.push(check);
        self.bytes += if check.content == Content::Zero { 0 } else { check.length };
        if let Some(incoming) = &mut self.incoming {
            incoming.position = end;
        }
    }

    /// Identity of the snapshot on which the one at `index` builds.
    fn base_identity(&self, index: usize) -> Option<SnapshotIdentity> {
        self.head.base_of(index).map(|base| base.identity.clone())
    }

    fn wanted(&self, index: usize) -> Outcome<&StreamSnapshot> {
        self.head.snapshots.get(index).ok_or_else(|| Failure::failed("the stream has a snapshot that its head does not have"))
    }

    /// Makes progress durable.
    fn turn(&mut self) -> Outcome {
        let Some(Incoming { index, from: Some(_), position }) = self.incoming else { return Ok(()) };
        if self.checks.is_empty() {
            return Ok(());
        }
        let wanted = self.wanted(index)?.clone();
        let origin = SnapshotOrigin { identity: wanted.identity, position: Some(position), base: self.base_identity(index) };
        self.target.take(RECEIVING_NEXT, &format!("receiving '{}'", wanted.name), &origin)?;
        self.verify(RECEIVING_NEXT)?;
        self.target.rename(RECEIVING_NEXT, RECEIVING_VERIFIED)?;
        self.target.destroy(RECEIVING)?;
        self.target.rename(RECEIVING_VERIFIED, RECEIVING)?;
        self.forget();
        Ok(())
    }

    fn forget(&mut self) {
        self.ranges.clear();
        self.checks.clear();
        self.bytes = 0;
        self.turned = Instant::now();
    }

    /// Checks that `snapshot` is the last progress and what was received since; destroys it where it
    /// is not.
    fn verify(&mut self, snapshot: &str) -> Outcome {
        let wrong = self.first_wrong(snapshot)?;
        let Some(offset) = wrong else { return Ok(()) };
        self.target.destroy(snapshot)?;
        // the next receive goes back to the last progress
        self.incoming = None;
        let message = format!(
            "the volume has other data at byte {offset} than was received: something else writes to it, or its devices are damaged; \
             end that, and receive again"
        );
        Err(Failure::failed(message))
    }

    fn first_wrong(&mut self, snapshot: &str) -> Outcome<Option<u64>> {
        if self.how.checks.ranges {
            let size = self.target.size()?;
            for (offset, length) in self.target.differences(RECEIVING, Some(snapshot))? {
                let end = (offset + length).min(size);
                if offset < end && !covers(&self.ranges, offset, end) {
                    return Ok(Some(offset));
                }
            }
        }
        if self.how.checks.contents { self.target.first_difference(snapshot, &self.checks) } else { Ok(None) }
    }

    /// Ends a snapshot: verifies it, and gives it its name.
    fn complete(&mut self) -> Outcome {
        let Some(Incoming { index, from, .. }) = self.incoming.take() else { return Ok(()) };
        if from.is_none() {
            // it was there; a receive that ended before its last step left its progress
            return settle(self.target);
        }
        let wanted = self.wanted(index)?.clone();
        let origin = SnapshotOrigin { identity: wanted.identity.clone(), position: None, base: None };
        self.target.take(RECEIVED_UNVERIFIED, &wanted.description, &origin)?;
        self.verify(RECEIVED_UNVERIFIED)?;
        let size = self.target.snapshots()?.iter().find(|snapshot| part(snapshot) == RECEIVED_UNVERIFIED).map(|snapshot| snapshot.size);
        if size != Some(wanted.size) {
            self.target.destroy(RECEIVED_UNVERIFIED)?;
            return Err(Failure::failed("the size of the volume was changed during the receive; receive again"));
        }
        self.target.rename(RECEIVED_UNVERIFIED, &wanted.name)?;
        self.target.destroy(RECEIVING)?;
        if !self.target.is_published() {
            self.target.publish()?;
        }
        self.forget();
        self.done.snapshots.push(wanted.name);
        Ok(())
    }
}

/// Finishes or undoes the last step of a receive that ended at any place.
///
/// # Errors
/// The target's.
pub fn settle<T: Target>(target: &mut T) -> Outcome {
    let snapshots = target.snapshots()?;
    // one of such a name with an identity is its user's
    let find = |name: &str| snapshots.iter().find(|snapshot| part(snapshot) == name && snapshot.identity.is_none());
    for unverified in [RECEIVED_UNVERIFIED, RECEIVING_NEXT] {
        if find(unverified).is_some() {
            target.destroy(unverified)?;
        }
    }
    let mut receiving = find(RECEIVING).and_then(|snapshot| snapshot.receiving.clone());
    if let Some(verified) = find(RECEIVING_VERIFIED) {
        if receiving.is_some() {
            target.destroy(RECEIVING)?;
        }
        target.rename(RECEIVING_VERIFIED, RECEIVING)?;
        receiving = verified.receiving.clone();
    }
    if receiving.is_some_and(|receiving| named(&snapshots, &receiving.identity).is_some()) {
        target.destroy(RECEIVING)?;
    }
    if !target.is_published() && snapshots.iter().any(|snapshot| snapshot.received) {
        target.publish()?;
    }
    Ok(())
}

/// Gives up an incomplete receive into a volume that has a base: goes back to that, or to the
/// snapshot named `to`. Returns the name of the snapshot that keeps what else was written, if
/// anything was.
///
/// # Errors
/// The target's; the base is gone.
pub fn abandon<T: Target>(target: &mut T, to: Option<&str>) -> Outcome<Option<String>> {
    settle(target)?;
    let snapshots = target.snapshots()?;
    let Some(receiving) = incomplete(&snapshots) else { return Ok(None) };
    let base = match to {
        Some(to) => snapshots.iter().find(|snapshot| part(snapshot) == to && snapshot.identity.is_some()),
        None => receiving.base.as_ref().and_then(|base| named(&snapshots, base)),
    };
    let base = base.ok_or_else(|| {
        let complete: Vec<&str> = snapshots.iter().filter(|snapshot| snapshot.identity.is_some()).map(part).collect();
        let what = if to.is_some() { "there is no such snapshot" } else { "the snapshot that it built on is gone" };
        Failure::failed(format!("{what}; go back to another one with '--abandon --to SNAP': {}", complete.join(" ")))
    })?;
    let kept = target.roll_back(part(base), true)?;
    // compared as it is kept: a write before the rollback is in it
    let received_alone = target.differences(RECEIVING, Some(&kept))?.is_empty();
    if received_alone {
        target.destroy(&kept)?;
    }
    target.destroy(RECEIVING)?;
    Ok((!received_alone).then_some(kept))
}

/// Returns the state of an incomplete receive that can continue: the first mark of one that ended
/// before it was compared is destroyed by the next receive, so its token would be that of none.
pub fn resumable(snapshots: &[Snapshot]) -> Option<&Receiving> {
    let of = |name: &str| snapshots.iter().find(|snapshot| part(snapshot) == name)?.receiving.as_ref();
    of(RECEIVING_VERIFIED).or_else(|| of(RECEIVING))
}

/// Returns the state of an incomplete receive among the snapshots of a volume.
pub fn incomplete(snapshots: &[Snapshot]) -> Option<&Receiving> {
    let first = || snapshots.iter().find(|snapshot| part(snapshot) == RECEIVING_NEXT)?.receiving.as_ref();
    // the first one of a receive has no position yet
    resumable(snapshots).or_else(|| first().filter(|receiving| receiving.position == 0))
}

fn unknown_mark() -> Failure {
    Failure::failed("the snapshot '@receiving' has no mark of a receive; rename or destroy it")
}

fn stream_failure(error: &StreamError) -> Failure {
    Failure::failed(format!("cannot read the stream: {error}"))
}

/// Returns the part of a snapshot's name after `@`.
pub(super) fn part(snapshot: &Snapshot) -> &str {
    snapshot.name.rsplit_once('@').map_or("", |(_, name)| name)
}

/// Returns the complete snapshot with an identity.
fn named<'s>(snapshots: &'s [Snapshot], identity: &SnapshotIdentity) -> Option<&'s Snapshot> {
    snapshots.iter().find(|snapshot| snapshot.identity.as_ref() == Some(identity))
}

/// True if ranges, ascending and not adjacent, cover everything from `from` to `to`.
fn covers(ranges: &[(u64, u64)], from: u64, to: u64) -> bool {
    let before = ranges.partition_point(|(offset, _)| *offset <= from);
    before.checked_sub(1).and_then(|index| ranges.get(index)).is_some_and(|(_, end)| *end >= to)
}
