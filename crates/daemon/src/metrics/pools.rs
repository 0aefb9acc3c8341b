//! Series of pools.

use millpond_api::{Pool, PoolHealth};

use super::buckets;
use super::series::Kind::{Counter, Gauge, Histogram, Info};
use super::series::{Samples, Series, Subject};
use crate::fetch::FetchCounts;
use crate::shard::Load;
use millpond_api::instant::to_millis;

/// A pool, with the requests of its guests; `None` while it does not answer.
#[derive(Debug)]
pub(super) struct PoolFacts {
    pub pool: Pool,
    pub load: Option<Load>,
    /// Number of incomplete receives.
    pub receives: u64,
    /// Chunks of publications that were fetched for it.
    pub fetches: FetchCounts,
}

impl Subject for PoolFacts {
    const LABELS: &'static [&'static str] = &["pool"];

    fn values(&self) -> Vec<&str> {
        vec![&self.pool.name]
    }
}

impl PoolFacts {
    /// True when the pool has answered: otherwise its counters are unknown.
    fn answers(&self) -> bool {
        self.load.is_some()
    }
}

/// Operations of guests, in the order of [`Load::times`].
pub(super) const OPERATIONS: [&str; 4] = ["read", "write", "flush", "discard"];

/// Takes the number of requests of each operation.
pub(super) fn requests(load: &Load, to: &mut Samples<'_, '_>) {
    let io = &load.io;
    let counts = [io.reads, io.writes, io.flushes, io.discards];
    OPERATIONS.iter().zip(counts).for_each(|(operation, count)| to.put(&[operation], count));
}

/// Takes the bytes of reads and writes.
pub(super) fn request_bytes(load: &Load, to: &mut Samples<'_, '_>) {
    to.put(&["read"], load.io.read_bytes);
    to.put(&["write"], load.io.write_bytes);
}

/// Takes the histogram of each operation that there was.
pub(super) fn durations(load: &Load, coarse: bool, to: &mut Samples<'_, '_>) {
    for (operation, times) in OPERATIONS.iter().zip(&load.times) {
        if times.counts.iter().any(|count| *count > 0) {
            to.put_histogram(&[operation], times.nanos, &buckets::of_guests(&times.counts, coarse));
        }
    }
}

/// Converts a time to seconds since the Unix epoch.
pub(super) fn timestamp(time: jiff::Timestamp) -> f64 {
    to_millis(time) as f64 / 1e3
}

/// A series with one value per pool that answers.
macro_rules! value {
    ($kind:ident, $name:literal, $help:literal, $value:expr) => {
        Series {
            name: $name,
            kind: $kind,
            help: $help,
            labels: &[],
            read: |pool, to| {
                let value: fn(&PoolFacts) -> u64 = $value;
                if pool.answers() {
                    to.put(&[], value(pool));
                }
            },
        }
    };
}

/// A series with a time per pool, if the time is known.
macro_rules! time {
    ($name:literal, $help:literal, $time:expr) => {
        Series {
            name: $name,
            kind: Gauge,
            help: $help,
            labels: &[],
            read: |pool, to| {
                let time: fn(&PoolFacts) -> Option<jiff::Timestamp> = $time;
                if let Some(time) = time(pool) {
                    to.put(&[], timestamp(time));
                }
            },
        }
    };
}

/// A series with labels of its own, for pools that answer.
macro_rules! values {
    ($kind:ident, $name:literal, $help:literal, $labels:expr, $read:expr) => {
        Series {
            name: $name,
            kind: $kind,
            help: $help,
            labels: &$labels,
            read: |pool, to| {
                let read: fn(&PoolFacts, &Load, &mut Samples<'_, '_>) = $read;
                if let Some(load) = &pool.load {
                    read(pool, load, to);
                }
            },
        }
    };
}

