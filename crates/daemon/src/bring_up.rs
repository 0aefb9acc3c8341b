//! Takes the pools that the daemon remembers into service: each by itself, and for as long as it takes.
//!
//! A pool whose devices are late, locked by a process that is just ending, or do not answer is looked for again until it comes or the user removes
//! it; nothing else waits for it. Whether what was found may be imported says [`Decision`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use jiff::Timestamp;
use millpond_api::instant;
use millpond_api::{ApiError, DeviceState, ErrorKind, EventKind, Severity};
use millpond_block::MemberId;
use millpond_engine::{Decision, LabelsInForce, Refusal};
use millpond_format::{FormatError, PoolId};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::device_names;
use super::events::Happened;
use super::import::{How, NotOpened};
use super::labels::{self, Labelled};
use super::limits;
use super::memory::settled;
use super::pools::parse_id;
use super::refusal::{describe, names};
use super::scan::{Scan, newer as newer_label};
use super::service::Daemon;
use super::shard::ShardHandle;
use super::state::{InForce, PoolRecord};

/// How often the places where devices were are looked at.
const LOOK: Duration = Duration::from_secs(2);
/// How often all block devices of the host are.
const WIDE_LOOK: Duration = Duration::from_secs(30);
/// A pool that the engine refused is tried again after so long, then after twice as long and so on; at once when other devices are there.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// Remembered pools that are being taken into service.
pub(super) struct Starting {
    /// One task for each pool.
    pub(super) tasks: JoinSet<()>,
    /// One for each pool, answered when it is in service or waits for something.
    first: Vec<oneshot::Receiver<()>>,
}

impl Starting {
    /// Waits until each pool is in service or waits for something, or the limit is over.
    pub(super) async fn first_round(&mut self, limit: Option<Duration>) {
        let all = join_all(std::mem::take(&mut self.first));
        match limit {
            Some(limit) => drop(timeout(limit, all).await),
            None => drop(all.await),
        }
    }
}

/// One pool that is being taken into service.
struct BringUp {
    daemon: Arc<Daemon>,
    name: String,
    id: String,
    /// When the first of its devices was seen.
    seen: Option<Instant>,
    /// When all block devices are looked at next, and where devices of the pool were at the last such look.
    wide: Instant,
    places: Vec<PathBuf>,
    /// Devices and label generations that the engine refused, when to try them again, and the pause before that.
    refused: BTreeMap<Sight, (Option<Instant>, Duration)>,
    /// When devices are waited for no longer, these are as good as missing.
    silent: SilentDevices,
    newer: NewerDevices,
    /// Devices that are waited for, since when.
    since: BTreeMap<PathBuf, Timestamp>,
    /// The reason reported last.
    reported: Reason,
}

/// Devices that did not answer in the last import that read them.
#[derive(Debug, Default)]
struct SilentDevices(BTreeSet<PathBuf>);

impl SilentDevices {
    /// Takes in an import of the devices in `tried` that failed. If they were `read`, all of them
    /// answered but those in `silent`: a device that was slow once is needed where another never
    /// answers.
    fn note_import(&mut self, tried: &[PathBuf], read: bool, silent: Vec<PathBuf>) {
        if read {
            self.0.retain(|path| !tried.contains(path));
        }
        self.0.extend(silent);
    }
}

/// Devices of the pool with labels of newer versions, as they were last read. One that cannot be read
/// since is still one of these: it may have the newest state of the pool.
#[derive(Debug, Default)]
struct NewerDevices(BTreeMap<PathBuf, NewerLabel>);

/// The label of such a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NewerLabel {
    /// Reason why this version does not use it.
    why: FormatError,
    /// This version can read the pool, and not write to it.
    readable: bool,
}

