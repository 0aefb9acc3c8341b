//! Events: each is a line of the log, goes to listeners and to the command of `on_event`, and is
//! remembered.
//!
//! The last events are in memory, and in a file of the state directory, one JSON object a line, so
//! that they outlive a restart. Both are bounded ([`EventBounds`]). The file has an event before the
//! request that caused it is answered, unless the file system is slow; it is not flushed, so a crash
//! of the host may lose the last events.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use millpond_api::instant;
use millpond_api::{Condition, Event, EventKind, Severity};
use tokio::sync::{broadcast, watch};

use super::caller;
use super::hook::HookQueue;
use super::service::Daemon;
use file::EventFile;
use recent::Recent;

mod file;
mod recent;
#[cfg(test)]
mod tests;

pub use recent::EventBounds;

/// Name of the file in the state directory.
const FILE: &str = "events.jsonl";
/// Number of events kept for a slow listener; older ones are dropped for it.
const BACKLOG: usize = 256;
/// Time between two tries to write a file that could not be written.
const RETRY: Duration = Duration::from_secs(30);
/// How long the end of the daemon waits for the last events to be written.
const LAST: Duration = Duration::from_secs(2);
/// How long an answer waits for the events of its request to be in the file.
const WRITTEN: Duration = Duration::from_millis(200);
/// Longest message in characters.
const LONGEST: usize = 2000;

/// An event before it is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Happened {
    kind: EventKind,
    severity: Option<Severity>,
    subject: String,
    pool: Option<String>,
    device: Option<String>,
    message: String,
}

impl Happened {
    /// An event about a pool.
    pub(super) fn to_pool(kind: EventKind, pool: &str, message: impl Into<String>) -> Happened {
        Happened { kind, severity: None, subject: pool.to_owned(), pool: Some(pool.to_owned()), device: None, message: message.into() }
    }

    /// An event about the daemon itself.
    pub(super) fn to_daemon(kind: EventKind, message: impl Into<String>) -> Happened {
        Happened { kind, severity: None, subject: "daemon".to_owned(), pool: None, device: None, message: message.into() }
    }

    /// An event about a device of a pool.
    pub(super) fn to_device(kind: EventKind, pool: &str, device: &str, message: impl Into<String>) -> Happened {
        Happened { subject: device.to_owned(), device: Some(device.to_owned()), ..Happened::to_pool(kind, pool, message) }
    }

    /// Replaces the subject by something else of the pool.
    pub(super) fn about(self, subject: impl Into<String>) -> Happened {
        Happened { subject: subject.into(), ..self }
    }

    /// An event about a condition.
    pub(super) fn of_condition(kind: EventKind, condition: &Condition, message: String) -> Happened {
        let Condition { subject, pool, device, .. } = condition;
        Happened { kind, severity: None, subject: subject.clone(), pool: pool.clone(), device: device.clone(), message }
    }

    /// Gives the event another severity than its kind has.
    pub(super) fn at(self, severity: Severity) -> Happened {
        Happened { severity: Some(severity), ..self }
    }

    /// Returns the kind.
    #[cfg(test)]
    pub(super) fn kind(&self) -> &EventKind {
        &self.kind
    }

    /// Returns the message.
    #[cfg(test)]
    pub(super) fn message(&self) -> &str {
        &self.message
    }

    /// Returns the severity.
    pub(super) fn severity(&self) -> Severity {
        self.severity.unwrap_or_else(|| self.kind.severity())
    }

    fn into_event(self) -> Event {
        Event {
            number: 0,
            time: instant::now(),
            severity: self.severity().into(),
            event: self.kind,
            subject: self.subject,
            pool: self.pool,
            device: self.device,
            message: one_line(&self.message),
            by: caller::current(),
        }
    }
}

/// Number of events of one kind and severity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EventCount {
    pub(super) kind: String,
    pub(super) severity: String,
    pub(super) count: u64,
}

/// The remembered events, and the listeners for new ones.
pub(super) struct EventLog {
    shared: Arc<Shared>,
    listeners: broadcast::Sender<Event>,
    /// How many of the recorded events the thread has written, or has tried to write.
    progress: watch::Receiver<usize>,
    /// Disconnected when the thread that writes the file has ended.
    written: Mutex<Option<mpsc::Receiver<()>>>,
}

/// State shared by the recorders of events and the thread that writes them.
struct Shared {
    remembered: Mutex<Remembered>,
    /// Signals that there is an event to write, or that no more will come.
    changed: Condvar,
}

impl Shared {
    fn remembered(&self) -> MutexGuard<'_, Remembered> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Remembered {
    /// The last events. The thread writes from here, so this also bounds the events that wait to be
    /// written.
    recent: Recent,
    /// Number of the last event.
    number: u64,
    /// Number of events since the start, and how many of them the file's thread has taken.
    recorded: usize,
    taken: usize,
    /// Number of these events by kind and severity.
    counts: BTreeMap<(String, String), u64>,
    hook: Option<HookQueue>,
    /// Reason why the file lacks events.
    unsaved: Option<String>,
    ends: bool,
}

