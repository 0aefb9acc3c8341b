//! `create`: a new volume.

use clap::Args;

use crate::api::{CreateVolume, LIMITS, SetProperties, Volume};
use crate::client::Client;
use crate::failure::{Failure, Outcome};
use crate::names::VolumeName;
use crate::size::Size;

/// Make a volume
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond create tank/vm1 -L 20G --cache writeback --sector 512e -o compression=lz4 -o iops=1000")]
pub struct Create {
    /// POOL/VOL
    name: String,
    /// Size, a multiple of 4096 bytes
    #[arg(short = 'L', long, value_name = "SIZE")]
    size: String,
    /// Cache mode: none, directsync, writethrough, writeback, unsafe
    #[arg(long, value_name = "MODE")]
    cache: Option<String>,
    /// Sector profile: 512n, 512e, 4kn
    #[arg(long, value_name = "PROFILE")]
    sector: Option<String>,
    /// Set a property
    #[arg(short = 'o', value_name = "PROP=VAL")]
    properties: Vec<String>,
}

impl Create {
    /// Runs it.
    pub async fn run(self, client: &Client) -> Outcome {
        let name: VolumeName = self.name.parse()?;
        let Size(size) = self.size.parse()?;
        let mut properties = SetProperties::default();
        let mut sector = self.sector;
        for word in &self.properties {
            match word.strip_prefix("sector=") {
                Some(profile) => sector = Some(profile.to_owned()),
                None => assign(word, &mut properties)?,
            }
        }
        properties.cache = self.cache.or(properties.cache);
        let request = CreateVolume { name: name.to_string(), size, sector, properties };
        client.post::<_, Volume>("/v1/volumes", &request).await.map(drop)
    }
}

/// Reads `PROP=VAL`.
pub fn assign(word: &str, properties: &mut SetProperties) -> Outcome {
    let Some((property, value)) = word.split_once('=') else {
        return Err(Failure::usage(format!("'{word}' is not PROP=VAL; give for example compression=lz4")));
    };
    match property {
        "cache" => properties.cache = Some(value.to_owned()),
        "compression" => properties.compression = Some(value.to_owned()),
        "readonly" => properties.readonly = Some(switch(value)?),
        "reservation" => properties.reservation = Some(amount(value)?),
        "special_small_blocks" => properties.special_small_blocks = Some(amount(value)?),
        "read_cache" => properties.read_cache = Some(value.to_owned()),
        _ if LIMITS.contains(&property) => drop(properties.limits.insert(property.to_owned(), amount(value)?)),
        "sector" => return Err(Failure::failed("tables and filesystems count in sectors; see 'millpond convert-sectors --help'")),
        _ => {
            return Err(Failure::usage(format!(
                "no property '{property}' can be set; choose from cache, compression, readonly, read_cache, reservation, special_small_blocks, {}",
                LIMITS.join(", ")
            )));
        }
    }
    Ok(())
}

/// Bytes, requests or seconds; `none` is 0.
fn amount(word: &str) -> Outcome<u64> {
    if word == "none" {
        return Ok(0);
    }
    let Size(amount) = word.strip_suffix("/s").unwrap_or(word).parse()?;
    Ok(amount)
}

fn switch(word: &str) -> Outcome<bool> {
    match word {
        "on" | "yes" | "true" | "1" => Ok(true),
        "off" | "no" | "false" | "0" => Ok(false),
        _ => Err(Failure::usage(format!("'{word}' is neither on nor off; give one of them"))),
    }
}

#[cfg(test)]
mod tests {
    //! Property words.
    use super::*;
    use crate::failure::Code;

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
            cache: Some("none".to_owned()),
            compression: Some("lz4".to_owned()),
            readonly: Some(true),
            reservation: Some(1 << 30),
            special_small_blocks: Some(16 << 10),
            read_cache: Some("auto".to_owned()),
            limits: [("bps_max".to_owned(), 20 << 20), ("iops".to_owned(), 0)].into(),
        };
        assert_eq!(properties, wanted);
        assert_eq!(code("iops=fast"), Some(Code::Usage));
        assert_eq!(code("sector=4kn"), Some(Code::Failed));
        assert_eq!(code("colour=red"), Some(Code::Usage));
        assert_eq!(code("readonly"), Some(Code::Usage));
        assert_eq!(code("readonly=maybe"), Some(Code::Usage));
    }
}
