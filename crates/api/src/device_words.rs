//! Parser for the device SPEC of `pool create` and `pool add`: `[LAYOUT] DEVICE...`, group by
//! group.

use std::path::{Path, PathBuf};

use millpond_format::{MAX_COPIES, MAX_PARITY_WIDTH};

use crate::failure::{Failure, Outcome};
use crate::path::absolute;
use crate::size::Size;
use crate::{ClassSpec, Device, DeviceClass, DeviceGroup, DeviceSpec, LayoutSpec, Pool};

#[cfg(test)]
mod tests;

/// Default stripe unit in bytes.
const STRIPE_UNIT: u32 = 64 << 10;
/// Largest stripe unit, in bytes: the largest extent of a segment on one device.
const MAX_STRIPE_UNIT: u64 = 64 << 20;

/// Parses the words after the pool's name. `stripes` and `unit` are the values of `-i` and `-I`;
/// they apply to every stripe and every parity group.
///
/// # Errors
/// Wrong usage.
pub fn parse(words: &[String], stripes: Option<u16>, unit: Option<Size>) -> Outcome<Vec<DeviceGroup>> {
    let mut begun: Vec<Begun> = Vec::new();
    let mut class = ClassSpec::Data;
    for word in words {
        let layout = match word.as_str() {
            "special" | "log" | "cache" | "spare" => {
                class = match word.as_str() {
                    "log" => ClassSpec::Log,
                    "cache" => ClassSpec::Cache,
                    "spare" => ClassSpec::Spare,
                    _ => ClassSpec::Special,
                };
                // a layout may follow
                begun.push(Begun { class, layout: None, devices: Vec::new() });
                continue;
            }
            "linear" => Word::Linear,
            "stripe" => Word::Stripe,
            "mirror" => Word::Mirror,
            "parity1" => Word::Parity(1),
            "parity2" => Word::Parity(2),
            _ => {
                if let Some(right) = elsewhere(word) {
                    return Err(Failure::usage(format!("'{word}' is no layout here: {right}; a file of that name is ./{word}")));
                }
                if begun.is_empty() {
                    begun.push(Begun { class, layout: None, devices: Vec::new() });
                }
                let device = device(word)?;
                if begun.iter().flat_map(|group| &group.devices).any(|other| other.path == device.path) {
                    return Err(Failure::usage(format!("{} is given twice; name each device once", device.path)));
                }
                begun.last_mut().into_iter().for_each(|group| group.devices.push(device.clone()));
                continue;
            }
        };
        match begun.last_mut().filter(|group| group.devices.is_empty() && group.layout.is_none()) {
            Some(group) => group.layout = Some(layout),
            None => begun.push(Begun { class, layout: Some(layout), devices: Vec::new() }),
        }
    }
    if begun.iter().all(|group| group.devices.is_empty()) {
        return Err(Failure::usage("no device is given; name block devices, files, or FILE:SIZE"));
    }
    let aside = |class: ClassSpec| matches!(class, ClassSpec::Cache | ClassSpec::Spare);
    let turns = |group: &Begun| !aside(group.class) && matches!(group.layout, None | Some(Word::Stripe | Word::Parity(_)));
    if !begun.iter().any(turns) && (stripes.is_some() || unit.is_some()) {
        return Err(Failure::usage("-i and -I belong to 'stripe' and 'parity'; leave them out"));
    }
    begun.into_iter().map(|group| group.finish(stripes, unit)).collect()
}

/// Translates a layout or class of another system.
fn elsewhere(word: &str) -> Option<String> {
    let say = |right: &str| Some(format!("say '{right}'"));
    match word.to_ascii_lowercase().as_str() {
        "raid0" | "striped" => say("stripe DEVICE..."),
        "raid1" | "raid-1" | "mirrored" | "mirrors" => say("mirror DEVICE DEVICE..."),
        "raid1c3" => say("mirror DEVICE DEVICE DEVICE"),
        "raid1c4" => say("mirror DEVICE DEVICE DEVICE DEVICE"),
        "raid10" | "raid1+0" | "raid-10" => say("mirror A B mirror C D"),
        "raid4" | "raid5" | "raid-5" | "raidz" | "raidz1" | "draid" | "draid1" | "parity" => say("parity1 DEVICE DEVICE DEVICE..."),
        "raid6" | "raid-6" | "raidz2" | "draid2" => say("parity2 DEVICE DEVICE DEVICE DEVICE..."),
        "raidz3" | "draid3" | "parity3" => {
            Some("two devices may be missing at most; say 'parity2', or 'mirror' with four devices".to_owned())
        }
        "single" | "jbod" | "concat" | "span" | "spanned" => say("linear DEVICE..."),
        "dup" => Some("copies are on different devices; say 'mirror DEVICE DEVICE'".to_owned()),
        "l2arc" | "caches" => say("cache DEVICE..."),
        "slog" | "zil" | "logs" | "journal" => say("log DEVICE..."),
        "spares" | "hotspare" => say("spare DEVICE..."),
        "metadata" | "dedup" => say("special DEVICE..."),
        // our own word in capitals
        lower @ ("linear" | "stripe" | "mirror" | "parity1" | "parity2" | "special" | "log" | "cache" | "spare") => say(lower),
        _ => None,
    }
}

/// A group as parsed so far.
struct Begun {
    class: ClassSpec,
    layout: Option<Word>,
    devices: Vec<DeviceSpec>,
}

