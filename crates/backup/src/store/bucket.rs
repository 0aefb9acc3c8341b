//! A bucket as target. The store must list what was written before, as S3, MinIO and Ceph do.
//!
//! Commands that use a target write a flag, then look for the flags of others, so that of two at least
//! one sees the other. A flag is renewed every minute; one that is older than half an hour, by the
//! store's clock, is of a command that has ended. A command that could not renew its own for ten minutes
//! stops, so it has stopped before others go on without it.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use millpond_bucket::{BucketError, ErrorKind, Files};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Handle;

use super::{Lock, Store};
use crate::StoreError;

/// Folder of the flags.
const LOCKS: &str = "locks";
/// Age at which the flag of another command counts for nothing, in milliseconds.
const DEAD: i64 = 30 * 60 * 1000;
/// Time without a renewal after which a command stops.
const LATE: Duration = Duration::from_secs(10 * 60);
/// Time between renewals.
const RENEW: Duration = Duration::from_secs(60);
/// How long a command waits for others.
const PATIENCE: Duration = Duration::from_secs(600);
/// How long a request is repeated.
const REPEAT: Duration = Duration::from_secs(120);
/// Waits between attempts: the first, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// A prefix of a bucket.
pub struct BucketStore {
    files: Arc<Files>,
    runtime: Handle,
    /// Words that set this command apart from others.
    own: String,
    /// Number of the next lock.
    next: AtomicU64,
}

impl BucketStore {
    /// Uses the prefix; `own` is a random word of letters and digits. Its methods must not be called
    /// by tasks of the runtime.
    pub fn new(files: Files, runtime: Handle, own: String) -> BucketStore {
        BucketStore { files: Arc::new(files), runtime, own, next: AtomicU64::new(0) }
    }

