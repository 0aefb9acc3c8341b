//! `create`: creates a volume.

use clap::Args;
use millpond_api::client::Client;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::VolumeName;
use millpond_api::size::{Size, SizeError};
use millpond_api::{CreateVolume, LIMITS, SetProperties, Volume, VolumeCache, VolumeCompression, VolumeSector};

use super::candidates;
use crate::output::say;

/// Create a volume
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond create tank/vm1 -L 20G --cache writeback --sector 512e -o compression=lz4 -o iops=1000")]
pub struct Create {
    /// POOL/VOL
    #[arg(add = candidates::new_volumes())]
    name: String,
    /// Size, a multiple of 4096 bytes
    #[arg(short = 'L', long, value_name = "SIZE")]
    size: String,
    /// Cache mode: none, directsync, writethrough, writeback, unsafe
    #[arg(long, value_name = "MODE", add = candidates::words(CACHE_MODES))]
    cache: Option<String>,
    /// Sector profile: 512n, 512e, 4kn
    #[arg(long, value_name = "PROFILE", add = candidates::words(SECTORS))]
    sector: Option<String>,
    /// Set a property
    #[arg(short = 'o', value_name = "PROP=VAL", add = candidates::settings(settable()))]
    properties: Vec<String>,
}

/// Names of cache modes.
const CACHE_MODES: [&str; 5] = ["none", "directsync", "writethrough", "writeback", "unsafe"];
/// Names of sector profiles.
pub const SECTORS: [&str; 3] = ["512n", "512e", "4kn"];
/// Properties that can be set, beside the [`LIMITS`].
const SETTABLE: [&str; 6] = ["cache", "compression", "readonly", "read_cache", "reservation", "special_small_blocks"];

/// Returns the names of all properties of a volume that can be set.
pub fn settable() -> Vec<&'static str> {
    SETTABLE.into_iter().chain(LIMITS).collect()
}

impl Create {
    pub async fn run(self, client: &Client) -> Outcome {
        let name: VolumeName = self.name.parse()?;
        let Size(size) = self.size.parse()?;
        let mut properties = SetProperties::default();
        let mut sector = self.sector.map(VolumeSector::from);
        for word in &self.properties {
            match word.strip_prefix("sector=") {
                Some(profile) => sector = Some(profile.to_owned().into()),
                None => assign(word, &mut properties)?,
            }
        }
        properties.cache = self.cache.map(VolumeCache::from).or(properties.cache);
        let request = CreateVolume { name: name.to_string(), size, sector, properties };
        let made: Volume = client.post("/v1/volumes", &request).await?;
        say(&format!("created {}: {}, {} sectors, cache {}", made.name, Size(made.size), made.sector, made.cache))
    }
}

/// Parses `PROP=VAL` into `properties`.
pub fn assign(word: &str, properties: &mut SetProperties) -> Outcome {
    let Some((property, value)) = word.split_once('=') else {
        return Err(Failure::usage(format!("'{word}' is not PROP=VAL; give for example compression=lz4")));
    };
    match property {
        "cache" => properties.cache = Some(VolumeCache::from(value.to_owned())),
        "compression" => properties.compression = Some(VolumeCompression::from(value.to_owned())),
        "readonly" => properties.readonly = Some(switch(property, value)?),
        "reservation" => properties.reservation = Some(amount(property, value)?),
        "special_small_blocks" => properties.special_small_blocks = Some(amount(property, value)?),
        "read_cache" => properties.read_cache = Some(value.to_owned()),
        _ if LIMITS.contains(&property) => drop(properties.limits.insert(property.to_owned(), limit(property, value)?)),
        "expire" | "expires" => {
            return Err(Failure::usage(
                "the expiry of a snapshot is set when it is taken ('snapshot NAME --expire 24h'); 'millpond hold NAME --until TIME' keeps it longer, 'millpond destroy NAME' removes it now",
            ));
        }
        "sector" => {
            return Err(Failure::usage(
                "partition tables and filesystems depend on the sector size; see 'millpond convert-sectors --help'",
            ));
        }
        _ => {
            return Err(Failure::usage(format!("no property '{property}' can be set; choose from {}", settable().join(", "))));
        }
    }
    Ok(())
}