impl NewerDevices {
    /// Takes in a search at the paths in `looked` for the pool `id`. Returns whether a device is no
    /// longer one of these.
    fn note_scan(&mut self, scan: &Scan, id: Option<PoolId>, looked: &[PathBuf]) -> bool {
        let silent = |path: &PathBuf| scan.silent.iter().any(|silent| silent.path == *path);
        let unreadable = |path: &PathBuf| scan.unreadable.iter().any(|(at, _)| at == path);
        let before: Vec<PathBuf> = self.0.keys().cloned().collect();
        // another label, or none, was read there; or there is no device
        self.0.retain(|path, _| !looked.contains(path) || silent(path) || unreadable(path));
        let foreign = scan.foreign.iter().filter(|(_, of, ..)| Some(*of) == id);
        self.0.extend(foreign.map(|(path, .., why)| (path.clone(), NewerLabel { why: *why, readable: false })));
        let unknown = scan.pools.iter().filter(|pool| Some(pool.id) == id).flat_map(|pool| &pool.unknown);
        let readable = |why| NewerLabel { why: FormatError::Incompatible(why), readable: true };
        self.0.extend(unknown.map(|(path, why)| (path.clone(), readable(*why))));
        before.iter().any(|path| !self.0.contains_key(path))
    }

    /// Adds these devices to those of the pool as it was found, as far as they keep this version from
    /// using it so.
    fn add_to(&self, found: &mut Labelled, read_only: bool) {
        let refusing = self.0.iter().filter(|(_, label)| !(label.readable && read_only));
        let unseen = refusing.filter(|(path, _)| found.foreign.iter().all(|(known, _)| known != *path));
        let unseen: Vec<(PathBuf, FormatError)> = unseen.map(|(path, label)| (path.clone(), label.why)).collect();
        found.foreign.extend(unseen);
    }
}

/// The devices of a pool that were found, and the generation of their newest label.
type Sight = (Vec<PathBuf>, u64);

/// The devices found in one search, and the decision about them.
struct Seen {
    found: Option<Labelled>,
    /// Another host had the pool last.
    other_host: bool,
    decision: Decision,
    /// Labels to save in the state before the import.
    first: Option<LabelsInForce>,
    /// The devices that the pool waits for, in words; empty when all are there.
    waiting: String,
    waited: Duration,
    /// All block devices of the host were looked at.
    wide: bool,
}

impl Seen {
    fn sight(&self) -> Option<Sight> {
        self.found.as_ref().map(|found| (found.devices(), found.generation))
    }
}

/// Why a pool is not in service.
#[derive(Clone, Debug, Default)]
struct Reason {
    /// In words. Another text is reported in the log and as an event, so it has no times that pass.
    text: String,
    /// Seconds after which the pool is imported without the missing devices.
    import_in: Option<u64>,
}

impl Reason {
    fn in_words(&self) -> String {
        match self.import_in {
            Some(left) => format!("{}; it is imported without these devices in {left} s, if the others have all data", self.text),
            None => self.text.clone(),
        }
    }
}

impl From<String> for Reason {
    fn from(text: String) -> Reason {
        Reason { text, import_in: None }
    }
}

/// Result of one attempt to import a pool.
enum Tried {
    InService,
    /// The user removed it, or imported it by hand.
    NotWanted,
    Waits(Reason),
}

impl Daemon {
    /// Begins to import every remembered pool, and to restore its exports.
    pub(super) fn start_pools(self: &Arc<Daemon>) -> Starting {
        let (mut tasks, mut first) = (JoinSet::new(), Vec::new());
        let pools: Vec<(String, String)> = {
            let mut registry = self.registry();
            registry.pools.values_mut().for_each(|entry| entry.opening = true);
            registry.pools.values().map(|entry| (entry.record.name.clone(), entry.record.id.clone())).collect()
        };
        for (name, id) in pools {
            let (ended, end) = oneshot::channel();
            first.push(end);
            let now = Instant::now();
            let bring_up = BringUp {
                daemon: Arc::clone(self),
                name,
                id,
                seen: None,
                wide: now,
                places: Vec::new(),
                refused: BTreeMap::new(),
                silent: SilentDevices::default(),
                newer: NewerDevices::default(),
                since: BTreeMap::new(),
                reported: Reason::default(),
            };
            tasks.spawn(bring_up.run(ended));
        }
        Starting { tasks, first }
    }
}

