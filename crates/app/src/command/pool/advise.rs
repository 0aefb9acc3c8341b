//! `pool advise`: recommends settings from the data that a pool holds.

use clap::{Args, Subcommand};
use millpond_api::client::Client;
use millpond_api::failure::Outcome;
use millpond_api::names::{self, Kind};
use millpond_api::size::Size;
use millpond_api::{SpecialAdvice, SpecialThreshold, VolumeSmall};

use crate::command::candidates;
use crate::output::{Cell, Column, Format, Listing, Shown, print, print_pairs, write_out};

/// Recommend settings for a pool from its stored data
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond pool advise special tank\n  millpond pool advise special tank --special 100G")]
pub struct Advise {
    #[command(subcommand)]
    about: About,
}

#[derive(Debug, Subcommand)]
enum About {
    Special(Special),
}

/// Show how much data special devices would hold for each value of special_small_blocks, and the size that they need
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond pool advise special tank
  millpond pool advise special tank --special 100G

The stored data shows which blocks were written together. Small writes that followed each other on the disk count as one large write; overwritten
and discarded data is not counted. All map nodes are read; guests have priority. docs/devices.md explains the sizes.")]
struct Special {
    /// Name of the pool
    #[arg(add = candidates::pools())]
    name: String,
    /// Assumed usable bytes of special devices, instead of those of the pool; for a mirror, the size of one device
    #[arg(long, value_name = "SIZE")]
    special: Option<Size>,
    #[command(flatten)]
    how: Listing,
}

const VOLUME: &[Column<VolumeSmall>] = &[
    Column { name: "volume", cell: |v| Cell::Text(v.name.clone()), shown: Shown::Always },
    Column {
        name: "now",
        cell: |v| if v.special_small_blocks == 0 { Cell::None } else { Cell::Bytes(v.special_small_blocks) },
        shown: Shown::Always,
    },
    Column { name: "data", cell: |v| Cell::Bytes(v.data_bytes), shown: Shown::Always },
    Column { name: "on special", cell: |v| Cell::Bytes(v.special_bytes), shown: Shown::Always },
    Column { name: "to 4k", cell: |v| small(v, 0), shown: Shown::Always },
    Column { name: "to 8k", cell: |v| small(v, 1), shown: Shown::Always },
    Column { name: "to 16k", cell: |v| small(v, 2), shown: Shown::Always },
    Column { name: "to 32k", cell: |v| small(v, 3), shown: Shown::Always },
    Column { name: "to 64k", cell: |v| small(v, 4), shown: Shown::Always },
    Column { name: "to 128k", cell: |v| small(v, 5), shown: Shown::Always },
];

const THRESHOLD: &[Column<SpecialThreshold>] = &[
    Column { name: "special_small_blocks", cell: |t| Cell::Bytes(t.special_small_blocks), shown: Shown::Always },
    Column { name: "small_bytes", cell: |t| Cell::Bytes(t.small_bytes), shown: Shown::Always },
    Column { name: "share", cell: |t| Cell::Text(format!("{:.1} %", t.share * 100.0)), shown: Shown::Always },
    Column { name: "total_bytes", cell: |t| Cell::Bytes(t.total_bytes), shown: Shown::Always },
    Column { name: "needed_bytes", cell: |t| Cell::Bytes(t.needed_bytes), shown: Shown::Always },
    Column { name: "full_percent", cell: |t| t.full_percent.map_or(Cell::None, Cell::Count), shown: Shown::Always },
    Column { name: "fits", cell: |t| Cell::text_or_none(t.fits.map(|fits| if fits { "yes" } else { "no" })), shown: Shown::Always },
];

fn small(volume: &VolumeSmall, at: usize) -> Cell {
    volume.small.get(at).map_or(Cell::None, |small| Cell::Bytes(small.bytes))
}

impl Advise {
    pub async fn run(self, client: &Client) -> Outcome {
        match self.about {
            About::Special(special) => special.run(client).await,
        }
    }
}

impl Special {
    async fn run(self, client: &Client) -> Outcome {
        names::check(Kind::Pool, &self.name)?;
        let size = self.special.map_or_else(String::new, |Size(bytes)| format!("?special={bytes}"));
        let advice: SpecialAdvice = client.get(&format!("/v1/pools/{}/advice/special{size}", self.name)).await?;
        if self.how.no_header || !self.how.columns.is_empty() {
            return print(&advice.thresholds, THRESHOLD, &self.how);
        }
        if self.how.format == Format::Json {
            return print_pairs(&advice, &[], &self.how);
        }
        print(&advice.volumes, VOLUME, &self.how)?;
        let (nodes, objects) = (Size(advice.node_bytes), Size(advice.object_bytes));
        write_out(&format!("\nmap nodes {nodes}, checkpoint objects {objects}\n\n"))?;
        print(&advice.thresholds, THRESHOLD, &self.how)?;
        write_out(&format!("\n{}\n", advice.advice))
    }
}
