//! The key table in memory, and what is to be written to it.
//!
//! The table is outside of log and checkpoints. Each change is one page, which is written in place to both
//! areas of every device that the labels call whole (`task/key_writer.rs`).
//!
//! INV-CRYPT-8: a device counts as whole only with the newest table. New devices get it with their first
//! label, others before the labels call them whole, and no page changes in between.
//!
//! A page of which no device has a copy is *unknown*, and stays as it is on all of them: a device that is
//! missing may have it, and an empty page would be newer than that.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use millpond_block::{BufSlice, MemberId, Tag};
use millpond_format::{DeviceId, ENCRYPTION, KEY_PAGES, KeyId, KeyPage, KeyWrap, MemberState, PoolId, SECTOR_BYTES, WRAPS_PER_PAGE};

use super::Store;
use crate::{Absent, Busy, CommandError, Invalid, KeyCommand, KeyTable, Reply};

#[cfg(test)]
mod tests;

/// Bytes of the table.
pub(crate) const TABLE_BYTES: usize = KEY_PAGES as usize * SECTOR_BYTES;

/// The key table of a pool, and what is to be written to it.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    /// Pages by number; `None` if unknown. Empty in a pool without a table.
    pages: Vec<Option<KeyPage>>,
    /// Pages that an import found on out-of-date devices alone.
    outdated: BTreeSet<u16>,
    /// Devices to be filled that have a copy of an unknown page, which may be the last one.
    needed: BTreeMap<MemberId, DeviceId>,
    /// Commands that change the table, in their order.
    pub(super) changes: VecDeque<(Tag, KeyCommand)>,
    /// Pages to be written again as they are.
    again: BTreeSet<u16>,
    laying: Laying,
    /// Commands that turn the feature on once all devices have them.
    upgrades: Vec<Tag>,
    /// Pages are being written.
    pub(crate) writing: bool,
    /// Commands whose changes are on the devices in service. They are answered when the labels say which
    /// these are (INV-LABEL-1).
    answers: Vec<Tag>,
}

/// Progress of a new table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Laying {
    #[default]
    No,
    /// All devices are to get empty pages.
    Wanted,
    /// They are being written.
    Begun,
}

/// The next thing to write.
#[derive(Debug)]
pub(crate) enum KeyWork {
    /// Empty pages.
    Empty,
    /// Pages as they are.
    Again(BTreeSet<u16>),
    /// A page that a command has changed.
    Change(Tag, KeyPage),
}

impl Keys {
    /// Creates the table that an import read.
    pub(crate) fn read(pages: Vec<Option<KeyPage>>, outdated: BTreeSet<u16>, needed: BTreeMap<MemberId, DeviceId>) -> Keys {
        Keys { pages, outdated, needed, ..Keys::default() }
    }

    /// Returns whether the devices have a table.
    pub(crate) fn is_laid(&self) -> bool {
        !self.pages.is_empty()
    }

    /// Returns whether anything is being written or waits for that, or for an answer.
    pub(crate) fn is_busy(&self) -> bool {
        self.writing
            || self.laying != Laying::No
            || !(self.changes.is_empty() && self.again.is_empty() && self.answers.is_empty() && self.upgrades.is_empty())
    }

    /// Requests empty pages on all devices, and that `upgrade` is turned on after that.
    pub(crate) fn lay(&mut self, upgrade: Option<Tag>) {
        self.upgrades.extend(upgrade);
        if self.laying == Laying::No {
            self.laying = Laying::Wanted;
        }
    }

    /// Requests pages to be written again as they are.
    pub(crate) fn write_again(&mut self, pages: impl Iterator<Item = u16>) {
        self.again.extend(pages);
    }

    /// Returns whether pages are written again, or will be.
    pub(crate) fn is_written_again(&self) -> bool {
        self.writing || !self.again.is_empty()
    }

