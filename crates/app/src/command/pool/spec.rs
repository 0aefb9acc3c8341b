//! The SPEC argument of `pool create` and `pool add`.

use clap::Args;

use millpond_api::device_words;
use millpond_api::failure::Outcome;
use millpond_api::size::Size;
use millpond_api::{DeviceGroup, LayoutSpec, Pool};

use crate::command::candidates;

/// Groups of devices with their classes and layouts.
#[derive(Debug, Args)]
pub struct Spec {
    /// [special|log|cache|spare] [linear|stripe|mirror|parity1|parity2] DEVICE..., once or several times; a device is a block device, a file, or FILE:SIZE
    #[arg(required = true, value_name = "SPEC", add = candidates::spec())]
    spec: Vec<String>,
    /// Devices per stripe, with or without parity
    #[arg(short = 'i', long, value_name = "N")]
    stripes: Option<u16>,
    /// Bytes on one device before the stripe continues on the next
    #[arg(short = 'I', long, value_name = "SIZE")]
    stripe_size: Option<String>,
}

impl Spec {
    /// Parses the groups.
    ///
    /// # Errors
    /// Wrong usage.
    pub fn groups(&self) -> Outcome<Vec<DeviceGroup>> {
        let unit = self.stripe_size.as_deref().map(str::parse::<Size>).transpose()?;
        device_words::parse(&self.spec, self.stripes, unit)
    }
}

/// Warns if a group has less redundancy than the data.
pub fn warn_of_weakness(groups: &[DeviceGroup], data: LayoutSpec) {
    if let Some(line) = device_words::weakness(groups, data) {
        eprintln!("millpond: warning: {line}");
    }
}

/// Prints the daemon's warnings.
pub fn warn(pool: &Pool) {
    pool.warnings.iter().for_each(|line| eprintln!("millpond: warning: {line}"));
}

/// Warns if a spare cannot replace every redundant device.
pub fn warn_of_spare(pool: &Pool) {
    if let Some(line) = device_words::unfit_spare(pool) {
        eprintln!("millpond: warning: {line}");
    }
}