    /// Does a request until it is answered. All requests of this module can be repeated.
    fn ask<T>(&self, request: impl AsyncFn(&Files) -> Result<T, BucketError>) -> Result<T, StoreError> {
        let end = Instant::now() + REPEAT;
        let mut pause = PAUSE.0;
        loop {
            let error = match self.runtime.block_on(request(&self.files)) {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            match error.kind {
                ErrorKind::Missing if !error.verb.changes() => return Err(StoreError::Missing(error.subject)),
                ErrorKind::Away | ErrorKind::Unknown | ErrorKind::Throttled if Instant::now() < end => {}
                _ => return Err(StoreError::Io("use the bucket".to_owned(), io::Error::other(error.to_string()))),
            }
            thread::sleep(pause);
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Returns the flags of others that count, with the time of the own one.
    fn others(&self, own: &str, alone: bool) -> Result<Vec<String>, StoreError> {
        let mut flags = Vec::new();
        self.each(LOCKS, &mut |flag| flags.push(flag))?;
        // without its own flag, the command would not see others that do not see it
        let now = flags.iter().find(|flag| flag.name == own).map(|flag| flag.written).ok_or(StoreError::Late)?;
        let (dead, alive): (Vec<_>, Vec<_>) = flags.into_iter().filter(|flag| flag.name != own).partition(|flag| now - flag.written > DEAD);
        let dead: Vec<String> = dead.into_iter().map(|flag| flag.name).collect();
        if !dead.is_empty() {
            self.delete(&dead)?;
        }
        Ok(alive.into_iter().map(|flag| flag.name).filter(|name| alone || name.starts_with(&format!("{LOCKS}/alone-"))).collect())
    }

    fn each(&self, folder: &str, each: &mut dyn FnMut(millpond_bucket::Listed)) -> Result<(), StoreError> {
        let mut after: Option<String> = None;
        loop {
            let (page, more) = self.ask(async |files| files.list(folder, after.as_deref()).await)?;
            let last = page.last().map(|listed| listed.name.clone());
            page.into_iter().for_each(&mut *each);
            if !more {
                return Ok(());
            }
            // a page without names would never end
            after = Some(last.ok_or_else(|| {
                StoreError::Io(format!("list {folder}"), io::Error::new(io::ErrorKind::InvalidData, "the store sends empty pages"))
            })?);
        }
    }
}

impl Store for BucketStore {
    fn name(&self) -> String {
        self.files.bucket().place().to_string()
    }

    fn put(&self, name: &str, content: &[u8]) -> Result<(), StoreError> {
        self.ask(async |files| files.put(name, content.to_vec()).await)
    }

    fn put_new(&self, name: &str, content: &[u8]) -> Result<bool, StoreError> {
        let written = self.ask(async |files| match files.create(name, content.to_vec()).await {
            Err(error) if error.kind == ErrorKind::Exists => Ok(false),
            // a store that cannot do this
            Err(error) if error.kind == ErrorKind::Refused && !files.has(name).await? => {
                files.put(name, content.to_vec()).await.map(|()| true)
            }
            Err(error) if error.kind == ErrorKind::Refused => Ok(false),
            written => written.map(|()| true),
        });
        // it may be of an attempt whose answer was lost
        Ok(written? || self.get(name, content.len() as u64).is_ok_and(|there| there == content))
    }

    fn get(&self, name: &str, most: u64) -> Result<Vec<u8>, StoreError> {
        self.ask(async |files| files.get(name, most).await)
    }

    fn has(&self, name: &str) -> Result<bool, StoreError> {
        self.ask(async |files| files.has(name).await)
    }

    fn list(&self, folder: &str, each: &mut dyn FnMut(String, u64)) -> Result<(), StoreError> {
        self.each(folder, &mut |listed| each(listed.name, listed.length))
    }

    fn delete(&self, names: &[String]) -> Result<(), StoreError> {
        names.chunks(1000).try_for_each(|names| self.ask(async |files| files.delete(names).await))
    }

    fn settle(&self) -> Result<(), StoreError> {
        // what a store has answered is durable
        Ok(())
    }

    fn lock(&self, alone: bool, stop: &AtomicBool) -> Result<Box<dyn Lock>, StoreError> {
        let how = if alone { "alone" } else { "shared" };
        let end = Instant::now() + PATIENCE;
        let mut pause = PAUSE.0;
        loop {
            // a late request to delete the flag of an earlier attempt must not meet this one
            let name = format!("{LOCKS}/{how}-{}-{}", self.own, self.next.fetch_add(1, Relaxed));
            // counted from before the request: the store's time of it is later
            let since = awake();
            self.put(&name, self.own.as_bytes())?;
            let others = self.others(&name, alone).inspect_err(|_| drop(self.delete(std::slice::from_ref(&name))))?;
            if others.is_empty() {
                return Ok(Box::new(Flag::new(Arc::clone(&self.files), self.runtime.clone(), name, since)));
            }
            self.delete(std::slice::from_ref(&name))?;
            if stop.load(Relaxed) {
                return Err(StoreError::Stopped);
            }
            if Instant::now() >= end {
                let other = others.first().map(String::as_str).unwrap_or_default();
                return Err(StoreError::Busy(format!(
                    "another command uses it ({other}); try again when it has ended, or half an hour after it was killed"
                )));
            }
            // commands that saw each other try again at different times
            thread::sleep(pause.mul_f64(0.5 + f64::from(self.own.bytes().fold(0_u8, u8::wrapping_add)) / 256.0));
            pause = (pause * 2).min(PAUSE.1);
        }
    }
}

/// Time that also passes while the machine sleeps.
fn awake() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// A flag that is renewed.
struct Flag {
    files: Arc<Files>,
    runtime: Handle,
    name: String,
    state: Arc<Renewal>,
    renewer: Option<JoinHandle<()>>,
}

struct Renewal {
    /// When the last renewal that was answered began.
    since: Mutex<Duration>,
    /// Others have deleted the flag.
    lost: AtomicBool,
    end: AtomicBool,
}

impl Flag {
    fn new(files: Arc<Files>, runtime: Handle, name: String, since: Duration) -> Flag {
        let state = Arc::new(Renewal { since: Mutex::new(since), lost: AtomicBool::new(false), end: AtomicBool::new(false) });
        let (theirs, of, at, flag) = (Arc::clone(&state), Arc::clone(&files), runtime.clone(), name.clone());
        let renewer = thread::spawn(move || theirs.renew(&of, &at, &flag));
        Flag { files, runtime, name, state, renewer: Some(renewer) }
    }
}

impl Renewal {
    fn renew(&self, files: &Files, runtime: &Handle, name: &str) {
        loop {
            thread::park_timeout(RENEW);
            if self.end.load(Relaxed) {
                return;
            }
            let since = awake();
            // a machine that slept: others may have gone on without it
            let last = *self.since.lock().unwrap_or_else(PoisonError::into_inner);
            if since.saturating_sub(last) > LATE {
                self.lost.store(true, Relaxed);
                return;
            }
            // one that others deleted must not come back
            match runtime.block_on(files.has(name)) {
                Ok(true) => {}
                Ok(false) => {
                    self.lost.store(true, Relaxed);
                    return;
                }
                Err(_) => continue,
            }
            if runtime.block_on(files.put(name, name.as_bytes().to_vec())).is_ok() {
                *self.since.lock().unwrap_or_else(PoisonError::into_inner) = since;
            }
        }
    }
}

impl Lock for Flag {
    fn check(&self) -> Result<(), StoreError> {
        let since = *self.state.since.lock().unwrap_or_else(PoisonError::into_inner);
        if self.state.lost.load(Relaxed) || awake().saturating_sub(since) > LATE { Err(StoreError::Late) } else { Ok(()) }
    }
}

impl Drop for Flag {
    fn drop(&mut self) {
        self.state.end.store(true, Relaxed);
        if let Some(renewer) = self.renewer.take() {
            renewer.thread().unpark();
            // it panicked if that fails, and has ended as well
            let _ = renewer.join();
        }
        // a flag that is left ends by itself
        let _ = self.runtime.block_on(self.files.delete(std::slice::from_ref(&self.name)));
    }
}