    /// Returns the next thing to write. Changes that are refused are answered to `replies`.
    pub(crate) fn next(&mut self, changes: bool, replies: &mut VecDeque<(Tag, Result<Reply, CommandError>)>) -> Option<KeyWork> {
        if self.laying == Laying::Wanted {
            self.laying = Laying::Begun;
            return Some(KeyWork::Empty);
        }
        if !self.again.is_empty() {
            return Some(KeyWork::Again(std::mem::take(&mut self.again)));
        }
        while let Some((tag, command)) = self.changes.pop_front_if(|_| changes) {
            match self.changed(&command) {
                Ok(page) => return Some(KeyWork::Change(tag, page)),
                Err(error) => replies.push_back((tag, Err(error))),
            }
        }
        None
    }

    /// Takes in that something was written to all devices in service.
    pub(crate) fn written(&mut self, work: KeyWork, pool: PoolId) {
        match work {
            KeyWork::Empty => {
                self.laying = Laying::No;
                self.pages = empty_pages(pool).map(Some).collect();
            }
            KeyWork::Again(_) => {}
            KeyWork::Change(tag, page) => {
                let number = page.number;
                self.outdated.remove(&number);
                if let Some(place) = self.pages.get_mut(usize::from(number)) {
                    *place = Some(page);
                }
                self.answers.push(tag);
            }
        }
    }

    /// Takes the commands whose changes are on the devices.
    pub(crate) fn take_answers(&mut self) -> Vec<Tag> {
        std::mem::take(&mut self.answers)
    }

    /// Takes the commands that turn the feature on, once all devices have a table.
    pub(crate) fn take_upgrades(&mut self) -> Vec<Tag> {
        if self.is_laid() { std::mem::take(&mut self.upgrades) } else { Vec::new() }
    }

    /// Takes all commands that wait, because the pool has stopped.
    pub(crate) fn take_commands(&mut self) -> Vec<Tag> {
        let changes = self.changes.drain(..).map(|(tag, _)| tag);
        changes.chain(self.upgrades.drain(..)).chain(self.answers.drain(..)).collect()
    }

    /// Returns a page, unless it is unknown.
    pub(crate) fn page(&self, number: u16) -> Option<&KeyPage> {
        self.pages.get(usize::from(number))?.as_ref()
    }

    /// Returns the bytes of the table. Unknown pages are zeroes: they count nowhere.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let unknown = [0; SECTOR_BYTES];
        self.pages.iter().flat_map(|page| page.as_ref().map_or(unknown, KeyPage::encode)).collect()
    }

    /// Returns the number of unknown pages.
    pub(crate) fn unknown(&self) -> usize {
        self.pages.iter().filter(|page| page.is_none()).count()
    }

    /// Returns whether a device has a copy of an unknown page, so that it cannot get the newest table: a
    /// missing device may have a newer copy, and none would be left if that is lost.
    pub(crate) fn needs(&self, member: MemberId, device: DeviceId) -> bool {
        self.needed.get(&member) == Some(&device)
    }

    /// Returns the table for a listing.
    fn listed(&self) -> KeyTable {
        let unknown = (0u16..).zip(&self.pages).filter(|(_, page)| page.is_none()).map(|(number, _)| number);
        let wraps = self.pages.iter().flatten().flat_map(|page| page.wraps.iter().cloned());
        KeyTable { wraps: wraps.collect(), unknown: unknown.collect(), outdated: self.outdated.iter().copied().collect() }
    }

    fn page_of(&self, key: KeyId) -> Option<&KeyPage> {
        self.pages.iter().flatten().find(|page| page.wraps.iter().any(|wrap| wrap.key == key))
    }

    /// Returns the page that has a key.
    fn known_page_of(&self, key: KeyId) -> Result<&KeyPage, CommandError> {
        let absent = if self.unknown() > 0 { CommandError::Busy(Busy::KeysUnknown) } else { CommandError::NotFound(Absent::Key) };
        self.page_of(key).ok_or(absent)
    }

    /// Returns the page as a command changes it.
    fn changed(&self, command: &KeyCommand) -> Result<KeyPage, CommandError> {
        let invalid = |why| Err(CommandError::Invalid(why));
        let (page, wraps) = match command {
            KeyCommand::Put { wrap, is_new } => {
                let page = if *is_new { self.page_for(wrap.key)? } else { self.known_page_of(wrap.key)? };
                (page, with(&page.wraps, wrap))
            }
            KeyCommand::Erase { key, number } => {
                let page = self.known_page_of(*key)?;
                let goes = |wrap: &KeyWrap| wrap.key == *key && number.is_none_or(|number| wrap.number == number);
                if number.is_some() && !page.wraps.iter().any(goes) {
                    return Err(CommandError::NotFound(Absent::Key));
                }
                let left: Vec<KeyWrap> = page.wraps.iter().filter(|wrap| !goes(wrap)).cloned().collect();
                if number.is_some() && !left.iter().any(|wrap| wrap.key == *key) {
                    return invalid(Invalid::LastWrap);
                }
                (page, left)
            }
        };
        if wraps.len() > WRAPS_PER_PAGE {
            return invalid(Invalid::KeyTableFull);
        }
        let page = KeyPage { generation: page.generation + 1, wraps, ..page.clone() };
        // a page that cannot be read back would be lost
        if KeyPage::decode(&page.encode()).as_ref() == Ok(&page) { Ok(page) } else { invalid(Invalid::KeyWrap) }
    }

    /// Returns the page for a new key: the one with the fewest wraps, so that more can follow.
    fn page_for(&self, key: KeyId) -> Result<&KeyPage, CommandError> {
        if self.page_of(key).is_some() {
            return Err(CommandError::Invalid(Invalid::KeyExists));
        }
        let emptiest = self.pages.iter().flatten().min_by_key(|page| page.wraps.len());
        emptiest.ok_or(CommandError::Busy(Busy::KeysUnknown))
    }
}

