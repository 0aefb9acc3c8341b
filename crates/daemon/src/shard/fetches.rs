//! Chunks of bases that the pool lacks: passed to the daemon, whose processes read them, and taken back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use millpond_block::Buf;
use millpond_device::Waker;
use millpond_engine::{Fetch, FetchError, VolumeId};
use millpond_export::nbd::Session;
use tokio::sync::mpsc::UnboundedSender;

use super::connection::Connection;
use super::pool::Pool;
use super::shard::Shard;

/// The content of a chunk; `None` is all zero.
type FetchResult = Result<Option<Vec<u8>>, FetchError>;

/// An order to the daemon's tasks that fetch.
pub enum FetchOrder {
    /// Fetch a chunk.
    Fetch(WantedChunk),
    /// A base has moved: what is fetched for it from its old place is given up, and wanted again from
    /// the new one.
    Moved {
        /// Name of the pool.
        pool: String,
        /// Its source before, in the daemon's words.
        source: String,
    },
}

/// A chunk that a pool lacks.
pub struct WantedChunk {
    /// Name of the pool.
    pub pool: Arc<str>,
    /// Name of the base.
    pub volume: String,
    /// Number of the chunk.
    pub chunk: u64,
    /// Size of the base in bytes.
    pub size: u64,
    /// The source of the base, in the daemon's words.
    pub source: String,
    /// No read waited for it when the pool asked for it: it is fetched ahead of a guest.
    pub ahead: bool,
    fetch: Fetch,
    waited_for: Arc<AtomicBool>,
    fetched: Weak<Fetched>,
}

impl WantedChunk {
    /// Returns whether reads wait for the chunk; approximately, because they begin and end meanwhile. A
    /// fetch that none waits for may be given up with [`FetchError::NotNow`].
    pub fn is_waited_for(&self) -> bool {
        self.fetched.strong_count() > 0 && self.waited_for.load(Ordering::Relaxed)
    }

    /// Gives the chunk to the shard, if that has not ended. A later import of the pool does not get it.
    pub fn answer(self, result: FetchResult) {
        let Some(fetched) = self.fetched.upgrade() else { return };
        fetched.results.lock().unwrap_or_else(PoisonError::into_inner).push((self.fetch, result));
        fetched.waker.wake();
    }
}

/// Results that the shard has not taken yet.
struct Fetched {
    results: Mutex<Vec<(Fetch, FetchResult)>>,
    waker: Waker,
}

/// The way of fetches out of a shard, and back.
#[derive(Default)]
pub(super) struct Fetches {
    way: Option<Way>,
    /// Those that have no result.
    out: Vec<Out>,
    /// Time from which there are none any more, in nanoseconds: the shard ends.
    end: Option<u64>,
}

struct Out {
    fetch: Fetch,
    /// The bytes that it is to have.
    length: u64,
    /// Set by the shard.
    waited_for: Arc<AtomicBool>,
}

struct Way {
    pool: Arc<str>,
    to: UnboundedSender<FetchOrder>,
    fetched: Arc<Fetched>,
}

impl Fetches {
    /// Passes fetches to this channel from now on. Until then they wait in the pool.
    pub fn pass_to(&mut self, pool: &str, to: UnboundedSender<FetchOrder>, waker: Waker) {
        if self.way.is_none() {
            let fetched = Arc::new(Fetched { results: Mutex::default(), waker });
            self.way = Some(Way { pool: pool.into(), to, fetched });
        }
    }

    /// Ends all fetches at this time.
    pub fn end_at(&mut self, nanos: u64) {
        self.end = Some(nanos);
    }
}

