//! The device SPEC of `pool create` and `pool add`: `[LAYOUT] DEVICE...`, group by group.

use std::path::{Path, PathBuf};

use millpond_format::MAX_COPIES;

use crate::api::{DeviceGroup, DeviceSpec, LayoutSpec};
use crate::config::absolute;
use crate::failure::{Failure, Outcome};
use crate::size::Size;

#[cfg(test)]
mod tests;

/// Stripe unit when none is given, in bytes.
const STRIPE_UNIT: u32 = 64 << 10;
/// Largest stripe unit, in bytes: the largest extent of a segment on one device.
const MAX_STRIPE_UNIT: u64 = 64 << 20;

/// Reads the words after the pool's name. `stripes` and `unit` are `-i` and `-I`, for every stripe among them.
///
/// # Errors
/// Wrong usage; or one line "comes later" for layouts and classes that this version does not have.
pub fn parse(words: &[String], stripes: Option<u16>, unit: Option<Size>) -> Outcome<Vec<DeviceGroup>> {
    let mut begun: Vec<(Word, Vec<DeviceSpec>)> = Vec::new();
    for word in words {
        let layout = match word.as_str() {
            "parity1" | "parity2" => {
                return Err(Failure::failed(format!("the layout '{word}' comes later; use linear, stripe or mirror")));
            }
            "special" | "log" | "cache" => {
                return Err(Failure::failed(format!("the device class '{word}' comes later; give data devices alone")));
            }
            "linear" => Word::Linear,
            "stripe" => Word::Stripe,
            "mirror" => Word::Mirror,
            _ => {
                if begun.is_empty() {
                    begun.push((Word::Stripe, Vec::new()));
                }
                let device = device(word)?;
                if begun.iter().flat_map(|(_, devices)| devices).any(|other| other.path == device.path) {
                    return Err(Failure::usage(format!("{} is given twice; name each device once", device.path)));
                }
                begun.last_mut().into_iter().for_each(|(_, devices)| devices.push(device.clone()));
                continue;
            }
        };
        begun.push((layout, Vec::new()));
    }
    if begun.iter().all(|(_, devices)| devices.is_empty()) {
        return Err(Failure::usage("no device is given; name block devices, files, or FILE:SIZE"));
    }
    if begun.iter().all(|(word, _)| *word != Word::Stripe) && (stripes.is_some() || unit.is_some()) {
        return Err(Failure::usage("-i and -I belong to 'stripe'; leave them out"));
    }
    let group = |(word, devices): (Word, Vec<DeviceSpec>)| {
        if devices.is_empty() {
            return Err(Failure::usage("a layout comes without devices; name its devices after it"));
        }
        let layout = match word {
            Word::Linear => LayoutSpec::Linear,
            Word::Stripe => stripe(devices.len(), stripes, unit)?,
            Word::Mirror => mirror(devices.len())?,
        };
        Ok(DeviceGroup { layout, devices })
    };
    begun.into_iter().map(group).collect()
}

/// A layout by its name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    Linear,
    Stripe,
    Mirror,
}

/// Copies on all devices named.
fn mirror(devices: usize) -> Outcome<LayoutSpec> {
    match u16::try_from(devices) {
        Ok(copies) if (2..=MAX_COPIES).contains(&copies) => Ok(LayoutSpec::Mirror { copies }),
        _ => Err(Failure::usage(format!("a mirror has 2 to {MAX_COPIES} devices, {devices} given; name 'mirror' again for more of them"))),
    }
}

fn stripe(devices: usize, stripes: Option<u16>, unit: Option<Size>) -> Outcome<LayoutSpec> {
    let width = match stripes {
        None => u16::try_from(devices).map_err(|_| Failure::usage(format!("{devices} devices are too many; give at most {}", u16::MAX)))?,
        Some(0) => return Err(Failure::usage("-i 0 makes no stripe; give the number of devices per stripe")),
        Some(width) if usize::from(width) > devices => {
            return Err(Failure::usage(format!("-i {width} needs {width} devices, {devices} given; name more or lower -i")));
        }
        Some(width) => width,
    };
    let unit = match unit {
        None => STRIPE_UNIT,
        Some(Size(bytes)) if bytes > 0 && bytes % 4096 == 0 && bytes <= MAX_STRIPE_UNIT => u32::try_from(bytes).unwrap_or(STRIPE_UNIT),
        Some(Size(bytes)) => {
            return Err(Failure::usage(format!("the stripe unit {bytes} is not a multiple of 4096 up to 64M; give for example -I 64k")));
        }
    };
    Ok(LayoutSpec::Stripe { width, unit })
}

/// Reads `PATH` or `FILE:SIZE`. A path that exists as it stands is taken as it stands, colons and all.
fn device(word: &str) -> Outcome<DeviceSpec> {
    let spec = |path: &str, create: Option<u64>| DeviceSpec { path: text(&absolute(Path::new(path))), create };
    if Path::new(word).exists() {
        return Ok(spec(word, None));
    }
    match word.rsplit_once(':') {
        Some((path, size)) if !path.is_empty() && !size.contains('/') => {
            let Size(bytes) = size.parse()?;
            Ok(spec(path, Some(bytes)))
        }
        _ => Ok(spec(word, None)),
    }
}

fn text(path: &Path) -> String {
    PathBuf::from(path).to_string_lossy().into_owned()
}