impl Begun {
    fn finish(self, stripes: Option<u16>, unit: Option<Size>) -> Outcome<DeviceGroup> {
        let Begun { class, layout, devices } = self;
        if devices.is_empty() {
            return Err(Failure::usage("a layout or class comes without devices; name its devices after it"));
        }
        if let (ClassSpec::Cache, Some(_)) = (class, layout) {
            return Err(Failure::usage("a cache has no layout, because it holds only copies; name its devices after 'cache'"));
        }
        if let (ClassSpec::Spare, Some(_)) = (class, layout) {
            return Err(Failure::usage("spares have no layout, because each replaces one device; name them after 'spare'"));
        }
        let layout = match layout.unwrap_or(Word::Stripe) {
            _ if matches!(class, ClassSpec::Cache | ClassSpec::Spare) => LayoutSpec::Linear,
            Word::Linear => LayoutSpec::Linear,
            Word::Stripe => stripe(devices.len(), stripes, unit)?,
            Word::Mirror => mirror(devices.len())?,
            Word::Parity(parity) if class == ClassSpec::Data => with_parity(devices.len(), parity, stripes, unit)?,
            Word::Parity(parity) => {
                return Err(Failure::usage(format!("parity{parity} is for data; make '{}' a mirror", class.name())));
            }
        };
        Ok(DeviceGroup { class, layout, devices })
    }
}

/// A layout, by its keyword.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    Linear,
    Stripe,
    Mirror,
    Parity(u8),
}

/// Returns a warning for a group whose loss would lose the pool, although the data tolerates more
/// lost devices.
pub fn weakness(groups: &[DeviceGroup], data: LayoutSpec) -> Option<String> {
    let needed = |group: &&DeviceGroup| !matches!(group.class, ClassSpec::Data | ClassSpec::Cache | ClassSpec::Spare);
    let weak = groups.iter().filter(needed).find(|group| group.layout.spare() < data.spare())?;
    Some(format!(
        "the {} devices tolerate the loss of {} of them, the data devices of {}: losing them loses the pool; make them a mirror of {}",
        weak.class.name(),
        weak.layout.spare(),
        data.spare(),
        data.spare() + 1
    ))
}

/// Returns why data groups without redundancy should not join groups that tolerate the loss of
/// `spare` devices: the loss of one of their devices loses the pool. Names alternatives.
pub fn unprotected(groups: &[DeviceGroup], spare: u16) -> Option<String> {
    let lone = |group: &&DeviceGroup| group.class == ClassSpec::Data && group.layout.spare() == 0;
    let group = groups.iter().find(lone).filter(|_| spare > 0)?;
    let paths: Vec<&str> = group.devices.iter().map(|device| device.path.as_str()).collect();
    let way = match (paths.len(), group.devices.first()) {
        (1, Some(device)) => {
            format!("name two devices after 'mirror', or 'spare {}' for a device that replaces a lost one", device.path)
        }
        _ => "name them after 'mirror', 'parity1' or 'parity2'".to_owned(),
    };
    let word = if paths.len() == 1 { "would be a group of its own" } else { "would be a group" };
    Some(format!(
        "{} {word} without redundancy, and the other groups tolerate the loss of {spare} of their devices each: losing {} loses the whole pool; {way}, or give --force",
        paths.join(" "),
        if paths.len() == 1 { "it" } else { "one of them" }
    ))
}

/// Returns a warning for spares that cannot replace any device, or not every device.
pub fn unfit_spare(pool: &Pool) -> Option<String> {
    let spares = pool.devices.iter().filter(|device| device.class == DeviceClass::Spare);
    let smallest = spares.min_by_key(|device| device.size)?;
    let redundant = |device: &&Device| device.layout.is_redundant();
    let Some(largest) = pool.devices.iter().filter(redundant).max_by_key(|device| device.size) else {
        return Some("no device of this pool has redundancy: a spare cannot replace any device; remove it".to_owned());
    };
    (smallest.size < largest.size).then(|| {
        format!(
            "the spare {} has {} of space, {} has {}: it cannot replace that device; use a larger one",
            smallest.path,
            Size(smallest.size),
            largest.path,
            Size(largest.size)
        )
    })
}

/// A parity layout over all devices given, or over `-i` of them.
fn with_parity(devices: usize, parity: u8, stripes: Option<u16>, unit: Option<Size>) -> Outcome<LayoutSpec> {
    let least = usize::from(parity) + 2;
    if devices < least {
        return Err(Failure::usage(format!("parity{parity} has {least} to {MAX_PARITY_WIDTH} devices, {devices} given; name more")));
    }
    let most = u16::try_from(devices).unwrap_or(u16::MAX).min(MAX_PARITY_WIDTH);
    match stripe(devices, stripes.or(Some(most)), unit)? {
        LayoutSpec::Stripe { width, unit } if usize::from(width) >= least && width <= MAX_PARITY_WIDTH => {
            Ok(LayoutSpec::Parity { width, parity, unit })
        }
        _ => Err(Failure::usage(format!("rows of parity{parity} are {least} to {MAX_PARITY_WIDTH} devices wide; change -i"))),
    }
}

/// A mirror over all devices given.
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

/// Parses `PATH` or `FILE:SIZE`. A word that exists as a path is a path, even if it contains
/// colons.
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