pub(super) const POOLS: &[Series<PoolFacts>] = &[
    Series { name: "millpond_pool", kind: Info, help: "Id of a pool", labels: &["id"], read: |facts, to| to.put(&[&facts.pool.id], true) },
    Series {
        name: "millpond_pool_state",
        kind: Gauge,
        help: "1 for the state of a pool, 0 for the others",
        labels: &["state"],
        read: |facts, to| {
            let planned = PoolHealth::Planned;
            let words: Vec<&str> = PoolHealth::WORDS.iter().copied().filter(|word| *word != planned.as_str()).collect();
            to.put_state(&words, facts.pool.health.as_str());
        },
    },
    Series {
        name: "millpond_pool_answering",
        kind: Gauge,
        help: "1 when the pool answered this scrape; if not, most of its series are missing",
        labels: &[],
        read: |facts, to| to.put(&[], facts.answers()),
    },
    time!("millpond_pool_import_timestamp_seconds", "Time when the pool was taken into service", |facts| facts.pool.imported),
    value!(Gauge, "millpond_pool_size_bytes", "Bytes that guests can use", |facts| facts.pool.size),
    value!(Gauge, "millpond_pool_allocated_bytes", "Live bytes, with snapshots and metadata", |facts| facts.pool.allocated),
    value!(Gauge, "millpond_pool_free_bytes", "Free bytes", |facts| facts.pool.free),
    value!(Gauge, "millpond_pool_full", "1 when writes fail for lack of space, or soon will", |facts| u64::from(facts.pool.is_full())),
    Series {
        name: "millpond_pool_full_in_seconds",
        kind: Gauge,
        help: "Time until the pool is full at the rate of the last hour; missing if it does not fill",
        labels: &[],
        read: |facts, to| facts.pool.full_in_seconds.into_iter().for_each(|left| to.put(&[], left)),
    },
    values!(Gauge, "millpond_pool_segment_bytes", "Bytes of segments by state", ["state"], |facts, _, to| {
        let space = &facts.pool.space;
        to.put(&["in_use"], space.in_use);
        to.put(&["resting"], space.resting);
        to.put(&["ready"], space.ready);
        to.put(&["hole"], space.holes);
    }),
    value!(Gauge, "millpond_pool_ready_target_bytes", "Bytes of free segments that should have space on the host", |facts| {
        facts.pool.space.wanted
    }),
    value!(Counter, "millpond_pool_prepared_bytes", "Zeroes written ahead of the log, over all copies", |facts| {
        facts.pool.space.prepared
    }),
    value!(Counter, "millpond_pool_released_bytes", "Space that was returned to the host, over all copies", |facts| {
        facts.pool.space.given_back
    }),
    value!(Gauge, "millpond_pool_withdrawn_bytes", "Bytes that a stopped removal has taken out of segments", |facts| {
        facts.pool.space.given_up
    }),
    value!(Gauge, "millpond_pool_reclaimable_bytes", "Dead bytes that wait to be freed", |facts| facts.pool.io.reclaim_backlog),
    value!(Gauge, "millpond_pool_unreclaimable_bytes", "Dead bytes that cannot be freed: their deadlists are unreadable", |facts| {
        facts.pool.io.unreclaimed
    }),
    values!(
        Counter,
        "millpond_pool_written_bytes",
        "Bytes written to segments by source; all sources over guest is the write amplification",
        ["source"],
        |facts, _, to| {
            let io = &facts.pool.io;
            to.put(&["guest"], io.user_bytes);
            to.put(&["header"], io.header_bytes);
            to.put(&["metadata"], io.metadata_bytes);
            to.put(&["cleaner"], io.cleaner_bytes);
            to.put(&["gather"], io.gathered_bytes);
        }
    ),
    value!(Gauge, "millpond_pool_forwarded_bytes", "Bytes of blocks that snapshots share and that were gathered", |facts| {
        facts.pool.io.forwarded_bytes
    }),
    value!(Gauge, "millpond_pool_forwards_full", "1 if no more such blocks are gathered, because their memory is used up", |facts| {
        u64::from(facts.pool.io.forwards_full)
    }),
    value!(Counter, "millpond_pool_cleaned_segments", "Segments that the cleaner emptied", |facts| facts.pool.io.segments_cleaned),
    value!(Counter, "millpond_pool_delayed_writes", "Writes that waited for the cleaner or a checkpoint", |facts| {
        facts.pool.io.throttled
    }),
    value!(Counter, "millpond_pool_batches", "Batches written to the log for guests", |facts| facts.pool.io.batches),
    value!(Counter, "millpond_pool_flushes", "Flushes of devices", |facts| facts.pool.io.flushes),
    value!(Counter, "millpond_pool_checkpoints", "Checkpoints written", |facts| facts.pool.io.checkpoints),
    time!("millpond_pool_checkpoint_timestamp_seconds", "Start of the last checkpoint", |facts| facts.pool.io.last_checkpoint),
    time!("millpond_pool_oldest_restore_point_timestamp_seconds", "Oldest checkpoint since import that a rewind finds whole", |facts| {
        facts.pool.io.oldest_restore_point
    }),
    value!(Gauge, "millpond_pool_log_bytes", "Bytes of log since the last checkpoint, which an import replays", |facts| {
        facts.pool.io.log_bytes
    }),
    value!(Gauge, "millpond_pool_replayed_batches", "Batches that the import replayed", |facts| facts.pool.io.replayed_batches),
    values!(Counter, "millpond_pool_requests", "Requests of guests that were answered", ["operation"], |_, load, to| requests(load, to)),
    values!(Counter, "millpond_pool_request_bytes", "Bytes of reads and writes of guests", ["operation"], |_, load, to| {
        request_bytes(load, to);
    }),
    values!(Counter, "millpond_pool_request_errors", "Requests of guests that failed", [], |_, load, to| to.put(&[], load.io.errors)),
    values!(Counter, "millpond_pool_durable_writes", "Writes that had to be durable when answered (FUA)", [], |_, load, to| {
        to.put(&[], load.io.fua_writes);
    }),
    values!(
        Histogram,
        "millpond_pool_request_duration_seconds",
        "Time from receipt of a request until its reply",
        ["operation"],
        |_, load, to| durations(load, false, to)
    ),
    value!(Gauge, "millpond_pool_clients", "Connected clients of all exports", |facts| facts.pool.clients),
    values!(
        Histogram,
        "millpond_pool_turn_duration_seconds",
        "Length of a turn of the pool's thread; a request waits for at most two",
        [],
        |facts, _, to| to.put_histogram(&[], facts.pool.io.turn_nanos, &buckets::of_turns(&facts.pool.io.turns))
    ),
    value!(Gauge, "millpond_pool_map_nodes", "Map nodes in memory", |facts| facts.pool.io.nodes_resident),
    value!(Counter, "millpond_pool_map_node_visits", "Map nodes visited for guests", |facts| facts.pool.io.nodes_touched),
    value!(Counter, "millpond_pool_map_node_reads", "Map nodes read from devices", |facts| facts.pool.io.node_reads),
    value!(Counter, "millpond_pool_map_node_writes", "Map nodes written", |facts| facts.pool.io.node_writes),
    value!(Gauge, "millpond_pool_deadlist_memory_bytes", "Memory of deadlists", |facts| facts.pool.io.piece_memory),
    value!(Counter, "millpond_pool_deadlist_reads", "Pieces of deadlists read from devices", |facts| facts.pool.io.piece_reads),
    value!(Counter, "millpond_pool_deadlist_read_errors", "Pieces of deadlists that no copy has", |facts| facts.pool.io.piece_failures),
    values!(
        Counter,
        "millpond_pool_cache_blocks",
        "Blocks of 4 KiB that guests read, by cache (memory or device) and result (hit or miss)",
        ["cache", "result"],
        |facts, _, to| {
            let io = &facts.pool.io;
            to.put(&["memory", "hit"], io.read_cache_hits);
            to.put(&["memory", "miss"], io.read_cache_misses);
            to.put(&["device", "hit"], io.cache_hits);
            to.put(&["device", "miss"], io.cache_misses);
        }
    ),
    value!(Gauge, "millpond_pool_read_cache_bytes", "Bytes in the read cache in memory", |facts| facts.pool.io.read_cache_bytes),
    value!(Gauge, "millpond_pool_read_cache_limit_bytes", "Limit of the read cache in memory", |facts| facts.pool.io.read_cache_limit),
    value!(Counter, "millpond_pool_read_ahead_bytes", "Bytes read ahead of guests that read in order", |facts| {
        facts.pool.io.read_ahead_bytes
    }),
    value!(Counter, "millpond_pool_read_ahead_used_bytes", "Bytes of these that guests then read", |facts| {
        facts.pool.io.read_ahead_used_bytes
    }),
    value!(Gauge, "millpond_pool_read_ahead_memory_bytes", "Bytes of memory that blocks read ahead take", |facts| {
        facts.pool.io.read_ahead_memory_bytes
    }),
    value!(Counter, "millpond_pool_cache_device_read_bytes", "Bytes that guests read from cache devices", |facts| {
        facts.pool.io.cache_hit_bytes
    }),
    value!(Counter, "millpond_pool_cache_device_fill_bytes", "Bytes copied to cache devices", |facts| facts.pool.io.cache_fill_bytes),
    time!("millpond_pool_scrub_end_timestamp_seconds", "End of the last complete scrub since import", |facts| {
        facts.pool.scrub.as_ref().filter(|scrub| scrub.state == millpond_api::ScrubState::Done)?.ended
    }),
    Series {
        name: "millpond_pool_scrub_errors",
        kind: Gauge,
        help: "Bad copies that the running or last scrub found",
        labels: &[],
        read: |facts, to| facts.pool.scrub.iter().for_each(|scrub| to.put(&[], scrub.errors)),
    },
    Series {
        name: "millpond_pool_scrub_lost_blocks",
        kind: Gauge,
        help: "Blocks and map nodes without a good copy that the running or last scrub found",
        labels: &[],
        read: |facts, to| facts.pool.scrub.iter().for_each(|scrub| to.put(&[], scrub.lost())),
    },
    value!(Gauge, "millpond_pool_receives_incomplete", "Volumes with an incomplete receive, at most a minute old", |facts| facts.receives),
    value!(Counter, "millpond_pool_base_fetches", "Chunks of publications fetched for clones since the daemon started", |facts| {
        facts.fetches.chunks
    }),
    value!(Counter, "millpond_pool_base_fetched_bytes", "Bytes of these chunks that are not all zero", |facts| facts.fetches.bytes),
    value!(Counter, "millpond_pool_base_fetch_errors", "Chunks of publications that were missing or damaged", |facts| facts.fetches.errors),
];