impl BringUp {
    async fn run(mut self, first: oneshot::Sender<()>) {
        let mut first = Some(first);
        loop {
            let tried = self.try_once().await;
            if let Tried::Waits(reason) = &tried {
                self.note(reason);
            }
            // nobody may be waiting for the first round any more
            let _ = first.take().map(|first| first.send(()));
            if !matches!(tried, Tried::Waits(_)) {
                return;
            }
            sleep(LOOK).await;
        }
    }

    /// The remembered record of the pool; nothing once the pool is in service or removed.
    fn record(&self) -> Option<PoolRecord> {
        let registry = self.daemon.registry();
        let entry = registry.pools.get(&self.name).filter(|entry| entry.record.id == self.id && entry.shard.is_err());
        entry.map(|entry| entry.record.clone())
    }

    async fn try_once(&mut self) -> Tried {
        let importing = match self.daemon.registry().pools.get(&self.name) {
            Some(entry) => Arc::clone(&entry.importing),
            None => return Tried::NotWanted,
        };
        let _importing = importing.lock().await;
        let Some(record) = self.record() else { return Tried::NotWanted };
        let refused = |known: &BringUp, seen: &Seen| {
            let same = seen.sight().and_then(|sight| known.refused.get(&sight));
            same.is_some_and(|(until, _)| until.is_none_or(|until| Instant::now() < until))
        };
        let without_silent = self.look_past_silent(&record).await.filter(|seen| !refused(self, seen));
        let mut seen = match without_silent {
            Some(seen) => seen,
            None => self.look(&record, false, &BTreeSet::new()).await,
        };
        if refused(self, &seen) {
            return Tried::Waits(self.reported.clone());
        }
        if !seen.wide && matches!(seen.decision, Decision::ImportDegraded { .. }) {
            // nothing is done without that is only somewhere else
            seen = self.look(&record, true, &BTreeSet::new()).await;
        }
        let Seen { found, other_host, decision, first, waiting, waited, .. } = seen;
        let without = match decision {
            Decision::Import => Vec::new(),
            Decision::ImportDegraded { without } => without,
            Decision::WaitUntil(limit) => {
                let left = limit.saturating_sub(waited).as_secs() + 1;
                return Tried::Waits(Reason { text: waiting, import_in: Some(left) });
            }
            Decision::Refuse(refusal) => {
                let lists = found.as_ref().map(|found| (found.sides.as_slice(), found.foreign.as_slice()));
                let (sides, foreign) = lists.unwrap_or_default();
                let why = describe(&refusal, &record, sides, foreign);
                let readable = matches!(refusal, Refusal::OtherProgram(_)) && self.newer.0.values().all(|label| label.readable);
                let why = if readable { format!("{why}; import it with --readonly to read it") } else { why };
                return Tried::Waits(if waiting.is_empty() { why } else { format!("{waiting}; {why}") }.into());
            }
        };
        let Some(found) = found else { return Tried::Waits(waiting.into()) };
        let sight: Sight = (found.devices(), found.generation);
        if let Some(labels) = first
            && let Err(error) = self.distrust(&labels)
        {
            return Tried::Waits(error.message.into());
        }
        let Some(record) = self.record() else { return Tried::NotWanted };
        match self.import(record, &found, &without, waited).await {
            Ok(()) => Tried::InService,
            Err(NotOpened { error, silent, .. }) => {
                let unanswered = !silent.is_empty();
                self.silent.note_import(&sight.0, error.kind == ErrorKind::Unavailable, silent);
                // what is on the devices will be the same in two seconds; and a pool that another host has is taken back by hand alone
                if error.kind == ErrorKind::Unavailable {
                    let pause = self.refused.get(&sight).map_or(FIRST_PAUSE, |(_, pause)| *pause * 2);
                    let pause = pause.min(LONGEST_PAUSE);
                    self.refused.insert(sight, ((!other_host || unanswered).then(|| Instant::now() + pause), pause));
                }
                let reason = if waiting.is_empty() { error.message } else { format!("{waiting}; {}", error.message) };
                Tried::Waits(reason.into())
            }
        }
    }