/// Parses a number of bytes; `none` is 0.
fn amount(property: &str, word: &str) -> Outcome<u64> {
    if word == "none" {
        return Ok(0);
    }
    let size = word.strip_suffix("/s").unwrap_or(word).parse();
    size.map(|Size(amount)| amount).map_err(|e: SizeError| Failure::usage(format!("{property}: {e}, or none")))
}

/// Parses requests per second, bytes per second, or seconds; `none` is 0.
fn limit(property: &str, word: &str) -> Outcome<u64> {
    let is_length = property.ends_with("_length");
    if property.starts_with("bps") && !is_length {
        return amount(property, word);
    }
    // `amount` also reads numbers of requests such as 10k
    amount(property, word).map_err(|_| {
        let (what, example) = if is_length { ("seconds", "10") } else { ("requests per second", "1000 or 20k") };
        Failure::usage(format!("{property}: '{}' is not a number of {what}; give for example {example}, or none", word.escape_debug()))
    })
}

fn switch(property: &str, word: &str) -> Outcome<bool> {
    match word {
        "on" | "yes" | "true" | "1" => Ok(true),
        "off" | "no" | "false" | "0" => Ok(false),
        _ => Err(Failure::usage(format!("{property}: '{}' is neither on nor off; give on or off", word.escape_debug()))),
    }
}

#[cfg(test)]
mod tests {
    //! Parsing of properties.
    use super::*;
    use millpond_api::failure::Code;

    fn code(word: &str) -> Option<Code> {
        assign(word, &mut SetProperties::default()).err().map(|failure| failure.code)
    }

    #[test]
    fn properties_are_read_or_refused_by_kind() {
        let mut properties = SetProperties::default();
        for word in [
            "cache=none",
            "readonly=on",
            "compression=lz4",
            "reservation=1G",
            "special_small_blocks=16k",
            "read_cache=auto",
            "bps_max=20M",
            "iops=none",
        ] {
            assign(word, &mut properties).expect(word);
        }
        let wanted = SetProperties {
            cache: Some(VolumeCache::None),
            compression: Some(VolumeCompression::Lz4),
            readonly: Some(true),
            force: false,
            reservation: Some(1 << 30),
            special_small_blocks: Some(16 << 10),
            read_cache: Some("auto".to_owned()),
            limits: [("bps_max".to_owned(), 20 << 20), ("iops".to_owned(), 0)].into(),
        };
        assert_eq!(properties, wanted);
        assert_eq!(code("iops=fast"), Some(Code::Usage));
        let assigned = |word: &str| assign(word, &mut SetProperties::default()).map_err(|failure| failure.to_string());
        assert_eq!(
            assigned("iops=abc"),
            Err("iops: 'abc' is not a number of requests per second; give for example 1000 or 20k, or none".into())
        );
        assert!(assigned("bps=abc").is_err_and(|line| line.starts_with("bps: 'abc' is not a size")));
        assert!(assigned("bps_max_length=x").is_err_and(|line| line.contains("not a number of seconds")));
        assert!(assigned("readonly=maybe").is_err_and(|line| line.starts_with("readonly: 'maybe' is neither on nor off")));
        assert_eq!(code("sector=4kn"), Some(Code::Usage));
        assert!(assigned("expire=24h").is_err_and(|line| line.contains("hold NAME --until TIME")));
        assert_eq!(code("colour=red"), Some(Code::Usage));
        assert_eq!(code("readonly"), Some(Code::Usage));
        assert_eq!(code("readonly=maybe"), Some(Code::Usage));
    }
}
