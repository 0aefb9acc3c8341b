//! The names of the devices of a pool, and the search for the device that a user names.
//!
//! A device has an id, which stays with it wherever it is plugged in and is never another device's,
//! and the path at which it is open. For a missing device the last path is kept (`was`). Another
//! device of the pool may be there now, so a word that fits several devices is refused.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use millpond_api::{ApiError, DeviceNamed};
use millpond_block::{DeviceSlot, MemberId};
use millpond_engine::{DeviceId, DeviceInfo};
use millpond_format::{DeviceNote, crc32c};

use super::shard::{ShardHandle, ShardStatus};
use super::state::{PoolRecord, SeenDevice};

#[cfg(test)]
mod tests;

/// The shortest beginning of an id that stands for it.
const LEAST_DIGITS: usize = 4;

/// The devices of a pool by all their names, replacements included.
#[derive(Debug)]
pub(super) struct DeviceNames(Vec<Named>);

/// One device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    /// Index in the pool's member table.
    pub member: MemberId,
    /// True for a replacement that is to become the member `member`.
    pub replacement: bool,
    /// Eight hexadecimal digits, or 16 where eight are ambiguous; empty when the id is unknown.
    pub id: String,
    /// Path at which it is open.
    pub path: Option<PathBuf>,
    /// Last path of a missing device.
    pub was: Option<PathBuf>,
    /// Serial number of the disk.
    pub serial: Option<String>,
}

impl Named {
    /// Returns its shortest clear name: its path, or the last path of a missing device unless
    /// another device is there now (`taken`), else its id.
    fn word(&self, taken: bool) -> String {
        let last = self.was.as_ref().filter(|_| !taken);
        match (self.path.as_ref().or(last), self.id.is_empty()) {
            (Some(path), _) => path.display().to_string(),
            (None, false) => self.id.clone(),
            (None, true) => format!("device {}", self.member),
        }
    }

    /// Returns id and path, for a choice among several.
    fn described(&self) -> String {
        let id = if self.id.is_empty() { format!("device {}", self.member) } else { self.id.clone() };
        match (&self.path, &self.was) {
            (Some(path), _) => format!("{id} (at {} now)", path.display()),
            (None, Some(was)) => format!("{id} (missing, was at {})", was.display()),
            (None, None) => format!("{id} (missing)"),
        }
    }

    fn is(&self, word: &str) -> bool {
        let path = Path::new(word);
        let digits = word.len() >= LEAST_DIGITS && self.id.starts_with(&word.to_ascii_lowercase());
        let serial = self.serial.as_ref().is_some_and(|serial| serial.eq_ignore_ascii_case(word));
        // member numbers are shown nowhere: a number from an old message means a missing device,
        // never a healthy one
        let number = self.path.is_none() && self.is_number(word);
        digits || serial || number || [&self.path, &self.was].into_iter().flatten().any(|known| known == path || is_node(known, word))
    }

    /// True when `word` is the index in the member table.
    fn is_number(&self, word: &str) -> bool {
        word == self.member.to_string() && !self.replacement
    }
}

/// True when `word` is the last part of the path of a device node, as `sdb` is of `/dev/sdb`.
fn is_node(path: &Path, word: &str) -> bool {
    path.starts_with("/dev") && path.file_name().is_some_and(|name| name == word)
}

impl DeviceNames {
    /// Returns the names in a pool in service.
    pub(super) fn of(record: &PoolRecord, status: &ShardStatus) -> DeviceNames {
        let host = |slot: Option<DeviceSlot>| status.host(slot?);
        let path = |slot: Option<DeviceSlot>| host(slot).map(|host| host.path.clone());
        let all = || status.pool.devices.iter().flat_map(|device| std::iter::once(device.id).chain(device.replacement_id));
        let ids = short_ids(all());
        let short = |id: DeviceId| ids.get(&id).cloned().unwrap_or_default();
        let mut names = Vec::new();
        for device in &status.pool.devices {
            let open = path(device.slot);
            let was = if open.is_none() { record.last_path(device.member).cloned() } else { None };
            let before = || seen_before(record, device)?.serial.clone();
            let serial = host(device.slot).map_or_else(before, |host| host.serial.clone());
            names.push(Named { member: device.member, replacement: false, id: short(device.id), path: open, was, serial });
            if device.replacement.is_some() {
                let id = device.replacement_id.map(short).unwrap_or_default();
                let serial = host(device.replacement).and_then(|host| host.serial.clone());
                names.push(Named { member: device.member, replacement: true, id, path: path(device.replacement), was: None, serial });
            }
        }
        DeviceNames(names)
    }

