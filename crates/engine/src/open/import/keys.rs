//! The key table that an import read, and the copies of its pages that have to be written again.
//!
//! Of each page the copy with the highest generation counts: copies that a crash left behind are older. A
//! device that was missing may have a page that was written while it was about to be given up, and never
//! acknowledged. So only devices that the labels call whole count, as with roots. If none of them has a
//! copy, the newest one on the others is taken, unless a device is missing that may have a newer one.

use std::collections::{BTreeMap, BTreeSet};

use millpond_block::{Buf, BufSlice, ByteRange, DeviceError, MemberId};
use millpond_format::{DeviceId, ENCRYPTION, KEY_PAGES, KEY_TABLE_OFFSET, KeyPage, MemberState, PoolId, SECTOR_BYTES, second_area};

use super::{Import, ImportIo};
use crate::store::{Keys, TABLE_BYTES};

/// The copies of the key table.
#[derive(Debug, Default)]
pub(super) struct KeyCopies {
    /// Pages by member and area, false for the first; `None` where a page is damaged.
    read: BTreeMap<(MemberId, bool), Vec<Option<KeyPage>>>,
    /// Some page could not be read at all.
    unread: bool,
    /// Members whose copies count.
    whole: BTreeSet<MemberId>,
    /// The pages that count; `None` if unknown.
    pages: Vec<Option<KeyPage>>,
    outdated: BTreeSet<u16>,
    needed: BTreeMap<MemberId, DeviceId>,
}

impl KeyCopies {
    /// Returns copies of a page on members that are whole, or on the others.
    fn copies(&self, number: usize, whole: bool) -> impl Iterator<Item = (MemberId, &KeyPage)> {
        let of = self.read.iter().filter(move |((member, _), _)| self.whole.contains(member) == whole);
        of.filter_map(move |((member, _), pages)| Some((*member, pages.get(number)?.as_ref()?)))
    }

    /// Chooses the pages that count. `complete`: no device is missing, and all were read.
    fn choose(&mut self, complete: bool, device_of: impl Fn(MemberId) -> Option<DeviceId>) {
        let newest = |keys: &KeyCopies, number, whole| {
            let copies = keys.copies(number, whole).map(|(_, page)| page);
            // of different pages with one generation any counts: none of them was acknowledged
            copies.reduce(|best, page| if page.generation > best.generation { page } else { best }).cloned()
        };
        for number in 0..usize::from(KEY_PAGES) {
            let mut page = newest(&*self, number, true);
            if page.is_none() && complete {
                page = newest(&*self, number, false);
                self.outdated.extend(page.as_ref().map(|page| page.number));
            }
            if page.is_none() {
                let holders: Vec<MemberId> = self.copies(number, false).map(|(member, _)| member).collect();
                self.needed.extend(holders.into_iter().filter_map(|member| Some((member, device_of(member)?))));
            }
            self.pages.push(page);
        }
    }

    /// Returns the pages that whole members lack in an area, or have in another form.
    fn lacking(&self, second: bool) -> impl Iterator<Item = (MemberId, &KeyPage)> {
        let of = move |member: MemberId| {
            let read = self.read.get(&(member, second));
            let copy = move |number: u16| read.and_then(|pages| pages.get(usize::from(number))?.as_ref());
            self.pages.iter().flatten().filter(move |page| copy(page.number) != Some(*page)).map(move |page| (member, page))
        };
        self.whole.iter().copied().flat_map(of)
    }

    /// Returns whether a copy has to be written again.
    pub(super) fn lack(&self) -> bool {
        [false, true].into_iter().any(|second| self.lacking(second).next().is_some())
    }

    /// Returns the table for the pool.
    pub(super) fn take(&mut self) -> Keys {
        let KeyCopies { pages, outdated, needed, .. } = std::mem::take(self);
        Keys::read(pages, outdated, needed)
    }
}