    /// When devices are waited for no longer, those that did not answer an import are as good as missing: what is found without them, when the pool
    /// may be imported so. Where it may not, they are tried again.
    async fn look_past_silent(&mut self, record: &PoolRecord) -> Option<Seen> {
        let waited = self.seen.map_or(Duration::ZERO, |seen| seen.elapsed());
        if self.silent.0.is_empty() || !self.daemon.rules().leaves_out(waited) {
            return None;
        }
        let silent = self.silent.0.clone();
        let seen = self.look(record, true, &silent).await;
        matches!(seen.decision, Decision::Import | Decision::ImportDegraded { .. }).then_some(seen)
    }

    /// Looks for the pool and decides. `wide`: on all block devices of the host, which is done now and then anyway. Not on those that are left out.
    async fn look(&mut self, record: &PoolRecord, wide: bool, left_out: &BTreeSet<PathBuf>) -> Seen {
        let wide = wide || self.wide <= Instant::now();
        let (scan, found) = self.locate(record, wide, left_out).await;
        if found.is_some() {
            self.seen.get_or_insert_with(Instant::now);
        }
        let waited = self.seen.map_or(Duration::ZERO, |seen| seen.elapsed());
        let rules = self.daemon.rules();
        let evidence = found.as_ref().map(|found| self.daemon.evidence(found));
        let remembered = record.remembered();
        let decision = rules.decide(remembered.as_ref(), evidence.as_ref(), waited);
        let first = evidence.as_ref().and_then(|evidence| rules.distrust(remembered.as_ref(), evidence));
        let waiting = self.waiting(record, &scan, found.as_ref());
        Seen { found, other_host: evidence.is_some_and(|evidence| evidence.other_host.is_some()), decision, first, waiting, waited, wide }
    }

    /// Where the devices of the pool are now: where they were, or wherever their labels are found on this host.
    async fn locate(&mut self, record: &PoolRecord, wide: bool, left_out: &BTreeSet<PathBuf>) -> (Scan, Option<Labelled>) {
        let id = parse_id(&record.id);
        let mine = |scan: &mut Scan| std::mem::take(&mut scan.pools).into_iter().find(|pool| Some(pool.id) == id);
        let search: Vec<PathBuf> = record.paths().chain(&self.places).filter(|path| !left_out.contains(*path)).cloned().collect();
        let mut scan = self.daemon.scan(search.clone()).await;
        let mut fewer = self.newer.note_scan(&scan, id, &search);
        let mut found = mine(&mut scan);
        let whole = found.as_ref().is_some_and(|pool| pool.missing.is_empty() && pool.down.is_empty());
        if wide && !whole {
            let others = labels::host_devices().into_iter().filter(|path| !left_out.contains(path));
            let search: Vec<PathBuf> = search.into_iter().chain(others).collect();
            scan = self.daemon.scan(search.clone()).await;
            fewer |= self.newer.note_scan(&scan, id, &search);
            found = mine(&mut scan).or(found);
            self.wide = Instant::now() + WIDE_LOOK;
            self.places = found.as_ref().map(Labelled::devices).unwrap_or_default();
            // one that this version cannot read keeps the pool out of service until it is away
            self.places.extend(self.newer.0.keys().cloned());
        }
        if fewer {
            // it may be back at another path: the others wait for it as for any device
            self.seen = None;
        }
        found.iter_mut().for_each(|found| self.newer.add_to(found, record.read_only));
        // what does not answer elsewhere is none of this pool's business
        scan.silent.retain(|silent| record.paths().any(|path| *path == silent.path));
        (scan, found)
    }

