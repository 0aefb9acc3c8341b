//! `cache advise`: recommends a cache mode for a load that the user describes or that the daemon
//! measured, with reasons. `docs/loss.md` lists what each mode may lose.

use clap::Args;
use millpond_api::client::Client;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::VolumeName;
use millpond_api::{Export, GuestIo, Volume, VolumeCache};
use millpond_block::CacheMode;
use serde::Serialize;

use crate::command::candidates;
use crate::output::{Cell, Column, Format, Listing, Shown, print, write_out};

#[cfg(test)]
mod tests;

/// Recommend a cache mode for a load, described or measured
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond cache advise --db
  millpond cache advise --vm --write-rate 500 --flush-rate 20
  millpond cache advise tank/vm1                 measured since its exports were created
  millpond cache advise tank/vm1 --scratch       measured, and described

In no mode does a crash of a client or of the daemon lose an acknowledged write. docs/loss.md lists the tests.")]
pub struct Advise {
    /// POOL/VOL, whose measured load is used
    #[arg(add = candidates::volumes())]
    name: Option<String>,
    /// A database or another program with its own cache that flushes data that must be durable
    #[arg(long, group = "kind")]
    db: bool,
    /// A machine whose filesystem flushes its journal, and whose kernel caches reads
    #[arg(long, group = "kind")]
    vm: bool,
    /// Data that can be recreated: build trees, caches, swap
    #[arg(long, group = "kind")]
    scratch: bool,
    /// Programs that never flush, although every write must be durable
    #[arg(long, group = "kind")]
    no_flush: bool,
    /// Writes per second
    #[arg(long, value_name = "N", requires = "flush_rate", conflicts_with = "name")]
    write_rate: Option<f64>,
    /// Flushes per second
    #[arg(long, value_name = "N", requires = "write_rate", conflicts_with = "name")]
    flush_rate: Option<f64>,
    /// Percent of reads that repeat earlier reads, not counting hits in the client's own cache
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    reads_again: Option<u8>,
    #[command(flatten)]
    how: Listing,
}

/// The kind of program that uses the disk, as the user described it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    /// Flushes what it must keep, and caches reads itself.
    Database,
    /// The guest's file system flushes, and the guest's kernel caches.
    Machine,
    Scratch,
    NoFlush,
    Unknown,
}

/// A load, as far as it is known; `None` where it is not.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Load {
    kind: Kind,
    /// Flushes and FUA writes per write.
    flushes_per_write: Option<f64>,
    /// FUA writes per write.
    fua_share: Option<f64>,
    /// Lower bound of the share of reads that return data read before, 0 to 1.
    reads_again: Option<f64>,
}

/// A cache mode with the advice on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Row {
    mode: &'static str,
    /// `best`, `fits`, `slow`, `no`.
    advice: &'static str,
    power_loss: &'static str,
    reason: String,
}

const ROW: &[Column<Row>] = &[
    Column { name: "mode", cell: |r| Cell::Text(r.mode.to_owned()), shown: Shown::Always },
    Column { name: "advice", cell: |r| Cell::Text(r.advice.to_owned()), shown: Shown::Always },
    Column { name: "power_loss", cell: |r| Cell::Text(r.power_loss.to_owned()), shown: Shown::Always },
    Column { name: "reason", cell: |r| Cell::Text(r.reason.clone()), shown: Shown::Always },
];

/// Flushes per write from which waiting for stable media at each write adds little.
const FLUSHES_OFTEN: f64 = 0.5;
/// Share of repeated reads from which the daemon's read cache is worth its memory.
const WORTH_CACHING: f64 = 0.1;
/// With fewer writes than this, measured flush ratios are ignored.
const FEW_WRITES: u64 = 100;

impl Advise {
    pub async fn run(self, client: &Client) -> Outcome {
        let kind = match (self.db, self.vm, self.scratch, self.no_flush) {
            (true, ..) => Kind::Database,
            (_, true, ..) => Kind::Machine,
            (_, _, true, _) => Kind::Scratch,
            (_, _, _, true) => Kind::NoFlush,
            _ => Kind::Unknown,
        };
        let mut load = Load { kind, flushes_per_write: None, fua_share: None, reads_again: None };
        let mut current = None;
        if let Some(name) = &self.name {
            let name: VolumeName = name.parse()?;
            let volume: Volume = client.get(&format!("/v1/volumes/{name}")).await?;
            let exports: Vec<Export> = client.get("/v1/exports").await?;
            let own = exports.iter().map(|export| (&export.name, &export.io));
            let mounted = exports.iter().flat_map(|export| &export.volumes).map(|file| (&file.name, &file.io));
            let of_volume = own.chain(mounted).filter(|(served, _)| **served == volume.name).map(|(_, io)| io);
            load = Load::measured(kind, of_volume, volume.referenced_bytes);
            current = Some(volume.cache);
        } else if let (Some(writes), Some(flushes)) = (self.write_rate, self.flush_rate) {
            if !(writes > 0.0 && writes.is_finite() && flushes >= 0.0 && flushes.is_finite()) {
                return Err(Failure::usage("--write-rate is above 0 and --flush-rate is not below; give numbers per second"));
            }
            load.flushes_per_write = Some(flushes / writes);
        } else if kind == Kind::Unknown {
            return Err(Failure::usage("the load is unknown; name a volume, or give --db, --vm, --scratch or --no-flush"));
        }
        load.reads_again = self.reads_again.map(|percent| f64::from(percent) / 100.0).or(load.reads_again);
        let rows = load.judge();
        if self.how.format == Format::Json || self.how.no_header || !self.how.columns.is_empty() {
            return print(&rows, ROW, &self.how);
        }
        write_out(&load.words(current.as_ref()))?;
        print(&rows, ROW, &self.how)
    }
}