impl Import {
    /// Starts reading the key table of each device, if the pool has one.
    pub(super) fn read_key_tables(&mut self) {
        let (Some(rings), Some(config)) = (&self.rings, &self.config) else { return };
        if !config.features.has(&ENCRYPTION) {
            return;
        }
        self.keys.whole = rings.members().into_iter().collect();
        let outdated = config.shape.numbered().filter(|(_, m)| m.state == MemberState::Filling).map(|(member, _)| member);
        let outdated = outdated.filter(|member| !config.shape.is_auxiliary(*member));
        for member in self.keys.whole.iter().copied().chain(outdated) {
            for (second, area) in [(false, 0), (true, second_area(config.size_of(member)))] {
                let range = ByteRange { offset: area + KEY_TABLE_OFFSET, length: TABLE_BYTES as u64 };
                self.io.read_raw(ImportIo::Keys(member, second), member, range, &mut self.bufs);
            }
        }
    }

    /// Takes in the key table in an area of a member. If it cannot be read as a whole, its pages are read
    /// one by one.
    pub(super) fn keys_read(&mut self, member: MemberId, second: bool, result: Result<(), DeviceError>, buf: Option<&Buf>) {
        let Some(config) = &self.config else { return };
        let pages = match buf.filter(|_| result.is_ok()).and_then(|buf| buf.bytes().get(..TABLE_BYTES)) {
            Some(bytes) => (0..).zip(bytes.chunks_exact(SECTOR_BYTES)).map(|(number, sector)| page_of(config.id, number, sector)).collect(),
            None => {
                let area = if second { second_area(config.size_of(member)) } else { 0 };
                for number in 0..KEY_PAGES {
                    let range = ByteRange { offset: area + KeyPage::offset(number), length: SECTOR_BYTES as u64 };
                    self.io.read_raw(ImportIo::KeyPage(member, second, number), member, range, &mut self.bufs);
                }
                vec![None; usize::from(KEY_PAGES)]
            }
        };
        self.keys.read.insert((member, second), pages);
    }

    /// Takes in a page that was read alone.
    pub(super) fn key_page_read(
        &mut self,
        member: MemberId,
        second: bool,
        number: u16,
        result: Result<(), DeviceError>,
        buf: Option<&Buf>,
    ) {
        let Some(pool) = self.config.as_ref().map(|config| config.id) else { return };
        let sector = buf.filter(|_| result.is_ok()).and_then(|buf| buf.bytes().get(..SECTOR_BYTES));
        self.keys.unread |= sector.is_none();
        let place = self.keys.read.get_mut(&(member, second)).and_then(|pages| pages.get_mut(usize::from(number)));
        if let (Some(place), Some(sector)) = (place, sector) {
            *place = page_of(pool, number, sector);
        }
    }

    /// Chooses the pages that count, once all copies are read.
    pub(super) fn choose_keys(&mut self) {
        let Some(config) = &self.config else { return };
        if !config.features.has(&ENCRYPTION) || !self.keys.pages.is_empty() {
            return;
        }
        let needed = config.shape.numbered().filter(|(member, m)| m.state != MemberState::Gone && !config.shape.is_auxiliary(*member));
        let was_read = |member: MemberId| [false, true].iter().all(|second| self.keys.read.contains_key(&(member, *second)));
        let complete = !self.keys.unread && needed.map(|(member, _)| member).all(was_read);
        let device_of = |member: MemberId| config.shape.member(member).map(|m| m.device);
        self.keys.choose(complete, device_of);
    }

    /// Writes pages to an area of each whole device that lacks them.
    pub(super) fn mend_keys(&mut self, second: bool) {
        let Some(config) = &self.config else { return };
        let mut writes = Vec::new();
        for (member, page) in self.keys.lacking(second) {
            let mut buf = self.bufs.take(SECTOR_BYTES);
            if let Some(to) = buf.bytes_mut().get_mut(..SECTOR_BYTES) {
                to.copy_from_slice(&page.encode());
            }
            let area = if second { second_area(config.size_of(member)) } else { 0 };
            writes.push((member, area + KeyPage::offset(page.number), BufSlice::new(buf, 0..SECTOR_BYTES)));
        }
        if !writes.is_empty() {
            self.io.write_raw(ImportIo::MendKeys, writes);
        }
    }
}

/// Decodes a page of a pool with this number.
fn page_of(pool: PoolId, number: u16, sector: &[u8]) -> Option<KeyPage> {
    KeyPage::decode(sector).ok().filter(|page| (page.pool, page.number) == (pool, number))
}