    /// Which devices are waited for, since when and why; empty when all are there. Notes how each does.
    fn waiting(&mut self, record: &PoolRecord, scan: &Scan, found: Option<&Labelled>) -> String {
        let here = found.map(Labelled::devices).unwrap_or_default();
        // one that was replaced or has moved is not missing
        let moved = found.is_some_and(|found| found.missing.is_empty() && found.down.is_empty());
        let mut absent = BTreeMap::new();
        let mut waits = Vec::new();
        let wanted: Vec<(PathBuf, String)> = match found {
            Some(_) if moved => Vec::new(),
            // another device of the pool may be where a missing one was
            Some(found) => {
                let lacking = found.missing.iter().chain(&found.down);
                lacking.map(|member| (record.last_path(*member).cloned().unwrap_or_default(), names(record, &[*member]))).collect()
            }
            None => record.paths().map(|path| (path.clone(), format!("device {}", path.display()))).collect(),
        };
        for (path, name) in &wanted {
            let taken = here.contains(path);
            let known = !taken && !path.as_os_str().is_empty();
            let name = if known { format!("device {}", path.display()) } else { name.clone() };
            let silent = self.silent.0.contains(path) || scan.silent.iter().any(|silent| silent.path == *path);
            let silent = silent.then(|| "it does not answer".to_owned());
            let unreadable = || scan.unreadable.iter().find(|(at, _)| at == path).map(|(_, why)| format!("it cannot be read: {why}"));
            let newer = || scan.foreign.iter().find(|(at, ..)| at == path).map(|(at, .., why)| newer_label(at, why));
            let (state, why) = match silent.or_else(unreadable).or_else(newer) {
                _ if taken => (DeviceState::Missing, "another device of the pool is at its path".to_owned()),
                Some(why) => (DeviceState::Unavailable, why),
                None if !known => (DeviceState::Missing, "it was not found".to_owned()),
                None if scan.absent.contains(path) => (DeviceState::Missing, "it does not exist".to_owned()),
                None => (DeviceState::Unavailable, "it holds no label of this pool".to_owned()),
            };
            let since = *self.since.entry(path.clone()).or_insert_with(instant::now);
            waits.push(format!("waiting for {name} since {}: {why}", since.strftime("%Y-%m-%dT%H:%M:%SZ")));
            absent.insert(path.clone(), state);
        }
        self.since.retain(|path, _| absent.contains_key(path));
        if let Some(entry) = self.daemon.registry().pools.get_mut(&self.name) {
            entry.absent = absent;
        }
        waits.join("; ")
    }

    /// Says why the pool is not in service: in the log and as an event when devices come or go, in its status always.
    fn note(&mut self, reason: &Reason) {
        let words = reason.in_words();
        if reason.text != self.reported.text {
            let message = format!("pool '{}' is not in service: {words}", self.name);
            let happened = Happened::to_pool(EventKind::PoolWaiting, &self.name, message);
            // one that comes without the missing devices in a moment has not failed yet
            let soon = reason.import_in.is_some();
            self.daemon.report(if soon { happened.at(Severity::Warning) } else { happened });
        }
        self.reported = reason.clone();
        let mut registry = self.daemon.registry();
        let trouble = format!("pool '{}' is not in service: {words}", self.name);
        let of_pool = registry.exports.values_mut().filter(|export| export.record.pool == self.name);
        of_pool.for_each(|export| export.trouble = Some(trouble.clone()));
        let entry = registry.pools.get_mut(&self.name).filter(|entry| entry.record.id == self.id && entry.shard.is_err());
        if let Some(entry) = entry {
            entry.shard = Err(words);
            entry.opening = false;
        }
    }

    async fn import(&self, record: PoolRecord, found: &Labelled, without: &[MemberId], waited: Duration) -> Result<(), NotOpened> {
        let lost = names(&record, without);
        if !without.is_empty() {
            tracing::warn!(
                pool = self.name,
                without = lost,
                seconds = waited.as_secs(),
                "devices still missing after import_wait: importing without them"
            );
        }
        if let Some(entry) = self.daemon.registry().pools.get_mut(&self.name) {
            entry.opening = true;
        }
        let shard = self.daemon.open(found, &How::by_itself(&record, found, !without.is_empty())).await?;
        let record = record.with(found);
        let first = self.daemon.rules().must_be_remembered(&self.daemon.evidence(found), false, false);
        if let Err(error) = self.serve(record, &shard, first).await {
            // what is to be said is why it is not served
            let _ = shard.shutdown().await;
            return Err(error.into());
        }
        Ok(())
    }

