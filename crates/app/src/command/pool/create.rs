//! `pool create`: creates a pool.

use clap::Args;
use millpond_api::client::Client;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::{self, Kind};
use millpond_api::size::Size;
use millpond_api::{ClassSpec, CreatePool, DeviceGroup, IoMode, LayoutSpec, Pool};

use super::spec::{Spec, warn, warn_of_spare, warn_of_weakness};
use crate::command::columns::{layout, pool_layout};
use crate::output::{say, write_out};

/// Create a pool on devices
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond pool create tank /srv/tank.img:20G
  millpond pool create fast stripe -i 2 -I 64k /dev/sdb /dev/sdc
  millpond pool create slow linear /dev/sdd /dev/sde
  millpond pool create safe mirror /dev/sdb /dev/sdc mirror /dev/sdd /dev/sde
  millpond pool create bulk parity2 /dev/sd[b-i] special mirror /dev/nvme0n1 /dev/nvme1n1 /dev/nvme2n1
  millpond pool create big mirror /dev/sdb /dev/sdc cache /dev/nvme0n1 spare /dev/sdd

A plain list of devices is a stripe over all of them. FILE:SIZE creates a sparse file. Data devices come first; 'special' devices hold
map nodes, a 'log' holds new writes, a 'cache' holds copies of blocks that are read repeatedly, and no data depends on it; a 'spare' replaces a lost device. Parity groups have their own log.")]
pub struct Create {
    /// Name of the pool
    name: String,
    #[command(flatten)]
    spec: Spec,
    /// Set a property of the pool: io=direct|buffered, features=all|none (none: older versions can use the pool, see docs/upgrades.md)
    #[arg(short = 'o', value_name = "PROP=VAL")]
    properties: Vec<String>,
    /// Overwrite devices that contain data; allow groups with less redundancy than the others, and files below /dev
    #[arg(short = 'f', long)]
    force: bool,
    /// Check everything, create nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
}

impl Create {
    pub async fn run(self, client: &Client) -> Outcome {
        names::check(Kind::Pool, &self.name)?;
        let properties = self.properties.iter().try_fold(Properties::default(), Properties::with)?;
        let groups = self.spec.groups()?;
        if let Some(data) = groups.first() {
            warn_of_weakness(&groups, data.layout);
        }
        let would = format!("would create pool {} {}\n", self.name, describe(&groups));
        let Properties { io, without_features } = properties;
        let request = CreatePool { name: self.name.clone(), groups, io, force: self.force, without_features, dry_run: self.dry_run };
        let pool = client.post::<_, Pool>("/v1/pools", &request).await?;
        warn(&pool);
        if self.dry_run {
            return write_out(&would);
        }
        warn_of_spare(&pool);
        say(&format!(
            "created pool {}: {} for guests, {}",
            pool.name,
            Size(pool.size),
            pool.layout.as_ref().map_or_else(|| layout(LayoutSpec::Linear), pool_layout)
        ))
    }
}

/// Describes groups of devices.
pub(super) fn describe(groups: &[DeviceGroup]) -> String {
    let group = |group: &DeviceGroup| {
        let paths: Vec<&str> = group.devices.iter().map(|device| device.path.as_str()).collect();
        let class = if group.class == ClassSpec::Data { String::new() } else { format!("{} ", group.class.name()) };
        format!("{class}({}) on {}", layout(group.layout), paths.join(" "))
    };
    groups.iter().map(group).collect::<Vec<_>>().join(" and ")
}

/// Properties of a new pool.
#[derive(Clone, Copy, Debug, Default)]
struct Properties {
    io: IoMode,
    without_features: bool,
}

impl Properties {
    /// Adds `PROP=VAL`.
    fn with(self, word: &String) -> Outcome<Properties> {
        match word.split_once('=') {
            Some(("io", "direct")) => Ok(Properties { io: IoMode::Direct, ..self }),
            Some(("io", "buffered")) => Ok(Properties { io: IoMode::Buffered, ..self }),
            Some(("io", value)) => Err(Failure::usage(format!("io cannot be '{value}'; choose direct or buffered"))),
            Some(("features", "all")) => Ok(Properties { without_features: false, ..self }),
            Some(("features", "none")) => Ok(Properties { without_features: true, ..self }),
            Some(("features", value)) => Err(Failure::usage(format!("features cannot be '{value}'; choose all or none"))),
            Some((property, _)) => Err(Failure::usage(format!(
                "no property '{property}' of a pool; io and features can be given, see 'millpond pool create --help'"
            ))),
            None => Err(Failure::usage(format!("'{word}' is not PROP=VAL; give for example io=buffered"))),
        }
    }
}
