//! Fetching blocks of publications for pools whose clones read them.
//!
//! The daemon does not read targets itself: a process per target does, as long as there is something to
//! fetch, because the client of a store may block for minutes and parses bytes of others. A target that
//! does not answer, or whose process dies, is asked again for ever: the reads of guests wait. A chunk that
//! is missing or damaged is an error of the read.
//!
//! A chunk that is fetched ahead of a guest is asked for once: if the target does not answer, or does not
//! have it, the fetch is given up, and made anew when a read waits for the chunk.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millpond_api::{BaseSource, ConditionKind, EventKind, Pool};
use millpond_engine::FetchError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use super::bases;
use super::conditions::Found;
use super::events::Happened;
use super::service::Daemon;
use super::shard::{FetchOrder, WantedChunk};
use process::{ChunkReader, TargetPlace};
use wire::{ChunkAnswer, ChunkRequest};

pub(super) mod process;
pub mod wire;

/// How long a process without work is kept.
const IDLE: Duration = Duration::from_secs(60);
/// Shortest and longest pause before a target that did not answer is asked again; it doubles in between.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// How long a target may take to answer anything before that is a condition.
const SILENCE: Duration = Duration::from_secs(10);
/// Time between two searches for fetches that nothing waits for any more.
const LOOK: Duration = Duration::from_secs(5);
/// Shortest time between two events about chunks of a target that cannot be had: a guest tries again.
const QUIET: Duration = Duration::from_secs(60);

/// The chunks that are fetched for pools.
pub(super) struct Fetching {
    orders: UnboundedSender<FetchOrder>,
    /// Taken by the task that fetches.
    taken: Mutex<Option<UnboundedReceiver<FetchOrder>>>,
    waits: Mutex<BTreeMap<TargetPlace, Wait>>,
    counts: Mutex<BTreeMap<String, FetchCounts>>,
}

/// Chunks that were fetched for a pool since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FetchCounts {
    pub(super) chunks: u64,
    pub(super) bytes: u64,
    /// Chunks that were missing or damaged.
    pub(super) errors: u64,
}

/// Pools whose reads wait for a target.
#[derive(Clone, Debug)]
struct Wait {
    pools: BTreeSet<Arc<str>>,
    /// Since when it has not answered anything.
    since: Instant,
    why: Option<String>,
}

impl Default for Fetching {
    fn default() -> Fetching {
        let (orders, taken) = unbounded_channel();
        Fetching { orders, taken: Mutex::new(Some(taken)), waits: Mutex::default(), counts: Mutex::default() }
    }
}

impl Fetching {
    /// Returns the channel for the chunks that shards lack.
    pub(super) fn channel(&self) -> UnboundedSender<FetchOrder> {
        self.orders.clone()
    }

    /// Gives up what is fetched for a pool from a source that one of its bases had until now. Reads that
    /// wait for it want it again, from the new source.
    pub(super) fn moved(&self, pool: &str, source: String) {
        // without a receiver the daemon ends, and its pools with it
        let _ = self.orders.send(FetchOrder::Moved { pool: pool.to_owned(), source });
    }

    /// Returns what was fetched for a pool.
    pub(super) fn counts(&self, pool: &str) -> FetchCounts {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).get(pool).copied().unwrap_or_default()
    }

    /// Returns the conditions of a pool: targets for which its reads have waited for long.
    pub(super) fn conditions(&self, pool: &Pool) -> Vec<Found> {
        let waits = self.waits();
        let long = waits.iter().filter(|(_, wait)| wait.since.elapsed() >= SILENCE && wait.pools.contains(pool.name.as_str()));
        let condition = |(place, wait): (&TargetPlace, &Wait)| {
            let why = wait.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            let cause = format!("pool {}: reads of clones wait for {}, which does not answer{why}", pool.name, place.target);
            let remedy = "correct that, or give its new address with 'millpond rebase'; then the reads go on";
            let subject = format!("{}: {}", pool.name, place.target);
            Found {
                pool: Some(pool.name.clone()),
                owner: pool.id.clone(),
                ..Found::new(ConditionKind::PublicationAway, &subject, cause, remedy)
            }
        };
        long.map(condition).collect()
    }

    fn waits(&self) -> MutexGuard<'_, BTreeMap<TargetPlace, Wait>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, pool: &str, answer: &ChunkAnswer) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = counts.entry(pool.to_owned()).or_default();
        match answer {
            ChunkAnswer::Zero => counts.chunks += 1,
            ChunkAnswer::Data(data) => (counts.chunks, counts.bytes) = (counts.chunks + 1, counts.bytes + data.len() as u64),
            ChunkAnswer::Missing | ChunkAnswer::Damaged(_) => counts.errors += 1,
            ChunkAnswer::Again(_) => {}
        }
    }
}

