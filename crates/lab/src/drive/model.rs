//! Models of drives that can be simulated, by name, with their parameters.

use super::flash::{Flash, FlashShape};
use super::request::{Done, Nanos, Request};
use super::spindle::{CacheShape, Spindle, SpindleShape};
use super::{Array, Layout};
use crate::units::parse_size;
use anyhow::{Context, Result, bail, ensure};
use std::str::FromStr;

const US: Nanos = 1_000;
const MS: Nanos = 1_000_000;
const MB: u64 = 1_000_000;
const TB: u64 = 1_000_000 * MB;

/// Two hard disks of 14 TB and 7,200 revolutions per minute. Rates and settling times come from
/// their published figures of sequential requests and of single random requests; the figures with
/// 32 requests in flight follow from the model (`docs/decisions/0014-simulated-drives.md`). The
/// write cache of the first one is off.
const MN08ACA14T: SpindleShape = SpindleShape {
    revolution: 8_333 * US,
    rate: 271 * MB,
    capacity: 14 * TB,
    read_settle: 1_600 * US,
    write_settle: 2_000 * US,
    full_seek: 14 * MS,
    read_depth: 32,
    write_depth: 7,
    bus: 550 * MB,
    command: 40 * US,
    answer: 300 * US,
    cache: None,
};
const ST14000NM001G: SpindleShape = SpindleShape {
    revolution: 8_333 * US,
    rate: 281 * MB,
    capacity: 14 * TB,
    read_settle: 1_300 * US,
    write_settle: 1_700 * US,
    full_seek: 14 * MS,
    read_depth: 32,
    write_depth: 32,
    bus: 550 * MB,
    command: 40 * US,
    answer: 100 * US,
    cache: Some(CacheShape { bytes: 4 << 20, accept: 455 * US, aside: 280 * US }),
};
/// A common SATA drive: 540 and 520 MB/s, 95,000 reads and 88,000 writes of 4 KiB per second,
/// 10,000 reads per second one at a time.
const SATA_SSD: FlashShape =
    FlashShape { units: 8, read: 84 * US, write: 40 * US, flush: 300 * US, read_rate: 540 * MB, write_rate: 520 * MB };
/// An NVMe drive with power-loss protection: 3,200 and 2,000 MB/s, reads in 80 us; writes and
/// flushes only have to reach its protected cache.
const NVME: FlashShape =
    FlashShape { units: 32, read: 80 * US, write: 15 * US, flush: 5 * US, read_rate: 3_200 * MB, write_rate: 2_000 * MB };

/// Names of models, for `--help`.
pub const MODELS: &str = "mn08aca14t, st14000nm001g, sata-ssd, nvme, cap:RATE (bytes per second and nothing else, as cap:50m with m = 10^6), or drives \
    joined as one: N*MODEL/linear, N*MODEL/stripe:CHUNK, N*MODEL/raid6:CHUNK";

/// A drive model, or several drives of one model combined as LVM and md combine them.
#[derive(Clone, Debug, PartialEq)]
pub enum Model {
    /// A hard disk.
    Spindle(SpindleShape),
    /// A solid-state drive, or a plain rate.
    Flash(FlashShape),
    /// Model of the drives, their number, and how they are combined.
    Joined(Box<Model>, usize, Layout),
}

impl FromStr for Model {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Model> {
        if let Some((count, rest)) = text.split_once('*') {
            let (model, layout) = rest.split_once('/').context("drives are joined by /linear, /stripe:CHUNK or /raid6:CHUNK")?;
            let count: usize = count.parse().with_context(|| format!("'{count}' is no number of drives"))?;
            let layout: Layout = layout.parse()?;
            ensure!((layout.least()..=64).contains(&count), "{text}: {} to 64 drives", layout.least());
            let model: Model = model.parse()?;
            ensure!(!matches!(model, Model::Joined(..)), "{text}: drives that are joined cannot be joined again");
            return Ok(Model::Joined(Box::new(model), count, layout));
        }
        if let Some(rate) = text.strip_prefix("cap:") {
            let digits = rate.trim_end_matches('m');
            let number: u64 = digits.parse().with_context(|| format!("'{rate}' is no rate; write for example 50m"))?;
            let rate = if digits == rate { number } else { number.checked_mul(MB).context("too large a rate")? };
            ensure!(rate > 0, "a rate above 0");
            return Ok(Model::Flash(FlashShape { units: 32, read: 0, write: 0, flush: 0, read_rate: rate, write_rate: rate }));
        }
        Ok(match text {
            "mn08aca14t" => Model::Spindle(MN08ACA14T),
            "st14000nm001g" => Model::Spindle(ST14000NM001G),
            "sata-ssd" => Model::Flash(SATA_SSD),
            "nvme" => Model::Flash(NVME),
            _ => bail!("'{text}' is no drive; there are {MODELS}"),
        })
    }
}

/// A simulated drive.
#[derive(Debug)]
pub enum Drive {
    /// A hard disk, see [`Spindle`].
    Spindle(Box<Spindle>),
    /// A solid-state drive, see [`Flash`].
    Flash(Flash),
    /// Several drives, see [`Array`].
    Joined(Box<Array>),
}

impl Drive {
    /// Makes an idle drive. `size` is the size of the simulated file in bytes.
    pub fn new(model: &Model, size: u64) -> Drive {
        match model {
            Model::Spindle(shape) => Drive::Spindle(Box::new(Spindle::new(*shape))),
            Model::Flash(shape) => Drive::Flash(Flash::new(*shape)),
            Model::Joined(model, count, layout) => {
                let drives = (0..*count).map(|_| Drive::new(model, size)).collect();
                Drive::Joined(Box::new(Array::new(drives, *layout, size)))
            }
        }
    }

    /// Submits a request at a time.
    pub fn submit(&mut self, now: Nanos, request: Request) {
        match self {
            Drive::Spindle(drive) => drive.submit(now, request),
            Drive::Flash(drive) => drive.submit(now, request),
            Drive::Joined(drive) => drive.submit(now, request),
        }
    }

    /// Returns the time of the next event; `None` while the drive is idle.
    pub fn next(&self) -> Option<Nanos> {
        match self {
            Drive::Spindle(drive) => drive.next(),
            Drive::Flash(drive) => drive.next(),
            Drive::Joined(drive) => drive.next(),
        }
    }

    /// Advances to a time; requests completed by then are appended to `done`.
    pub fn advance(&mut self, now: Nanos, done: &mut Vec<Done>) {
        match self {
            Drive::Spindle(drive) => drive.advance(now, done),
            Drive::Flash(drive) => drive.advance(now, done),
            Drive::Joined(drive) => drive.advance(now, done),
        }
    }
}

/// A model and a size, parsed from text such as `mn08aca14t=4G`.
#[derive(Clone, Debug)]
pub struct Sized {
    /// Model of the drive.
    pub model: Model,
    /// Size in bytes, a multiple of 4096.
    pub size: u64,
}

impl FromStr for Sized {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Sized> {
        let (model, size) = text.rsplit_once('=').context("write MODEL=SIZE, for example mn08aca14t=4G")?;
        let size = parse_size(size)?;
        ensure!(size >= 4096 && size.is_multiple_of(4096), "a drive has a multiple of 4096 bytes");
        Ok(Sized { model: model.parse()?, size })
    }
}
