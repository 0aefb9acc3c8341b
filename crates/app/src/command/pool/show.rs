//! `pool list`, `pool status`, `pool show`, `pool get` and `pool set`.

use std::iter;
use std::time::Duration;

use clap::Args;
use millpond_api::client::Client;
use millpond_api::failure::{Code, Failure, Outcome};
use millpond_api::instant::{now, show_span};
use millpond_api::names::{self, Kind};
use millpond_api::size::Size;
use millpond_api::{Condition, ConditionKind, Device, DeviceClass, Job, JobKind, Pool, SetPool};
use serde::Serialize;

use super::device_limit::rate;
use crate::command::candidates;
use crate::command::check::{self, Cause};
use crate::command::columns::{DEVICE, POOL, POOL_PROPERTIES, limit, pool_layout};
use crate::command::get::print_property;
use crate::output::{Cell, Format, Listing, print, print_pairs, say, write_out};

async fn one(client: &Client, name: &str) -> Outcome<Pool> {
    names::check(Kind::Pool, name)?;
    client.get(&format!("/v1/pools/{name}")).await
}

/// Returns the named pool, or all pools.
async fn some(client: &Client, name: Option<&str>) -> Outcome<Vec<Pool>> {
    match name {
        Some(name) => Ok(vec![one(client, name).await?]),
        None => client.get("/v1/pools").await,
    }
}

/// List pools with capacity and health
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond pool list -o name,free,health")]
pub struct List {
    /// Only this pool
    #[arg(add = candidates::pools())]
    name: Option<String>,
    #[command(flatten)]
    how: Listing,
}

impl List {
    pub async fn run(self, client: &Client) -> Outcome {
        let mut pools = serde_json::Value::Null;
        let listed = some(client, self.name.as_deref()).await?;
        if self.how.format == Format::Json && self.how.columns.is_empty() {
            pools = serde_json::Value::Array(listed.iter().map(brief).collect());
        }
        if pools.is_null() {
            return print(&listed, POOL, &self.how);
        }
        let text = serde_json::to_string_pretty(&pools).map_err(|e| Failure::failed(format!("cannot encode the answer: {e}")))?;
        write_out(&(text + "\n"))
    }
}

/// Fields of a pool that scripts rely on, and no others.
fn brief(pool: &Pool) -> serde_json::Value {
    let device = |device: &millpond_api::Device| {
        serde_json::json!({
            "path": device.path, "class": device.class, "layout": device.layout, "state": device.state,
            "allocated": device.allocated, "free": device.free, "errors": device.errors,
        })
    };
    serde_json::json!({
        "name": pool.name, "size": pool.size, "allocated": pool.allocated, "free": pool.free, "health": pool.health,
        "devices": pool.devices.iter().map(device).collect::<Vec<_>>(),
    })
}

/// Show the health of pools and their devices
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond pool status -v tank\n  millpond pool status --check")]
pub struct Status {
    /// Only this pool
    #[arg(add = candidates::pools())]
    name: Option<String>,
    /// Also show counters
    #[arg(short = 'v', long)]
    verbose: bool,
    /// Print only problems, one per line; exit code 0: none, 1: warnings, 4: a pool is degraded or worse, or not in service
    #[arg(short = 'x', long)]
    check: bool,
    #[command(flatten)]
    how: Listing,
}