    /// Remembers, durably, which devices are still current, before an import without the others writes labels (INV-MEMORY-1).
    fn distrust(&self, labels: &LabelsInForce) -> Result<(), ApiError> {
        let remember = |memory: Option<InForce>| {
            let mut registry = self.daemon.registry();
            let entry = registry.pools.get_mut(&self.name)?;
            std::mem::replace(&mut entry.record.in_force, memory)
        };
        let before = self.record().and_then(|record| record.in_force);
        let now = InForce::of(labels, before.as_ref());
        let since = before.as_ref().map_or(now.since, |before| before.since);
        remember(Some(InForce { since, ..now }));
        self.daemon.save().map_err(|error| {
            remember(before);
            ApiError::internal(format!(
                "not imported without devices, because it cannot be saved that they are out of date: {}; free up space there",
                error.message
            ))
        })
    }

    /// Remembers what came into service, durably, and then serves it; `first`: and not otherwise (INV-MEMORY-1).
    async fn serve(&self, record: PoolRecord, shard: &ShardHandle, first: bool) -> Result<(), ApiError> {
        let daemon = &self.daemon;
        let labels = settled(shard).await?;
        let mut record = record.remembering(&labels);
        for status in shard.status().await.iter() {
            device_names::note(&mut record, status);
            device_names::describe(shard, status);
        }
        let _pool = daemon.wait_for_pool(&self.name).await;
        if self.record().is_none() {
            return Err(ApiError::busy("it was removed meanwhile"));
        }
        let changed = {
            let mut registry = daemon.registry();
            let entry = registry.pools.get_mut(&self.name).ok_or_else(|| ApiError::busy("it was removed meanwhile"))?;
            let before = std::mem::replace(&mut entry.record, record);
            (before != entry.record).then_some(before)
        };
        if let Some(before) = changed
            && let Err(error) = daemon.save()
        {
            if first {
                // what is not remembered durably is not remembered: the next attempt tries to save it again
                if let Some(entry) = daemon.registry().pools.get_mut(&self.name) {
                    entry.record = before;
                }
                return Err(ApiError::internal(format!(
                    "not imported without devices, because it cannot be saved that they are out of date: {}; free up space there",
                    error.message
                )));
            }
            tracing::error!(%error, "the devices of a pool are not remembered");
        }
        daemon.put_in_service(&self.name, shard.clone());
        let record = daemon.registry().pools.get(&self.name).map(|entry| entry.record.clone());
        if let Some(record) = record {
            limits::apply(&record, shard).await;
        }
        daemon.share_read_cache();
        daemon.restore_exports(&self.name).await;
        daemon.take_back_copies(&self.name).await;
        daemon.tell(EventKind::PoolImported, &self.name);
        daemon.follow_devices(&self.name);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use millpond_engine::ImportRules;
    use millpond_format::{Class, Column, DeviceId, FeatureNames, FeatureSet, Group, Label, Layout, Member, MemberState, SegmentId, Shape};

    use super::*;
    use crate::host_calls::NoAnswer;
    use crate::labels::Looked;

    /// A device that a later version wrote stays one, until something else is read at its path or it
    /// is away: it is not done without because it cannot be read for a while.
    #[test]
    fn a_device_of_a_later_version_stays_one_while_it_cannot_be_read() {
        let (id, path) = (PoolId([7; 16]), PathBuf::from("/dev/b"));
        let why = FormatError::Version(9);
        let foreign = |id| Scan { foreign: vec![(path.clone(), id, "tank".to_owned(), why)], ..Scan::default() };
        let silent = Scan { silent: vec![NoAnswer { path: path.clone(), silent: Duration::ZERO }], ..Scan::default() };
        let unreadable = Scan { unreadable: vec![(path.clone(), "input/output error".to_owned())], ..Scan::default() };
        let absent = Scan { absent: vec![path.clone()], ..Scan::default() };
        let mut newer = NewerDevices::default();
        let mut note = |scan: &Scan, looked: &[PathBuf]| {
            let before = newer.0.len();
            assert_eq!(newer.note_scan(scan, Some(id), looked), newer.0.len() < before);
            newer.0.keys().cloned().collect::<Vec<_>>()
        };
        let there = std::slice::from_ref(&path);
        assert_eq!(note(&foreign(PoolId([8; 16])), there), [] as [PathBuf; 0], "another pool's");
        for gone in [&absent, &Scan::default()] {
            assert_eq!(note(&foreign(id), there), there);
            assert_eq!(note(&silent, there), there);
            assert_eq!(note(&unreadable, there), there);
            assert_eq!(note(&Scan::default(), &[]), there, "it was not looked at");
            assert_eq!(note(gone, there), [] as [PathBuf; 0]);
            assert_eq!(note(&unreadable, there), [] as [PathBuf; 0], "it was another device");
        }
    }

    /// A device with features that writers have to know is one of these, too, except for a pool that
    /// is only read.
    #[test]
    fn a_device_that_only_a_later_version_may_write_to_stays_one() {
        let (id, path) = (PoolId([7; 16]), PathBuf::from("/dev/b"));
        let unreadable = Scan { unreadable: vec![(path.clone(), "input/output error".to_owned())], ..Scan::default() };
        let (a, b) = (looked(id, 0, FeatureSet::default()), looked(id, 1, FeatureSet { ro_compat: 4, ..FeatureSet::default() }));
        let mut newer = NewerDevices::default();
        newer.note_scan(&Scan { pools: Labelled::group(vec![a.clone(), b]), ..Scan::default() }, Some(id), std::slice::from_ref(&path));
        newer.note_scan(&unreadable, Some(id), std::slice::from_ref(&path));
        for read_only in [false, true] {
            let mut found = Labelled::group(vec![a.clone()]).pop().expect("a pool");
            newer.add_to(&mut found, read_only);
            let refused = ImportRules::default().decide(None, Some(&found.evidence(None)), Duration::MAX);
            assert_eq!(matches!(refused, Decision::Refuse(Refusal::OtherProgram(_))), !read_only, "{refused:?}");
        }
    }

    /// Returns what is read from the devices `/dev/a` and `/dev/b` of a mirror.
    fn looked(pool: PoolId, at: u16, features: FeatureSet) -> Looked {
        let column = |member| Column { member: MemberId(member), first: 0, extents: 4 };
        let group =
            Group { class: Class::Data, layout: Layout::Mirror { copies: 2 }, first: SegmentId(0), columns: vec![column(0), column(1)] };
        let device = |at: u16| DeviceId(100 + u64::from(at));
        let (state, replacement) = (MemberState::Present, None);
        let member = |at| Member { device: device(at), extents: 4, state, replacement, leaving: false, down_since: 0 };
        let shape = Shape {
            generation: 1,
            extent_bytes: 1 << 20,
            chunk_units: 512,
            next: SegmentId(4),
            members: vec![member(0), member(1)],
            groups: vec![group],
        };
        let (name, feature_names, notes) = ("tank".to_owned(), FeatureNames::default(), Vec::new());
        let label = Label { pool, name, device: device(at), member: MemberId(at), shape, features, feature_names, notes };
        Looked {
            place: PathBuf::from(["/dev/a", "/dev/b"][usize::from(at)]),
            label,
            claim: None,
            taker: None,
            seen: None,
            unread_claim: false,
        }
    }

    /// One device never answers, and another one did not answer once: from the next import of both on
    /// the second one counts again.
    #[test]
    fn a_device_that_answers_the_next_import_is_not_silent() {
        let [a, b] = ["/dev/a", "/dev/b"].map(PathBuf::from);
        let both = [a.clone(), b.clone()];
        let mut silent = SilentDevices::default();
        let mut note = |tried: &[PathBuf], read: bool, unanswered: &[&PathBuf]| {
            silent.note_import(tried, read, unanswered.iter().copied().cloned().collect());
            silent.0.iter().cloned().collect::<Vec<_>>()
        };
        assert_eq!(note(&both, true, &[&a]), std::slice::from_ref(&a));
        assert_eq!(note(&both[1..], true, &[&b]), both);
        assert_eq!(note(&both, true, &[&a]), std::slice::from_ref(&a));
        // an import that came to no device shows nothing of them
        assert_eq!(note(&both, false, &[]), std::slice::from_ref(&a));
        assert_eq!(note(&both, true, &[]), [] as [PathBuf; 0]);
    }
}
