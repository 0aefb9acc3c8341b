//! `load`: runs a load on one export.

use anyhow::{Result, bail};
use clap::Args;
use millpond_lab::load::{self, Access, Dialect, Durability, Endpoint, LoadSpec};
use millpond_lab::units::parse_size;
use std::process::ExitCode;

/// Runs a load on one export and prints the measurements as JSON
#[derive(Args)]
#[command(after_help = "Example: millpond lab load 'nbd:/run/disk0.sock?pond/disk0' --rw randrw --mix 70 --bs 8k --qd 16 --secs 10")]
pub struct LoadArgs {
    /// `nbd:/socket?export`, `nbd:host:port?export`, or `vhost-user:/socket[?poll]`
    endpoint: Endpoint,
    /// read, write, randread, randwrite, rw, randrw, trim, randtrim
    #[arg(long, default_value = "randread")]
    rw: String,
    /// Percent of reads for rw and randrw
    #[arg(long, default_value_t = 50)]
    mix: u8,
    /// Distribution of blocks for random loads: uniform, 80/20, zipf:EXPONENT
    #[arg(long)]
    access: Option<Access>,
    /// Request size
    #[arg(long, default_value = "4k", value_parser = parse_size)]
    bs: u64,
    /// Requests in flight per job
    #[arg(long, default_value_t = 1)]
    qd: usize,
    /// Number of connections
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Seconds of the measurement
    #[arg(long, default_value_t = 3.0)]
    secs: f64,
    /// Seconds before the measurement that are not counted
    #[arg(long, default_value_t = 0.3)]
    ramp: f64,
    /// First byte of the range
    #[arg(long, default_value = "0", value_parser = parse_size)]
    offset: u64,
    /// Bytes of the range, 0 = to the end
    #[arg(long, default_value = "0", value_parser = parse_size)]
    size: u64,
    /// Flush after every write
    #[arg(long)]
    sync: bool,
    /// Set FUA on every write
    #[arg(long)]
    fua: bool,
    /// Access every block of the range once
    #[arg(long)]
    once: bool,
    /// End after this many requests per job
    #[arg(long, default_value_t = 0)]
    ops: u64,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Features of the protocol: simple replies, structured replies, or all (extended headers, a metadata context)
    #[arg(long, value_enum, default_value = "simple")]
    dialect: Dialect,
    /// Milliseconds of an interval of the series
    #[arg(long, default_value_t = 0)]
    series: u64,
}

impl LoadArgs {
    /// Runs the load; exit code 3 if the server refused requests.
    ///
    /// # Errors
    /// The server cannot be reached, or the options contradict each other.
    pub fn run(self) -> Result<ExitCode> {
        let mut spec = LoadSpec {
            block: usize::try_from(self.bs)?,
            depth: self.qd,
            jobs: self.jobs,
            secs: self.secs,
            ramp: if self.once { 0.0 } else { self.ramp },
            offset: self.offset,
            size: self.size,
            once: self.once,
            ops: self.ops,
            seed: self.seed,
            series_ms: self.series,
            dialect: self.dialect,
            durability: match (self.sync, self.fua) {
                (true, true) => bail!("--sync and --fua exclude each other; give one of them"),
                (true, false) => Durability::Flush,
                (false, true) => Durability::Fua,
                (false, false) => Durability::Acknowledged,
            },
            ..LoadSpec::default()
        }
        .with_rw(&self.rw, self.mix)?;
        match self.access {
            Some(_) if spec.access == Access::Sequential => bail!("--access needs a random load"),
            Some(access) => spec.access = access,
            None => {}
        }
        let result = load::run(&self.endpoint, &spec)?;
        println!("{}", serde_json::to_string_pretty(&result)?);
        Ok(if result.errors > 0 { ExitCode::from(3) } else { ExitCode::SUCCESS })
    }
}