impl Status {
    pub async fn run(self, client: &Client) -> Outcome {
        let pools = match (some(client, self.name.as_deref()).await, &self.name) {
            // exit code 1 would read as a warning, but the pool that is monitored does not exist
            (Err(failure), Some(name)) if self.check && failure.code == Code::Failed => {
                return check::end(&[Cause::no_pool(name, &failure)], &self.how);
            }
            (pools, _) => pools?,
        };
        if self.check {
            let mut conditions: Vec<Condition> = client.get("/v1/conditions").await?;
            conditions.retain(|condition| {
                let of_pool = condition.pool.as_ref().is_some_and(|pool| pools.iter().any(|known| known.name == *pool));
                of_pool && !matches!(condition.kind, ConditionKind::ExportStopped | ConditionKind::ExportReconnects)
            });
            return check::end(&check::causes(&conditions), &self.how);
        }
        let jobs: Vec<Job> = client.get("/v1/jobs").await?;
        if self.how.format == Format::Json {
            let pools: Vec<WithJobs> = pools.into_iter().map(|pool| WithJobs::new(pool, &jobs)).collect();
            let text = serde_json::to_string_pretty(&pools).map_err(|e| Failure::failed(format!("cannot encode the answer: {e}")))?;
            return write_out(&(text + "\n"));
        }
        for (at, pool) in pools.iter().enumerate() {
            let gap = if at == 0 { "" } else { "\n" };
            let running: String = jobs.iter().filter(|job| job.pool == pool.name && job.kind != JobKind::Reclaim).map(job_line).collect();
            write_out(&format!("{gap}{}{running}\n", self.summary(pool)))?;
            print(&pool.devices, DEVICE, &self.how)?;
            if self.how.columns.is_empty() && !self.how.no_header {
                write_out(&unwell(pool))?;
            }
            if self.verbose {
                write_out(&lost(pool))?;
                write_out(&space(pool))?;
                write_out(&counters(pool))?;
                write_out(&read_cache(pool))?;
                write_out(&cache(pool))?;
                write_out(&unused(pool))?;
                write_out(&limits(pool))?;
            }
        }
        Ok(())
    }

    fn summary(&self, pool: &Pool) -> String {
        let bytes = |n: u64| if self.how.parsable { n.to_string() } else { Size(n).to_string() };
        let mut text = format!("pool {}\nhealth {}\n", pool.name, pool.health);
        if let Some(reason) = &pool.reason {
            text += &format!("reason {reason}\n");
        }
        text += &format!(
            "layout {}\nsize {}, allocated {}, free {}\nclients {}\n",
            pool.layout.as_ref().map_or_else(|| "-".to_owned(), pool_layout),
            bytes(pool.size),
            bytes(pool.allocated),
            bytes(pool.free),
            pool.clients
        );
        if pool.io.reclaim_backlog > 0 {
            text += &format!("reclaim running, {} left\n", bytes(pool.io.reclaim_backlog));
        }
        if pool.io.unreclaimed > 0 {
            text += &format!("unreclaimed {}, in deadlists that cannot be read\n", bytes(pool.io.unreclaimed));
        }
        for late in &pool.late_policies {
            text += &format!("{late}\n");
        }
        if let Some(why) = &pool.removal_ended {
            let at = pool.removal_ended_at.map_or_else(String::new, |at| format!(" {}", Cell::Time(at).show(false)));
            text += &format!("removal ended{at}: {why}\n");
        }
        if let Some(why) = &pool.removal_waits {
            text += &format!("removal waits: {why}\n");
        }
        if let Some(why) = &pool.fell_back {
            text += &format!("went back to an older checkpoint, without the log after it: {why}\n");
        }
        if pool.space.given_up > 0 {
            text += &format!(
                "{} of devices unused after a stopped removal; usable again when there is free space\n",
                bytes(pool.space.given_up)
            );
        }
        if let Some(scrub) = &pool.scrub {
            let when = scrub.ended.unwrap_or(scrub.begun);
            text += &format!("scrub {} {when:.0}, {}\n", scrub.state, scrub.found(&pool.name));
        }
        text
    }
}

/// A pool with its jobs.
#[derive(Serialize)]
struct WithJobs {
    #[serde(flatten)]
    pool: Pool,
    jobs: Vec<Job>,
}

impl WithJobs {
    fn new(pool: Pool, jobs: &[Job]) -> WithJobs {
        let jobs = jobs.iter().filter(|job| job.pool == pool.name).cloned().collect();
        WithJobs { pool, jobs }
    }
}

/// Describes the progress of a job.
fn job_line(job: &Job) -> String {
    let total = job.done_bytes + job.remaining_bytes;
    let mut text = format!("job {} {}", job.id, job.state);
    if total > 0 {
        text += &format!(", {} of {} done", Size(job.done_bytes), Size(total));
    }
    if let Some(rate) = job.rate {
        text += &format!(", {}/s", Size(rate));
    }
    if let Some(seconds) = job.eta_seconds {
        let end = now().checked_add(Duration::from_secs(seconds)).map_or(Cell::None, Cell::Time);
        text += &format!(", {} left, until about {}", show_span(seconds), end.show(false));
    }
    text + "\n"
}