impl EventLog {
    /// Opens the log with the events of the file in `dir`, and keeps as many as `bounds` allow; new
    /// events also go to `hook`.
    pub(super) fn open(dir: &Path, bounds: EventBounds, hook: Option<HookQueue>) -> EventLog {
        let file = EventFile::open(dir.join(FILE), bounds);
        let recent = file.recent().clone();
        let number = recent.last().map_or(0, |event| event.number);
        let remembered =
            Remembered { recent, number, recorded: 0, taken: 0, counts: BTreeMap::new(), hook, unsaved: file.lacks(), ends: false };
        let shared = Arc::new(Shared { remembered: Mutex::new(remembered), changed: Condvar::new() });
        let (end, written) = mpsc::channel();
        let (wrote, progress) = watch::channel(0);
        let writer = {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name("events".to_owned()).spawn(move || {
                write(&shared, file, &wrote);
                drop(end);
            })
        };
        if let Err(error) = &writer {
            tracing::warn!(%error, "events are not kept across restarts: cannot start the thread that writes them");
        }
        EventLog { shared, listeners: broadcast::channel(BACKLOG).0, progress, written: Mutex::new(writer.is_ok().then_some(written)) }
    }

    /// Numbers and remembers an event, and sends it to hook and listeners. Never waits for the
    /// file.
    fn record(&self, mut event: Event) {
        let mut remembered = self.shared.remembered();
        remembered.number += 1;
        event.number = remembered.number;
        if let Some(hook) = &mut remembered.hook {
            hook.hand_over(&event);
        }
        remembered.recent.keep(event.clone());
        remembered.recorded += 1;
        *remembered.counts.entry((event.event.to_string(), event.severity.to_string())).or_default() += 1;
        // No listener is no error. Sent under the lock, so that `listen` neither misses an event
        // nor gets one twice.
        let _ = self.listeners.send(event);
        self.shared.changed.notify_one();
    }

    /// Returns the numbers of events since the start, by kind and severity. Every kind is listed
    /// with its own severity, so that the first event of a kind is seen as an increase.
    pub(super) fn counts(&self) -> Vec<EventCount> {
        let none = EventKind::ALL.iter().map(|kind| ((kind.to_string(), kind.severity().name().to_owned()), 0));
        let mut counts: BTreeMap<(String, String), u64> = none.collect();
        counts.extend(self.shared.remembered().counts.clone());
        counts.into_iter().map(|((kind, severity), count)| EventCount { kind, severity, count }).collect()
    }

    /// Returns the remembered events that `from` names, and a receiver of new ones.
    fn listen(&self, from: From) -> (Vec<Event>, broadcast::Receiver<Event>) {
        let remembered = self.shared.remembered();
        // a log that was begun anew has lower numbers than the caller has seen
        let anew = |seen: u64| seen > remembered.number;
        let wanted = |event: &&Event| match from {
            From::Now => false,
            From::Time(since) => event.time >= since,
            From::After(seen) => event.number > seen || anew(seen),
        };
        (remembered.recent.iter().filter(wanted).cloned().collect(), self.listeners.subscribe())
    }

    /// Waits until the file has all events that were recorded before the call, but at most
    /// [`WRITTEN`].
    pub(super) async fn until_written(&self) {
        let recorded = self.shared.remembered().recorded;
        let mut progress = self.progress.clone();
        // an error means that the thread has ended, a timeout that the file system is slow
        let _ = tokio::time::timeout(WRITTEN, progress.wait_for(|written| *written >= recorded)).await;
    }

    /// Returns the reason why the file lacks events; `None` if it has them all.
    pub(super) fn unsaved(&self) -> Option<String> {
        self.shared.remembered().unsaved.clone()
    }

    /// Returns the time of the last event.
    pub(super) fn last_time(&self) -> Option<Timestamp> {
        self.shared.remembered().recent.last().map(|event| event.time)
    }

    /// Waits until all events are written, but at most [`LAST`]. Later events are not written.
    pub(super) fn finish(&self) {
        self.shared.remembered().ends = true;
        self.shared.changed.notify_one();
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner).take();
        // an error here means that the thread has ended
        if written.is_some_and(|written| written.recv_timeout(LAST) == Err(mpsc::RecvTimeoutError::Timeout)) {
            tracing::warn!("the last events are not written: the filesystem of the state directory does not answer");
        }
    }
}

impl Drop for EventLog {
    fn drop(&mut self) {
        self.finish();
    }
}

/// The events with which a listener begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// Only new ones.
    Now,
    /// Those since this time.
    Time(Timestamp),
    /// Those after the event of this number; all, if the log has no such number yet.
    After(u64),
}

