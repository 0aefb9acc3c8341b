//! Millpond's counters, from its control socket.

use anyhow::{Context, Result};
use serde_json::Value;

/// Counters of a pool since import. Experiments report differences of two of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// Completed guest reads.
    pub guest_reads: f64,
    /// Completed guest writes.
    pub guest_writes: f64,
    /// Bytes written by guests.
    pub guest_write_bytes: f64,
    /// Number of device reads.
    pub device_reads: f64,
    /// Number of device writes.
    pub device_writes: f64,
    /// Bytes written to devices.
    pub device_write_bytes: f64,
    /// Map nodes visited for guest requests.
    pub nodes_touched: f64,
    /// Bytes of guest blocks appended.
    pub user_bytes: f64,
    /// Bytes of live blocks moved by the cleaner, or gathered.
    pub cleaner_bytes: f64,
    /// Bytes of batch headers, nodes and checkpoints.
    pub overhead_bytes: f64,
    /// Segments emptied by the cleaner.
    pub segments_cleaned: f64,
    /// Bytes of log since the last checkpoint.
    pub log_bytes: f64,
    /// Dead bytes waiting to be freed.
    pub reclaim_backlog: f64,
    /// Live bytes of the pool.
    pub allocated: f64,
    /// Bytes available to guests.
    pub size: f64,
    /// Turns of the pool's thread by length: element n counts turns shorter than 2^n microseconds
    /// and at least half as long.
    pub turns: [u64; 20],
}

impl Counters {
    /// Reads the counters from the document of `/v1/pools/NAME`.
    ///
    /// # Errors
    /// A counter is missing; a 0 would be a wrong figure.
    pub fn of(pool: &Value) -> Result<Counters> {
        let number =
            |pointer: &str| pool.pointer(pointer).and_then(Value::as_f64).with_context(|| format!("the pool does not tell {pointer}"));
        let devices = pool.get("devices").and_then(Value::as_array).context("the pool lists no devices")?;
        let sum = |name: &str| -> Result<f64> {
            let each = devices.iter().map(|d| d.pointer(&format!("/io/{name}")).and_then(Value::as_f64));
            each.sum::<Option<f64>>().with_context(|| format!("a device does not tell {name}"))
        };
        Ok(Counters {
            guest_reads: number("/io/guests/reads")?,
            guest_writes: number("/io/guests/writes")?,
            guest_write_bytes: number("/io/guests/write_bytes")?,
            device_reads: sum("reads")?,
            device_writes: sum("writes")?,
            device_write_bytes: sum("write_bytes")?,
            nodes_touched: number("/io/nodes_touched")?,
            user_bytes: number("/io/user_bytes")?,
            cleaner_bytes: number("/io/cleaner_bytes")? + number("/io/gathered_bytes")?,
            overhead_bytes: number("/io/header_bytes")? + number("/io/metadata_bytes")?,
            segments_cleaned: number("/io/segments_cleaned")?,
            log_bytes: number("/io/log_bytes")?,
            reclaim_backlog: number("/io/reclaim_backlog")?,
            allocated: number("/allocated")?,
            size: number("/size")?,
            turns: pool
                .pointer("/io/turns")
                .and_then(Value::as_array)
                .and_then(|classes| classes.iter().filter_map(Value::as_u64).collect::<Vec<u64>>().try_into().ok())
                .context("the pool does not tell /io/turns")?,
        })
    }

    /// Returns the longest turn since `before` in microseconds, rounded up to a power of two, and
    /// the number of turns of about a millisecond or longer.
    pub fn turns_since(&self, before: &Counters) -> (f64, f64) {
        let since: Vec<u64> = self.turns.iter().zip(before.turns).map(|(now, then)| now - then).collect();
        let longest = since.iter().rposition(|count| *count > 0).map_or(0.0, |class| (class as f64).exp2());
        (longest, since.iter().skip(11).sum::<u64>() as f64)
    }
}