impl Load {
    /// Computes the load of a volume from the counters of its exports. `referenced` is the size of
    /// the volume's data in bytes.
    fn measured<'a>(kind: Kind, exports: impl Iterator<Item = &'a GuestIo>, referenced: u64) -> Load {
        let sums = exports.fold((0, 0, 0, 0), |(writes, flushes, durable, read), io| {
            (writes + io.writes, flushes + io.flushes, durable + io.fua_writes, read + io.read_bytes)
        });
        let (writes, flushes, durable, read) = sums;
        let ratio = |of: u64, to: u64| of as f64 / to as f64;
        let enough = writes >= FEW_WRITES;
        // If more bytes were read than exist, at least the excess was read repeatedly.
        let again = (read > 0).then(|| 1.0 - ratio(referenced.min(read), read));
        Load {
            kind,
            flushes_per_write: enough.then(|| ratio(flushes + durable, writes)),
            fua_share: enough.then(|| ratio(durable, writes)),
            reads_again: again,
        }
    }

    /// Whether every write must be durable without a flush.
    fn relies_on_writes(&self) -> bool {
        match self.kind {
            Kind::NoFlush => true,
            Kind::Unknown => self.flushes_per_write == Some(0.0),
            Kind::Database | Kind::Machine | Kind::Scratch => false,
        }
    }

    /// Whether the daemon's read cache is worth its memory. Without measurements it is, except for
    /// a database, whose own cache leaves few repeated reads.
    fn is_worth_caching(&self) -> bool {
        let unknown = !matches!(self.kind, Kind::Database);
        self.reads_again.map_or(unknown, |again| again >= WORTH_CACHING)
    }

    fn best(&self) -> CacheMode {
        match (self.kind, self.relies_on_writes(), self.is_worth_caching()) {
            (Kind::Scratch, ..) => CacheMode::Unsafe,
            (_, true, true) => CacheMode::Writethrough,
            (_, true, false) => CacheMode::Directsync,
            (_, false, true) => CacheMode::Writeback,
            (_, false, false) => CacheMode::None,
        }
    }

    fn judge(&self) -> Vec<Row> {
        let best = self.best();
        let row = |mode: CacheMode| {
            let (advice, reason) = self.advice(mode, best);
            Row { mode: mode.name(), advice, power_loss: power_loss(mode), reason }
        };
        CacheMode::ALL.into_iter().map(row).collect()
    }

    fn advice(&self, mode: CacheMode, best: CacheMode) -> (&'static str, String) {
        let caches = matches!(mode, CacheMode::Writethrough | CacheMode::Writeback | CacheMode::Unsafe);
        let often = self.flushes_per_write.is_some_and(|flushes| flushes >= FLUSHES_OFTEN);
        let reads = match (caches, self.is_worth_caching()) {
            (true, true) => "the daemon may cache repeated reads",
            (true, false) => "a cache in the daemon would hold data that is seldom read again, or that the client caches",
            (false, true) => "repeated reads come from the devices",
            (false, false) => "no memory is used for a cache with few hits",
        };
        let (advice, writes) = match mode {
            CacheMode::Unsafe if self.kind == Kind::Scratch => {
                ("best", "flushes do not wait, and data that a power cut loses can be recreated")
            }
            CacheMode::Unsafe => ("no", "flushes are ignored: a power cut may lose flushed writes"),
            CacheMode::Directsync | CacheMode::Writethrough if self.relies_on_writes() => {
                ("fits", "clients do not flush, so each write must be durable when it is acknowledged")
            }
            CacheMode::Directsync | CacheMode::Writethrough if often => {
                ("fits", "nearly every write is flushed anyway, so waiting for each write costs little")
            }
            CacheMode::Directsync | CacheMode::Writethrough => ("slow", "each write waits for stable media, flushed or not"),
            CacheMode::None | CacheMode::Writeback if self.relies_on_writes() => {
                ("no", "clients do not flush: a power cut may lose all writes since the last checkpoint")
            }
            CacheMode::None | CacheMode::Writeback => ("fits", "flushes make writes durable"),
        };
        (if mode == best { "best" } else { advice }, format!("{writes}; {reads}"))
    }

    /// Describes the load, one property per line.
    fn words(&self, current: Option<&VolumeCache>) -> String {
        let kind = match self.kind {
            Kind::Database => "a database: it flushes data that must be durable, and has its own cache",
            Kind::Machine => "a machine: its filesystem flushes",
            Kind::Scratch => "data that can be recreated",
            Kind::NoFlush => "programs that never flush",
            Kind::Unknown => "not described",
        };
        let mut text = format!("load: {kind}\n");
        let flushes = match (self.flushes_per_write, self.fua_share) {
            (None, _) => "unknown".to_owned(),
            (Some(all), Some(fua)) if fua > 0.0 => format!("{all:.2}, {:.0} % of writes with FUA", fua * 100.0),
            (Some(all), _) => format!("{all:.2}"),
        };
        text += &format!("flushes per write: {flushes}\n");
        let again = self.reads_again.map_or("unknown".to_owned(), |again| format!("at least {:.0} %", again * 100.0));
        text += &format!("repeated reads: {again}\n");
        if let Some(current) = current {
            text += &format!("present mode: {current}\n");
        }
        text + "\n"
    }
}

/// Returns what a power cut may lose, by the table of `docs/loss.md`.
fn power_loss(mode: CacheMode) -> &'static str {
    match mode {
        CacheMode::None | CacheMode::Writeback => "unflushed writes",
        CacheMode::Directsync | CacheMode::Writethrough => "nothing",
        CacheMode::Unsafe => "writes since the last checkpoint",
    }
}