/// Returns wraps with one that is new, or takes the place of that with its number.
fn with(wraps: &[KeyWrap], wrap: &KeyWrap) -> Vec<KeyWrap> {
    let order = |wrap: &KeyWrap| (wrap.key, wrap.number);
    let mut wraps: Vec<KeyWrap> = wraps.iter().filter(|other| order(other) != order(wrap)).chain([wrap]).cloned().collect();
    wraps.sort_by_key(order);
    wraps
}

/// Returns the pages of an empty table.
pub(crate) fn empty_pages(pool: PoolId) -> impl Iterator<Item = KeyPage> {
    (0..KEY_PAGES).map(move |number| KeyPage { pool, number, generation: 1, wraps: Vec::new() })
}

impl Store {
    /// Queues a change of the key table.
    pub(crate) fn change_keys(&mut self, tag: Tag, command: KeyCommand) {
        if !self.features_in_force().has(&ENCRYPTION) {
            return self.replies.push_back((tag, Err(CommandError::Invalid(Invalid::NoEncryption))));
        }
        self.keys.changes.push_back((tag, command));
    }

    /// Returns the key table.
    pub(crate) fn key_table(&self) -> KeyTable {
        self.keys.listed()
    }

    /// Returns the members that have the newest table: those that are whole. A new one gets it with its
    /// first label.
    pub(crate) fn key_members(&self) -> Vec<MemberId> {
        let shape = &self.config.shape;
        let whole = shape.numbered().filter(|(_, m)| m.state == MemberState::Present).map(|(member, _)| member);
        whole.filter(|member| !shape.is_auxiliary(*member) && !self.labels.fresh.contains(member)).collect()
    }

    /// Returns the bytes of the table, to be written to a device.
    pub(crate) fn key_table_piece(&mut self) -> BufSlice {
        let bytes = self.keys.bytes();
        self.key_piece(&bytes)
    }

    /// Returns bytes to be written to devices.
    pub(crate) fn key_piece(&mut self, bytes: &[u8]) -> BufSlice {
        let mut buf = self.bufs.take(bytes.len());
        buf.bytes_mut().iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        BufSlice::new(buf, 0..bytes.len())
    }
}