    /// Returns the names in a pool that is not in service, as far as they are remembered. Where two
    /// devices were last seen at one path, the path is that of the one that was in use last.
    pub(super) fn remembered(record: &PoolRecord) -> DeviceNames {
        let in_force = record.in_force.as_ref();
        let id = |member: MemberId| {
            let current = in_force.and_then(|labels| labels.current.get(&member.0)).copied();
            current.or_else(|| record.seen.get(&member.0).map(|seen| seen.id)).map(DeviceId)
        };
        let members = (0..).map(MemberId).zip(&record.devices).filter(|(_, path)| !path.as_os_str().is_empty());
        let known: Vec<(MemberId, &PathBuf)> = members.collect();
        let ids = short_ids(known.iter().filter_map(|(member, _)| id(*member)));
        let in_use = |member: MemberId| in_force.is_none_or(|labels| labels.current.contains_key(&member.0));
        let named = |(member, path): &(MemberId, &PathBuf)| {
            let shared = known.iter().any(|(other, at)| other != member && at == path && in_use(*other));
            let short = id(*member).and_then(|id| ids.get(&id).cloned()).unwrap_or_default();
            let (path, was) = if shared && !in_use(*member) { (None, Some((*path).clone())) } else { (Some((*path).clone()), None) };
            let serial = record.seen.get(&member.0).and_then(|seen| seen.serial.clone());
            Named { member: *member, replacement: false, id: short, path, was, serial }
        };
        let taking = |path: &PathBuf| Named {
            member: MemberId(0),
            replacement: true,
            id: String::new(),
            path: Some(path.clone()),
            was: None,
            serial: None,
        };
        let replacements = record.replacements.iter().map(taking);
        DeviceNames(known.iter().map(named).chain(replacements).collect())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Named> {
        self.0.iter()
    }

    /// Returns the device of a member, or with `replacement` the one that replaces it.
    pub(super) fn get(&self, member: MemberId, replacement: bool) -> Option<&Named> {
        self.0.iter().find(|named| named.member == member && named.replacement == replacement)
    }

    /// Returns the shortest clear name of a device.
    pub(super) fn word(&self, named: &Named) -> String {
        let taken = named.was.as_ref().is_some_and(|was| self.0.iter().any(|other| other.path.as_ref() == Some(was)));
        named.word(taken)
    }

    /// Returns the shortest clear name of a member.
    pub(super) fn member(&self, member: MemberId) -> String {
        self.get(member, false).map_or_else(|| format!("device {member}"), |named| self.word(named))
    }

    /// Returns the error for a word that names no device. A member number is no name, as it is
    /// shown nowhere.
    pub(super) fn unknown(&self, pool: &str, word: &str) -> ApiError {
        let meant = self.0.iter().find(|named| named.is_number(word));
        let meant = meant.map(|named| format!("; device {word} is {}: use that name if it is meant", named.described()));
        let meant = meant.unwrap_or_else(|| format!("; 'millpond pool status {pool}' shows IDs, paths and serial numbers"));
        ApiError::not_found(format!("pool '{pool}' has no device {word}{meant}"))
    }

    /// Returns the member that a user means by a path, an id or the beginning of one, or a serial
    /// number; `None` when no name fits.
    ///
    /// # Errors
    /// When several devices fit, or the device is a replacement that is not a member yet.
    pub(super) fn find(&self, pool: &str, word: &str) -> Result<Option<MemberId>, ApiError> {
        let found: Vec<&Named> = self.0.iter().filter(|named| named.is(word)).collect();
        match found.as_slice() {
            [] => Ok(None),
            [named] if named.replacement => Err(ApiError::busy(format!(
                "{word} is replacing {} in pool '{pool}'; name that device, or wait until the replacement has ended",
                self.member(named.member)
            ))),
            [named] => Ok(Some(named.member)),
            several => {
                let several: Vec<String> = several.iter().map(|named| named.described()).collect();
                Err(ApiError::invalid(format!(
                    "'{word}' matches {} devices of pool '{pool}': {}; name one by its ID",
                    several.len(),
                    several.join(", ")
                )))
            }
        }
    }
}

/// Describes devices that were not found, by what is remembered of them.
pub(super) fn absent(record: Option<&PoolRecord>, members: &[MemberId]) -> Vec<DeviceNamed> {
    let names = record.map(DeviceNames::remembered);
    let named = |member: &MemberId| {
        let known = names.as_ref().and_then(|names| names.get(*member, false));
        let seen = record.and_then(|record| record.seen.get(&member.0));
        DeviceNamed {
            id: known.map(|known| known.id.clone()).unwrap_or_default(),
            path: String::new(),
            was: record.and_then(|record| record.last_path(*member)).map(|path| path.display().to_string()),
            serial: seen.and_then(|seen| seen.serial.clone()),
            size: seen.map_or(0, |seen| seen.size),
        }
    };
    members.iter().map(named).collect()
}

/// Records id, serial number and size of the devices that are present.
pub(super) fn note(record: &mut PoolRecord, status: &ShardStatus) {
    let seen = status.pool.devices.iter().filter_map(|device| {
        let host = device.slot.and_then(|slot| status.host(slot));
        // a spare that becomes a member is the same device at another index
        let before = record.seen.values().find(|seen| seen.id == device.id.0).cloned();
        let now = host.map(|host| {
            let before = before.clone().unwrap_or_default();
            SeenDevice { id: device.id.0, serial: host.serial.clone(), size: host.geometry.size, ..before }
        });
        Some((device.member.0, now.or(before)?))
    });
    record.seen = seen.collect();
}

/// Has path, size and serial number of the present devices written into the labels, so that another
/// host can name them when they are missing.
pub(super) fn describe(shard: &ShardHandle, status: &ShardStatus) {
    let note = |device: DeviceId, slot: DeviceSlot| {
        let host = status.host(slot)?;
        let (path, serial) = (host.path.to_str().unwrap_or_default().to_owned(), host.serial.clone().unwrap_or_default());
        Some(DeviceNote { device, size: host.geometry.size, path, serial })
    };
    let own = status.pool.devices.iter().filter_map(|device| note(device.id, device.slot?));
    let replacements = status.pool.devices.iter().filter_map(|device| note(device.replacement_id?, device.replacement?));
    shard.describe(own.chain(replacements).collect());
}

/// Returns how a member looked when it was last present.
pub(super) fn seen_before<'a>(record: &'a PoolRecord, device: &DeviceInfo) -> Option<&'a SeenDevice> {
    record.seen.get(&device.member.0).filter(|seen| seen.id == device.id.0)
}

/// Returns ids that people can compare and type: eight digits, or all 16 where two devices share
/// the eight.
fn short_ids(ids: impl Iterator<Item = DeviceId>) -> BTreeMap<DeviceId, String> {
    // ids differ in their low bits, so their leading digits are alike; those of a checksum are not
    let short = |id: DeviceId| format!("{:08x}", crc32c(&id.0.to_le_bytes()));
    let all: Vec<DeviceId> = ids.collect();
    let unique = |id: DeviceId| all.iter().all(|other| *other == id || short(*other) != short(id));
    all.iter().map(|id| (*id, if unique(*id) { short(*id) } else { format!("{:016x}", id.0) })).collect()
}
