//! The drives that can be simulated, by name, and what they are made of.

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

/// Two drives of 14 TB and 7,200 revolutions. Rate and settling come from their published figures of sequential and of single random requests, the
/// figures with 32 in flight follow from the model (`docs/decisions/0014-simulated-drives.md`). The first has its write cache switched off.
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
/// A common drive behind SATA: 540 and 520 MB/s, 95,000 reads and 88,000 writes of 4 KiB per second, 10,000 reads one at a time.
const SATA_SSD: FlashShape =
    FlashShape { units: 8, read: 84 * US, write: 40 * US, flush: 300 * US, read_rate: 540 * MB, write_rate: 520 * MB };
/// One behind NVMe with protection against power loss: 3,200 and 2,000 MB/s, reads in 80 us, writes and flushes at once.
const NVME: FlashShape =
    FlashShape { units: 32, read: 80 * US, write: 15 * US, flush: 5 * US, read_rate: 3_200 * MB, write_rate: 2_000 * MB };

/// Names of models, for `--help`.
pub const MODELS: &str = "mn08aca14t, st14000nm001g, sata-ssd, nvme, cap:RATE (bytes per second and nothing else, as cap:50m with m = 10^6), or drives \
    joined as one: N*MODEL/linear, N*MODEL/stripe:CHUNK, N*MODEL/raid6:CHUNK";

/// What is simulated: a drive, or several joined as LVM and md do it.
#[derive(Clone, Debug, PartialEq)]
pub enum Model {
    /// A hard disk.
    Spindle(SpindleShape),
    /// A solid-state drive, or a rate.
    Flash(FlashShape),
    /// Drives of one model, how many, and how they are joined.
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

/// A drive at work.
#[derive(Debug)]
pub enum Drive {
    /// [`Spindle`].
    Spindle(Box<Spindle>),
    /// [`Flash`].
    Flash(Flash),
    /// [`Array`].
    Joined(Box<Array>),
}

impl Drive {
    /// At rest. `size` is what the simulated file holds.
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

    /// Takes a request.
    pub fn submit(&mut self, now: Nanos, request: Request) {
        match self {
            Drive::Spindle(drive) => drive.submit(now, request),
            Drive::Flash(drive) => drive.submit(now, request),
            Drive::Joined(drive) => drive.submit(now, request),
        }
    }

    /// When something happens next; `None` while nothing is to be done.
    pub fn next(&self) -> Option<Nanos> {
        match self {
            Drive::Spindle(drive) => drive.next(),
            Drive::Flash(drive) => drive.next(),
            Drive::Joined(drive) => drive.next(),
        }
    }

    /// Goes on to a time; what is done by then is added to `done`.
    pub fn advance(&mut self, now: Nanos, done: &mut Vec<Done>) {
        match self {
            Drive::Spindle(drive) => drive.advance(now, done),
            Drive::Flash(drive) => drive.advance(now, done),
            Drive::Joined(drive) => drive.advance(now, done),
        }
    }
}

/// A drive of a size, as `mn08aca14t=4G`.
#[derive(Clone, Debug)]
pub struct Sized {
    /// Which.
    pub model: Model,
    /// Bytes.
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
