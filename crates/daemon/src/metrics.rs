//! Metrics for Prometheus: `GET /metrics`, as OpenMetrics or in Prometheus's text format.
//!
//! A scrape reads counters that exist anyway. The thread of a pool answers one look and lists its
//! volumes in parts, so guests do not notice it; the text is made on another thread. Snapshots are
//! summed up in parts at most once in [`SNAPSHOTS_EVERY`], because their number has no small bound.
//! The number of series is bounded by those of devices, volumes, exports and running jobs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use jiff::Timestamp;
use millpond_api::{ApiError, Condition, Job, Policy};
use millpond_engine::{SnapshotInfo, VolumeId};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, prometheus_text, text};
use prometheus_client::registry::Registry;
use tokio::time::timeout;

use super::locks::blocking;
use super::look::{PoolLook, Seen};
use super::service::Daemon;
use super::shard::{Load, ShardError, ShardHandle, VolumeUse};
use devices::DeviceFacts;
use exports::ExportFacts;
use pools::PoolFacts;
use service::Service;
use volumes::{SnapshotSums, VolumeFacts};

mod buckets;
mod devices;
mod exports;
mod jobs;
mod policies;
mod pools;
mod series;
mod service;
#[cfg(test)]
mod tests;
mod volumes;

pub(super) use buckets::sum as sum_of;

/// Time for which sums over snapshots are kept. With 10,000 snapshots they take the thread of the
/// pool some 10 ms, in parts of 0.1 ms.
const SNAPSHOTS_EVERY: Duration = Duration::from_secs(30);

/// Format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// OpenMetrics 1.0.0.
    OpenMetrics,
    /// Prometheus's text format 0.0.4.
    Plain,
}

impl Format {
    /// Returns the format that a client prefers, by the value of its header `Accept`: OpenMetrics
    /// only if it is named, and no less than plain text.
    pub(crate) fn accepted(accept: &str) -> Format {
        let (mut open, mut plain) = (0.0, 0.0);
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
            let quality = parts.find_map(|part| part.strip_prefix("q=")?.parse().ok()).unwrap_or(1.0_f32);
            match kind.as_str() {
                "application/openmetrics-text" => open = quality.max(open),
                "text/plain" => plain = quality.max(plain),
                _ => {}
            }
        }
        if open > 0.0 && open >= plain { Format::OpenMetrics } else { Format::Plain }
    }

    /// Returns the value of the header `Content-Type`.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Plain => prometheus_text::CONTENT_TYPE,
        }
    }
}

/// Sums over the snapshots of each volume of a pool, and when they were made.
type Sums = (Instant, Arc<BTreeMap<VolumeId, SnapshotSums>>);

/// State of scrapes, by the ids of pools.
#[derive(Default)]
pub(super) struct Scrapes(Mutex<BTreeMap<String, Scraped>>);

/// Results of earlier scrapes of a pool.
#[derive(Default)]
struct Scraped {
    snapshots: Option<Sums>,
    /// Start of its service, and the highest counts since then.
    highest: Option<(Timestamp, Load)>,
}

/// All facts of one scrape.
#[derive(Debug)]
struct Exposition {
    service: [Service; 1],
    pools: Vec<PoolFacts>,
    devices: Vec<DeviceFacts>,
    volumes: Vec<VolumeFacts>,
    exports: Vec<ExportFacts>,
    jobs: Vec<Job>,
    policies: Vec<Policy>,
}

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        series::encode(&mut encoder, service::SERVICE, &self.service)?;
        series::encode(&mut encoder, pools::POOLS, &self.pools)?;
        series::encode(&mut encoder, devices::DEVICES, &self.devices)?;
        series::encode(&mut encoder, volumes::VOLUMES, &self.volumes)?;
        series::encode(&mut encoder, exports::EXPORTS, &self.exports)?;
        series::encode(&mut encoder, jobs::JOBS, &self.jobs)?;
        series::encode(&mut encoder, policies::POLICIES, &self.policies)
    }
}

impl Exposition {
    /// Returns the text in a format.
    fn text(self, format: Format) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut written = String::new();
        match format {
            Format::OpenMetrics => text::encode(&mut written, &registry)?,
            Format::Plain => prometheus_text::encode(&mut written, &registry)?,
        }
        Ok(written)
    }
}

impl Daemon {
    /// Returns all metrics as text. A pool that does not answer is reported as such.
    ///
    /// # Errors
    /// [`millpond_api::ErrorKind::Internal`] when the text cannot be made.
    pub(crate) async fn metrics(&self, format: Format) -> Result<String, ApiError> {
        let exposition = self.exposition().await;
        blocking(move || exposition.text(format).map_err(|error| ApiError::internal(format!("cannot write metrics: {error}")))).await
    }