impl Daemon {
    /// Fetches what pools lack, as long as the daemon lives. Its processes end with it.
    pub(super) async fn keep_fetches(self: Arc<Daemon>) {
        let taken = self.fetching.taken.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut orders) = taken else { return };
        let (mut targets, mut tasks): (BTreeMap<TargetPlace, UnboundedSender<Order>>, _) = (BTreeMap::new(), JoinSet::new());
        while let Some(order) = orders.recv().await {
            let chunk = match order {
                FetchOrder::Fetch(chunk) => chunk,
                FetchOrder::Moved { pool, source } => {
                    let old = bases::source(&source).map(|source| TargetPlace::of(&source));
                    let target = old.and_then(|place| targets.get(&place));
                    // there is none if nothing was ever fetched from there
                    target.into_iter().for_each(|target| drop(target.send(Order::GiveUp { pool: pool.clone(), source: source.clone() })));
                    continue;
                }
            };
            let Some(source) = bases::source(&chunk.source) else {
                tracing::error!(
                    pool = &*chunk.pool,
                    volume = chunk.volume,
                    "the source of a base is of a newer version; nothing is fetched"
                );
                chunk.answer(Err(FetchError::Missing));
                continue;
            };
            let place = TargetPlace::of(&source);
            let target = targets.entry(place.clone()).or_insert_with(|| {
                let (to, queue) = unbounded_channel();
                tasks.spawn(TargetReads::new(Arc::clone(&self), place, queue).run());
                to
            });
            // the task ends after this one
            let _ = target.send(Order::Fetch(Box::new(Wanted { chunk, source, since: Instant::now() })));
        }
    }
}

/// An order to the task of a target.
enum Order {
    Fetch(Box<Wanted>),
    /// Give up what a pool wants from this source.
    GiveUp {
        pool: String,
        source: String,
    },
}

/// A chunk to fetch.
struct Wanted {
    chunk: WantedChunk,
    source: BaseSource,
    since: Instant,
}

/// The reads of one target.
struct TargetReads {
    daemon: Arc<Daemon>,
    place: TargetPlace,
    queue: UnboundedReceiver<Order>,
    /// By the numbers of their requests.
    waiting: BTreeMap<u64, Wanted>,
    last: u64,
    pause: Duration,
    /// Since when nothing was answered, while reads wait.
    silent: Option<Instant>,
    why: Option<String>,
    reported: Option<Instant>,
}

impl TargetReads {
    fn new(daemon: Arc<Daemon>, place: TargetPlace, queue: UnboundedReceiver<Order>) -> TargetReads {
        TargetReads { daemon, place, queue, waiting: BTreeMap::new(), last: 0, pause: PAUSE.0, silent: None, why: None, reported: None }
    }

    async fn run(mut self) {
        loop {
            while self.waiting.is_empty() {
                let Some(order) = self.queue.recv().await else { return };
                self.take(order);
            }
            let ended = match ChunkReader::start(&self.place) {
                Ok(reader) => self.serve(reader).await,
                Err(why) => Err(why),
            };
            if let Err(why) = ended {
                self.failed(why);
                let pause = self.next_pause();
                self.rest(pause).await;
            }
        }
    }

    /// Carries out an order. Returns the number of the request for a chunk.
    fn take(&mut self, order: Order) -> Option<u64> {
        match order {
            Order::Fetch(wanted) => Some(self.add(*wanted)),
            Order::GiveUp { pool, source } => {
                let is_of_it = |_: &u64, wanted: &mut Wanted| *wanted.chunk.pool == *pool && wanted.chunk.source == source;
                self.waiting.extract_if(.., is_of_it).for_each(|(_, wanted)| wanted.chunk.answer(Err(FetchError::NotNow)));
                self.forget();
                None
            }
        }
    }

    /// Returns the number of the request for a chunk.
    fn add(&mut self, wanted: Wanted) -> u64 {
        self.last += 1;
        if wanted.chunk.is_waited_for() {
            self.silent.get_or_insert_with(Instant::now);
        }
        self.waiting.insert(self.last, wanted);
        self.note();
        self.last
    }

    /// Gives up the fetches ahead of guests that are as old as this, or older, and that no read has come
    /// to wait for.
    fn give_up_ahead(&mut self, age: Duration) {
        let old = |_: &u64, wanted: &mut Wanted| wanted.chunk.ahead && !wanted.chunk.is_waited_for() && wanted.since.elapsed() >= age;
        self.waiting.extract_if(.., old).for_each(|(_, wanted)| wanted.chunk.answer(Err(FetchError::NotNow)));
    }

    fn reads_wait(&self) -> bool {
        self.waiting.values().any(|wanted| wanted.chunk.is_waited_for())
    }

