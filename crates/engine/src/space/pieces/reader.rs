//! Reads the entries of a piece whose content is in memory, one group at a time.

use std::rc::Rc;

use millpond_format::{DeadGroup, DeadRecord, FormatError};

/// The content of a piece, and its groups.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    bytes: Rc<[u8]>,
    groups: Rc<[DeadGroup]>,
}

impl Reader {
    pub(crate) fn new(bytes: Rc<[u8]>) -> Result<Reader, FormatError> {
        let groups = DeadGroup::all(&bytes)?.into();
        Ok(Reader { bytes, groups })
    }

    pub(super) fn bytes(&self) -> Rc<[u8]> {
        Rc::clone(&self.bytes)
    }

    pub(super) fn groups(&self) -> &[DeadGroup] {
        &self.groups
    }

    /// Returns the group of an entry.
    fn group_of(&self, entry: u32) -> Option<&DeadGroup> {
        let at = self.groups.partition_point(|group| group.first <= entry).checked_sub(1)?;
        self.groups.get(at).filter(|group| entry - group.first < group.count)
    }

    /// Units of data in all entries before this one.
    pub(super) fn units_before(&self, entry: u32) -> u64 {
        let Some(group) = self.group_of(entry) else {
            return self.groups.last().map_or(0, |group| group.units_before + group.units);
        };
        let count = (entry - group.first) as usize;
        let within = || self.records(group).iter().take(count).map(|record| u64::from(record.units)).sum::<u64>();
        group.units_before + if count == 0 { 0 } else { within() }
    }

    /// Returns the entries of its group from `entry` on.
    pub(crate) fn group_from(&self, entry: u32) -> impl Iterator<Item = DeadRecord<'static>> + use<> {
        let found = self.group_of(entry).map(|group| (self.records(group), (entry - group.first) as usize));
        let (records, skip) = found.unwrap_or_default();
        records.into_iter().skip(skip)
    }

    fn records(&self, group: &DeadGroup) -> Vec<DeadRecord<'static>> {
        group.records(&self.bytes).expect("INV-DEAD-2: a piece reads as what it was made of")
    }
}