impl<P: Pool> Shard<P> {
    /// Passes the chunks that the pool lacks to the daemon.
    pub(super) fn pass_fetches_on(&mut self) {
        let Some(Way { pool, to, fetched }) = &self.fetches.way else { return };
        while let Some(fetch) = self.pool.pop_fetch() {
            let before = fetch.base.0.checked_sub(1).map(VolumeId);
            let volume = self.pool.volumes_after(before, 1).pop().filter(|volume| volume.id == fetch.base);
            let Some((volume, base)) = volume.and_then(|volume| Some((volume.clone(), volume.base?))) else {
                self.pool.fetched(fetch, Err(FetchError::Missing));
                continue;
            };
            let waited_for = Arc::new(AtomicBool::new(!fetch.ahead));
            let wanted = WantedChunk {
                pool: Arc::clone(pool),
                volume: volume.name,
                chunk: fetch.chunk,
                size: volume.size,
                source: base.source,
                ahead: fetch.ahead,
                fetch,
                waited_for: Arc::clone(&waited_for),
                fetched: Arc::downgrade(fetched),
            };
            let unit = u64::from(base.unit);
            let length = unit.min(volume.size.saturating_sub(fetch.chunk.saturating_mul(unit)));
            self.fetches.out.push(Out { fetch, length, waited_for });
            // without a receiver the daemon ends, and the pool with it
            let _ = to.send(FetchOrder::Fetch(wanted));
        }
    }

    /// Gives chunks that were fetched to the pool.
    pub(super) fn take_fetched(&mut self) {
        let Some(way) = &self.fetches.way else { return };
        let results = std::mem::take(&mut *way.fetched.results.lock().unwrap_or_else(PoisonError::into_inner));
        for (fetch, result) in results {
            let out = self.fetches.out.iter().position(|out| out.fetch == fetch);
            let Some(Out { length, .. }) = out.map(|at| self.fetches.out.swap_remove(at)) else { continue };
            let result = match result {
                // the rest of the buffer would have other content
                Ok(Some(bytes)) if (bytes.len() as u64) < length => Err(FetchError::Damaged),
                Ok(bytes) => Ok(bytes.map(|bytes| self.buffer_of(&bytes))),
                Err(error) => Err(error),
            };
            self.pool.fetched(fetch, result);
        }
    }

    fn buffer_of(&mut self, bytes: &[u8]) -> Buf {
        let mut buf = self.pool.buffers().take(bytes.len());
        if let Some(to) = buf.bytes_mut().get_mut(..bytes.len()) {
            to.copy_from_slice(bytes);
        }
        buf
    }

    /// Fails the requests that wait for chunks, of clients and guests that are gone and of mounts that end:
    /// their target may be away for long, and their exports would not end before. Notes which fetches no
    /// read waits for any more.
    pub(super) fn end_fetches_of_gone(&mut self) {
        let is_gone = |client: &Connection| client.session.is_aborted() && client.session.in_flight() > 0;
        let indexes = self.clients.indexes().into_iter().filter(|index| self.clients.get(*index).is_some_and(is_gone));
        let clients = indexes.map(|index| self.clients.session_of(index));
        let gone: Vec<u32> = clients.chain(self.vhost.ending_waits(self.now)).chain(self.mounts.ending_waits(self.now)).collect();
        if !gone.is_empty() {
            self.pool.end_fetch_waits(&|tag| gone.contains(&Session::id_of(tag)));
            self.stage.set_busy(true);
        }
        for out in &self.fetches.out {
            out.waited_for.store(self.pool.is_fetch_wanted(out.fetch), Ordering::Relaxed);
        }
    }

    /// Fails the reads that wait for chunks, once the shard has ended the connections of clients and
    /// guests, and mounts: those of the daemon itself are left.
    pub(super) fn end_fetches(&mut self) {
        let is_due = self.fetches.end.is_some_and(|end| end <= self.now);
        if !is_due || !self.vhost.is_empty() || !self.mounts.is_empty() {
            return;
        }
        for Out { fetch, .. } in std::mem::take(&mut self.fetches.out) {
            self.pool.fetched(fetch, Err(FetchError::Missing));
        }
    }
}