    async fn exposition(&self) -> Exposition {
        let looks = self.look().await;
        let used = join_all(looks.iter().map(|look| self.volumes_of(look))).await;
        let (mut pools, mut volumes) = (Vec::new(), Vec::new());
        let (listed, exports) = (self.list_pools(&looks), self.list_exports(&looks));
        let conditions = self.conditions(&listed, &exports);
        for (pool, used) in listed.into_iter().zip(used) {
            let (load, of_pool) = used.map_or((None, Vec::new()), |(load, volumes)| (Some(load), volumes));
            let receives = self.receives.of(&pool.id).len() as u64;
            let fetches = self.fetching.counts(&pool.name);
            pools.push(PoolFacts { pool, load, receives, fetches });
            volumes.extend(of_pool);
        }
        self.scrapes.keep(pools.iter().map(|facts| facts.pool.id.as_str()));
        let devices = pools.iter().flat_map(DeviceFacts::of).collect();
        let exports = exports.into_iter().map(ExportFacts::from).collect();
        Exposition {
            service: [self.facts(conditions)],
            pools,
            devices,
            volumes,
            exports,
            jobs: self.list_jobs(&looks),
            policies: self.list_policies(),
        }
    }

    /// Returns the facts about the daemon itself.
    fn facts(&self, conditions: Vec<Condition>) -> Service {
        let age = Timestamp::now().duration_since(self.started).as_secs_f64();
        Service {
            version: env!("CARGO_PKG_VERSION"),
            uptime: age.max(0.0),
            started: pools::timestamp(self.started),
            ready: *self.ready.borrow(),
            request_memory: self.options.budget.use_of(),
            events: self.events.counts(),
            conditions,
        }
    }

    /// Returns the requests of all guests of a pool, and its volumes. `None` when the pool does not
    /// answer in time.
    async fn volumes_of(&self, look: &PoolLook) -> Option<(Load, Vec<VolumeFacts>)> {
        let Seen::Answered(_) = &look.seen else { return None };
        let shard = self.shard(&look.record.name).ok()?;
        let patience = self.options.deadlines.look;
        let (volumes, rest) = timeout(patience, shard.volume_uses()).await.ok()?.ok()?;
        let sums = self.scrapes.snapshots(&look.record.id, &shard, patience).await.unwrap_or_default();
        let load = buckets::sum(volumes.iter().map(|volume| &*volume.load).chain([&*rest]));
        let load = self.scrapes.never_less(&look.record.id, look.since, load);
        let facts = |volume: VolumeUse| {
            let snapshots = sums.get(&volume.info.id).copied().filter(|_| volume.info.snapshots > 0);
            VolumeFacts { pool: look.record.name.clone(), volume, snapshots }
        };
        Some((load, volumes.into_iter().map(facts).collect()))
    }
}

impl Scrapes {
    /// Returns the sums over the snapshots of a pool: those of an earlier scrape if they are recent,
    /// or if the pool does not answer in time. `None` when there are none.
    async fn snapshots(&self, pool: &str, shard: &ShardHandle, patience: Duration) -> Option<Arc<BTreeMap<VolumeId, SnapshotSums>>> {
        let known = self.scraped().get(pool).and_then(|scraped| scraped.snapshots.clone());
        if let Some((_, sums)) = known.as_ref().filter(|(at, _)| at.elapsed() < SNAPSHOTS_EVERY) {
            return Some(Arc::clone(sums));
        }
        let Ok(Ok(sums)) = timeout(patience, sum_up(shard)).await else { return known.map(|(_, sums)| sums) };
        let sums = Arc::new(sums);
        self.scraped().entry(pool.to_owned()).or_default().snapshots = Some((Instant::now(), Arc::clone(&sums)));
        Some(sums)
    }

    /// Returns the counts of a pool, or those of an earlier scrape where they were higher: a volume
    /// that is destroyed while a scrape lists volumes may be counted twice, and a counter that falls
    /// would look like a restart.
    fn never_less(&self, pool: &str, since: Timestamp, mut load: Load) -> Load {
        let mut scraped = self.scraped();
        let highest = &mut scraped.entry(pool.to_owned()).or_default().highest;
        if let Some((_, before)) = highest.as_ref().filter(|(begun, _)| *begun == since) {
            load.raise(before);
        }
        *highest = Some((since, load));
        load
    }

    /// Locks the results. Never held across an await.
    fn scraped(&self) -> MutexGuard<'_, BTreeMap<String, Scraped>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets all pools but these.
    fn keep<'a>(&self, ids: impl Iterator<Item = &'a str>) {
        let ids: Vec<&str> = ids.collect();
        self.scraped().retain(|id, _| ids.contains(&id.as_str()));
    }
}

/// Sums up the snapshots of a pool by volume.
async fn sum_up(shard: &ShardHandle) -> Result<BTreeMap<VolumeId, SnapshotSums>, ShardError> {
    let mut sums = BTreeMap::new();
    let add = |piece: Vec<SnapshotInfo>| {
        for snapshot in piece {
            let sum = SnapshotSums::with(sums.get(&snapshot.volume).copied(), &snapshot);
            sums.insert(snapshot.volume, sum);
        }
    };
    shard.each_piece_of_snapshots(add).await?;
    Ok(sums)
}