/// Writes events until the log ends; on a thread of its own, because a file system may be full,
/// slow or hang.
fn write(shared: &Shared, mut file: EventFile, wrote: &watch::Sender<usize>) {
    loop {
        let (fresh, left_out, taken) = {
            let mut remembered = shared.remembered();
            while remembered.recorded == remembered.taken && !remembered.ends {
                if file.lacks().is_none() {
                    remembered = shared.changed.wait(remembered).unwrap_or_else(PoisonError::into_inner);
                    continue;
                }
                // there may be room again
                let (again, waited) = shared.changed.wait_timeout(remembered, RETRY).unwrap_or_else(PoisonError::into_inner);
                remembered = again;
                if waited.timed_out() {
                    break;
                }
            }
            if remembered.recorded == remembered.taken && remembered.ends {
                return;
            }
            let count = remembered.recorded - remembered.taken;
            remembered.taken = remembered.recorded;
            let known = remembered.recent.len();
            let fresh: Vec<Event> = remembered.recent.iter().skip(known.saturating_sub(count)).cloned().collect();
            (fresh, count.saturating_sub(known), remembered.taken)
        };
        if left_out > 0 {
            tracing::warn!("the file of events was behind, {left_out} events are not in it");
        }
        file.add(fresh);
        shared.remembered().unsaved = file.lacks();
        wrote.send_replace(taken);
    }
}

/// Returns a message without line ends and other control characters, cut at [`LONGEST`].
fn one_line(message: &str) -> String {
    message.chars().map(|character| if character.is_control() { ' ' } else { character }).take(LONGEST).collect()
}

/// Returns the pool that a subject belongs to: `POOL`, `POOL/VOL@SNAP`, `POOL: more`, or an
/// export's `ID POOL/VOL`. Subjects of other events do not name their pool.
fn pool_of(kind: &EventKind, subject: &str) -> Option<String> {
    use EventKind::*;
    let name = match kind {
        ExportCreated | ExportRemoved | ExportStopped | ExportRestored => subject.split_once(' ')?.1,
        PoolCreated | PoolImported | PoolExported | PoolDestroyed | PoolNotClosed | PoolWaiting | PoolOlderState | PoolDegraded
        | PoolFaulted | PoolSilent | PoolHealthy | PoolSpace | PoolFull | PoolHasRoom | PoolDevicesAdded | PoolReplacing | PoolRemoving
        | PoolRemovalEnded | PoolRemovalWaits | PoolChanged | PoolUnreclaimed | PoolRebalancing | PoolWiping | PoolUpgraded
        | PoolScrubbing | DeviceLimited | HostNearlyFull | HostHasRoom | VolumeCreated | VolumeChanged | VolumeResized
        | VolumeRolledBack | VolumePromoted | VolumeCopied | VolumeCopyFailed | VolumeUnreadable | SnapshotCreated | SnapshotExpired
        | SnapshotHeld | SnapshotReleased | SnapshotReceived | SnapshotSent | Renamed | Destroyed | PolicyAttached | PolicyDetached
        | PolicyMissed | PolicyResumed | PolicyNotSent | PolicySent | SnapshotPruned | GuestNotFrozen | GuestFreezes | GuestStuck
        | GuestThawed => subject,
        DaemonStarted | DaemonStopped | AccessRefused | TokenCreated | TokenDestroyed | DeviceFailed | DeviceMissing | DeviceSilent
        | DeviceSlow | DeviceErrors | DeviceFull | DeviceReturned | DeviceRecovered | DeviceSpareUsed | DeviceReleased | JobBegan
        | JobStopped | JobEnded | ScrubEnded | StateUnsaved | PolicyCreated | PolicyChanged | PolicyDestroyed | ConditionBegan
        | ConditionEnded | Other(_) => return None,
    };
    let pool = name.split(['/', '@', ':', ' ']).next()?;
    (!pool.is_empty()).then(|| pool.to_owned())
}

impl Daemon {
    /// Reports an event that needs no message beyond the meaning of its kind.
    pub(super) fn tell(&self, kind: EventKind, subject: impl Into<String>) {
        let subject = subject.into();
        let message = format!("{}: {subject}", kind.meaning());
        log(kind.severity(), &kind, &one_line(&subject));
        let happened = Happened { severity: None, pool: pool_of(&kind, &subject), device: None, subject, message, kind };
        self.events.record(happened.into_event());
    }

    /// Reports an event.
    pub(super) fn report(&self, happened: Happened) {
        log(happened.severity(), &happened.kind, &one_line(&happened.message));
        self.events.record(happened.into_event());
    }

    /// Returns the remembered events that `from` names, and a receiver of new ones.
    pub fn listen_from(&self, from: From) -> (Vec<Event>, broadcast::Receiver<Event>) {
        self.events.listen(from)
    }
}

fn log(severity: Severity, kind: &EventKind, message: &str) {
    match severity {
        Severity::Info => tracing::info!("{kind} {message}"),
        Severity::Warning => tracing::warn!("{kind} {message}"),
        Severity::Error => tracing::error!("{kind} {message}"),
    }
}