    /// Returns the time until the next try, and doubles it.
    fn next_pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).min(PAUSE.1);
        pause
    }

    /// Waits for the next try; forgets chunks that no read waits for any more.
    async fn rest(&mut self, pause: Duration) {
        let end = Instant::now() + pause;
        loop {
            self.give_up_ahead(Duration::ZERO);
            tokio::select! {
                () = sleep_until(end) => break,
                Some(order) = self.queue.recv() => {
                    self.take(order);
                }
            }
        }
        self.forget();
    }

    /// Gives up the fetches whose reads have ended.
    fn forget(&mut self) {
        let unwanted = |_: &u64, wanted: &mut Wanted| !wanted.chunk.ahead && !wanted.chunk.is_waited_for();
        self.waiting.extract_if(.., unwanted).for_each(|(_, wanted)| wanted.chunk.answer(Err(FetchError::NotNow)));
        if self.reads_wait() {
            self.silent.get_or_insert_with(Instant::now);
        } else {
            (self.silent, self.why) = (None, None);
        }
        self.note();
    }

    /// Lets a process read what is wanted, until it has had nothing to do for long.
    ///
    /// # Errors
    /// The reason why it ended before.
    async fn serve(&mut self, mut reader: ChunkReader) -> Result<(), String> {
        let mut due: Vec<u64> = self.waiting.keys().copied().collect();
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // the next try of what the target did not answer
        let mut again: Option<Instant> = None;
        loop {
            if again.is_some() {
                self.give_up_ahead(Duration::ZERO);
            } else {
                for id in due.drain(..) {
                    if let Some(request) = self.waiting.get(&id).and_then(|wanted| request(id, wanted)) {
                        reader.ask(&request).await?;
                    }
                }
            }
            tokio::select! {
                order = self.queue.recv() => match order {
                    Some(order) => due.extend(self.take(order)),
                    None => return Ok(()),
                },
                answer = reader.answer() => match answer {
                    // it was given up
                    Some((id, ChunkAnswer::Again(_))) if !self.waiting.contains_key(&id) => {}
                    Some((id, ChunkAnswer::Again(why))) => {
                        self.failed(why);
                        due.push(id);
                        self.give_up_ahead(Duration::ZERO);
                        if again.is_none() {
                            again = Some(Instant::now() + self.next_pause());
                        }
                    }
                    Some((id, answer)) => self.answered(id, answer),
                    None => return Err(reader.reason().await),
                },
                () = sleep_until(again.unwrap_or_else(Instant::now)), if again.is_some() => {
                    again = None;
                    self.forget();
                }
                _ = look.tick(), if !self.waiting.is_empty() => {
                    self.give_up_ahead(SILENCE);
                    self.forget();
                }
                () = sleep(IDLE), if self.waiting.is_empty() => {
                    reader.end().await;
                    return Ok(());
                }
            }
        }
    }

    fn failed(&mut self, why: String) {
        if self.why.as_ref() != Some(&why) {
            tracing::warn!(target = self.place.target, why, "blocks of a publication cannot be fetched yet");
        }
        self.why = Some(why);
        self.note();
    }

    fn answered(&mut self, id: u64, answer: ChunkAnswer) {
        let Some(Wanted { chunk, source, .. }) = self.waiting.remove(&id) else { return };
        (self.pause, self.why) = (PAUSE.0, None);
        self.silent = self.reads_wait().then(Instant::now);
        self.note();
        if chunk.ahead && !matches!(answer, ChunkAnswer::Zero | ChunkAnswer::Data(_)) {
            return chunk.answer(Err(FetchError::NotNow));
        }
        self.daemon.fetching.count(&chunk.pool, &answer);
        let result = match answer {
            ChunkAnswer::Zero => Ok(None),
            ChunkAnswer::Data(data) => Ok(Some(data)),
            ChunkAnswer::Missing => Err((FetchError::Missing, "the chunk is missing".to_owned())),
            ChunkAnswer::Damaged(why) | ChunkAnswer::Again(why) => Err((FetchError::Damaged, why)),
        };
        let result = result.map_err(|(error, why)| {
            self.report(&chunk, &source, &why);
            error
        });
        chunk.answer(result);
    }

    /// Reports a chunk that cannot be had, unless one was reported just now.
    fn report(&mut self, chunk: &WantedChunk, source: &BaseSource, why: &str) {
        if self.reported.is_some_and(|last| last.elapsed() < QUIET) {
            return;
        }
        self.reported = Some(Instant::now());
        let name = format!("{}/{}", chunk.pool, chunk.volume);
        let repair = format!("publish {} again to repair it", source.name);
        let message = format!("clones of '{name}' get errors: chunk {} of {}: {why}; {repair}", chunk.chunk, source.words());
        self.daemon.report(Happened::to_pool(EventKind::VolumeUnreadable, &chunk.pool, message).about(name));
    }

    /// Shows which pools wait.
    fn note(&self) {
        let mut waits = self.daemon.fetching.waits();
        match self.silent {
            Some(since) => {
                let waiting = self.waiting.values().filter(|wanted| wanted.chunk.is_waited_for());
                let pools = waiting.map(|wanted| Arc::clone(&wanted.chunk.pool)).collect();
                waits.insert(self.place.clone(), Wait { pools, since, why: self.why.clone() });
            }
            None => drop(waits.remove(&self.place)),
        }
    }
}

fn request(id: u64, wanted: &Wanted) -> Option<ChunkRequest> {
    let Wanted { chunk, source, .. } = wanted;
    Some(ChunkRequest { id, chunk: chunk.chunk, size: chunk.size, root: bases::root(source)? })
}