/// Lists data without a good copy, as the last scrub found it.
fn lost(pool: &Pool) -> String {
    let Some(scrub) = pool.scrub.as_ref().filter(|scrub| scrub.lost_blocks + scrub.lost_nodes > 0) else { return String::new() };
    let mut text = "\nno good copy of\n".to_owned();
    for lost in &scrub.lost {
        let of = lost.volume.as_ref().map_or_else(|| "a volume that was destroyed".to_owned(), |name| format!("{}/{name}", pool.name));
        text += &format!("  {of}, or a snapshot or clone of it: {} bytes at {}\n", lost.length, lost.offset);
    }
    if scrub.lost_nodes > 0 {
        text += &format!("  {} nodes of maps, each of 2 MiB of a volume or more\n", scrub.lost_nodes);
    }
    text
}

/// Describes the space of segments by state.
fn space(pool: &Pool) -> String {
    let space = &pool.space;
    format!(
        "\nsegments\n  {} in use, {} resting for a rewind, {} free and ready ({} wanted), {} free and holes\n  \
         since import: {} prepared, {} given back to the host\n",
        Size(space.in_use),
        Size(space.resting),
        Size(space.ready),
        Size(space.wanted),
        Size(space.holes),
        Size(space.prepared),
        Size(space.given_back)
    )
}

/// Index of the class of [`turns`](millpond_api::PoolIo::turns) that begins at about one millisecond.
const LONG_TURNS: usize = 11;

fn counters(pool: &Pool) -> String {
    let io = &pool.io;
    let written = io.user_bytes + io.header_bytes + io.metadata_bytes + io.cleaner_bytes + io.gathered_bytes;
    let amplification = if io.user_bytes == 0 { "-".to_owned() } else { format!("{:.2}", written as f64 / io.user_bytes as f64) };
    let longest = io.turns.iter().rposition(|count| *count > 0).map_or(0, |class| 1u64 << class);
    let forwarded = match (io.forwarded_bytes, io.forwards_full) {
        (0, _) => String::new(),
        (bytes, false) => format!("  forwarded: {} of blocks that snapshots share are gathered\n", Size(bytes)),
        (bytes, true) => format!(
            "  forwarded: {} of blocks that snapshots share are gathered, and no more, because their memory is used up (an eighth of map_memory)\n",
            Size(bytes)
        ),
    };
    format!(
        "\nsince import\n  guests: {} reads ({}), {} writes ({}), {} flushes, {} errors\n  \
         written: {} data, {} headers, {} metadata, {} moved by the cleaner, {} gathered; write amplification {amplification}\n  \
         {} segments cleaned, {} checkpoints, {} of log since the last, {} writes throttled, {} batches replayed\n  \
         {} turns of a millisecond or longer, the longest below {} ms\n{forwarded}",
        io.guests.reads,
        Size(io.guests.read_bytes),
        io.guests.writes,
        Size(io.guests.write_bytes),
        io.guests.flushes,
        io.guests.errors,
        Size(io.user_bytes),
        Size(io.header_bytes),
        Size(io.metadata_bytes),
        Size(io.cleaner_bytes),
        Size(io.gathered_bytes),
        io.segments_cleaned,
        io.checkpoints,
        Size(io.log_bytes),
        io.throttled,
        io.replayed_batches,
        io.turns.iter().skip(LONG_TURNS).sum::<u64>(),
        longest.div_ceil(1000)
    )
}

/// Hit rate of the read cache in memory, and the bytes read ahead; empty before their first use.
fn read_cache(pool: &Pool) -> String {
    let io = &pool.io;
    let blocks = io.read_cache_hits + io.read_cache_misses;
    let ahead = match io.read_ahead_bytes {
        0 => String::new(),
        bytes => format!(
            "  read ahead: {}, of which {} were used; {} in memory\n",
            Size(bytes),
            Size(io.read_ahead_used_bytes),
            Size(io.read_ahead_memory_bytes)
        ),
    };
    if blocks == 0 {
        return ahead;
    }
    format!(
        "  read cache: {} of {} in memory, {} blocks read from it, {} from elsewhere, {:.1} % hits\n{ahead}",
        Size(io.read_cache_bytes),
        Size(io.read_cache_limit),
        io.read_cache_hits,
        io.read_cache_misses,
        io.read_cache_hits as f64 * 100.0 / blocks as f64
    )
}

/// Hit rate of the cache devices; empty without them.
fn cache(pool: &Pool) -> String {
    let io = &pool.io;
    let blocks = io.cache_hits + io.cache_misses;
    if blocks == 0 && pool.devices.iter().all(|device| device.class != DeviceClass::Cache) {
        return String::new();
    }
    let share = if blocks == 0 { 0.0 } else { io.cache_hits as f64 * 100.0 / blocks as f64 };
    format!(
        "  cache: {} blocks read from it ({}), {} from elsewhere, {share:.1} % hits; {} copied to it\n",
        io.cache_hits,
        Size(io.cache_hit_bytes),
        io.cache_misses,
        Size(io.cache_fill_bytes)
    )
}

/// Lists devices with space that is neither allocated nor free: the device is larger than the
/// layout can use, or is being removed.
fn unused(pool: &Pool) -> String {
    let unused = |device: &Device| {
        let bytes = device.size.saturating_sub(device.allocated + device.free);
        (bytes > 0).then(|| format!("  {}: {} not usable in its layout\n", device.path, Size(bytes)))
    };
    pool.devices.iter().filter_map(unused).collect()
}

/// Lists the devices with caps.
fn limits(pool: &Pool) -> String {
    let capped = pool.devices.iter().filter_map(|device| Some(format!("  {} limited to {}\n", device.path, limit(&device.limit)?)));
    capped.collect()
}

/// Lists the devices with health problems, with the reason.
fn unwell(pool: &Pool) -> String {
    let line = |device: &Device| Some(format!("  {} is {}: {}\n", device.path, device.health, device.health_reason.as_ref()?));
    pool.devices.iter().filter_map(line).collect()
}

/// Show all details of one pool
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond pool show tank --format json")]
pub struct Show {
    /// Name of the pool
    #[arg(add = candidates::pools())]
    name: String,
    #[command(flatten)]
    how: Listing,
}

impl Show {
    pub async fn run(self, client: &Client) -> Outcome {
        print_pairs(&one(client, &self.name).await?, POOL_PROPERTIES, &self.how)
    }
}

/// Returns the names of all properties of a pool.
fn readable() -> Vec<&'static str> {
    iter::once("all").chain(POOL_PROPERTIES.iter().map(|column| column.name)).collect()
}

/// Print a property of a pool
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond pool get -H -p -o value free tank")]
pub struct Get {
    /// Property, or all
    #[arg(value_name = "PROP|all", add = candidates::words(readable()))]
    property: String,
    /// Name of the pool
    #[arg(add = candidates::pools())]
    name: String,
    #[command(flatten)]
    how: Listing,
}

impl Get {
    pub async fn run(self, client: &Client) -> Outcome {
        let pool = one(client, &self.name).await?;
        print_property(&pool, &pool.name, &self.property, POOL_PROPERTIES, &self.how)
    }
}

/// Change a property of a pool
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond pool set job_rate=50M tank
  millpond pool set job_rate=none tank

job_rate: bytes per second that all jobs of the pool together may read (resilver, replace, remove, rebalance, scrub); takes effect at once
and is kept across restarts. Guests have priority over jobs with and without it.")]
pub struct Set {
    /// PROP=VAL
    #[arg(add = candidates::settings(["job_rate"]))]
    assignment: String,
    /// Name of the pool
    #[arg(add = candidates::pools())]
    name: String,
}

impl Set {
    pub async fn run(self, client: &Client) -> Outcome {
        names::check(Kind::Pool, &self.name)?;
        let Some((property, value)) = self.assignment.split_once('=') else {
            return Err(Failure::usage(format!("'{}' is not PROP=VAL; give for example job_rate=50M", self.assignment)));
        };
        let request = match property {
            "job_rate" => SetPool { job_rate: Some(rate(value)?) },
            _ => {
                return Err(Failure::usage(format!(
                    "the pool property '{property}' cannot be set; job_rate can, see 'millpond pool set --help'"
                )));
            }
        };
        client.post::<_, Pool>(&format!("/v1/pools/{}/properties", self.name), &request).await?;
        say(&format!("pool {}: {}", self.name, self.assignment))
    }
}

#[cfg(test)]
mod tests;
