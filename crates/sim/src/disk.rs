//! A simulated device: stable media, a volatile write cache, and what a power cut may leave of it.
//!
//! Rules, after the contract of [`millpond_device::IoKind`] and what real devices do:
//! - a write is in the cache when it completes; a flush moves what had *completed before the flush was submitted* to the media;
//! - a power cut keeps, of what was not flushed, any part in any order: a sector may keep any of its unflushed versions, not only the newest;
//! - a page of 4096 bytes tears at 512 bytes, unless the device is one that writes whole physical sectors of 4096 bytes;
//! - a write in flight may be on the media wholly, partly or not at all;
//! - a discarded range reads as zeroes, as before or as garbage, whichever kind of device it is;
//! - where a page cache is before it, what a failed flush dropped goes on being read, and no later flush writes it, until the cache is dropped, the
//!   memory is needed or the power fails.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use millpond_device::{DeviceGeometry, PageCache};

use crate::content::SECTOR;
use crate::rng::{Rng, mix};

/// Grain of device operations in bytes.
pub const PAGE: usize = 4096;
/// Sectors in a page.
const SECTORS: usize = PAGE / SECTOR;

/// A page of content.
pub type Page = Rc<[u8; PAGE]>;

/// Number of a write, in order of submission, over all devices of a machine.
pub type WriteNo = u64;

/// What a discarded or never written range reads as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Erased {
    /// Zeroes.
    Zero,
    /// As before (never written: zeroes).
    Old,
    /// Noise.
    Garbage,
}

/// What kind of device it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// A page is never torn.
    pub whole_pages: bool,
    /// What discarded ranges read as.
    pub erased: Erased,
}

/// What of the unflushed writes a power cut leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Survival {
    /// Nothing: the cache is lost.
    Nothing,
    /// Everything that had completed.
    Completed,
    /// Each page for itself: its newest version in so many percent of cases, else any, torn where the device tears.
    Each(u64),
    /// These writes and no others; one of them torn.
    Set {
        /// What stays.
        keep: BTreeSet<WriteNo>,
        /// Of this one only a part of every page and of the pages.
        torn: Option<WriteNo>,
    },
}

#[derive(Clone, Debug)]
struct Version {
    write: WriteNo,
    /// Order of completion; a flush covers those below its mark.
    done: u64,
    page: Page,
}

#[derive(Clone, Debug)]
enum Change {
    Write(Vec<Page>),
    Discard(usize),
}

#[derive(Clone, Debug)]
struct InFlight {
    write: WriteNo,
    first: usize,
    change: Change,
}

/// A device with its cache and what is under way. Clones share pages, so forking a device at every event of a trace is cheap.
#[derive(Clone, Debug)]
pub struct SimDevice {
    geometry: DeviceGeometry,
    profile: Profile,
    noise: u64,
    media: Vec<Option<Page>>,
    cache: BTreeMap<usize, Vec<Version>>,
    inflight: Vec<InFlight>,
    done: u64,
    /// Pages that were written since somebody asked for it.
    marked: Option<BTreeSet<usize>>,
    /// What the page cache calls clean and the media do not have; none where there is no page cache.
    shown: Option<BTreeMap<usize, Page>>,
    /// A page of zeros.
    zeros: Page,
}

impl PageCache for SimDevice {
    fn write_back(&mut self) {
        self.finish_flush(self.done);
    }

    fn forget(&mut self) {
        self.shown.iter_mut().for_each(BTreeMap::clear);
    }
}

impl SimDevice {
    /// A blank device; `noise` seeds what garbage looks like.
    pub fn new(geometry: DeviceGeometry, profile: Profile, noise: u64) -> SimDevice {
        let pages = geometry.size as usize / PAGE;
        SimDevice {
            geometry,
            profile,
            noise,
            media: vec![None; pages],
            cache: BTreeMap::new(),
            inflight: Vec::new(),
            done: 0,
            marked: None,
            shown: None,
            zeros: Rc::new([0; PAGE]),
        }
    }

    /// The same behind the kernel's page cache.
    #[must_use]
    pub fn buffered(self) -> SimDevice {
        SimDevice { shown: Some(BTreeMap::new()), ..self }
    }

    /// Is it behind a page cache?
    pub fn is_buffered(&self) -> bool {
        self.shown.is_some()
    }

    /// Pages that are read and that the media do not have, though no flush will write them.
    pub fn only_shown(&self) -> usize {
        self.shown.as_ref().map_or(0, BTreeMap::len)
    }

    /// The kernel needs memory: some clean pages are read from the media again.
    pub fn evict(&mut self, percent: u64, rng: &mut Rng) {
        self.shown.iter_mut().for_each(|shown| shown.retain(|_, _| !rng.percent(percent)));
    }

    /// Its size and sectors.
    pub fn geometry(&self) -> DeviceGeometry {
        self.geometry
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.media.len()
    }

    fn erased(&self, page: usize) -> Page {
        match self.profile.erased {
            Erased::Garbage => {
                let mut noise = [0; PAGE];
                for (i, word) in noise.chunks_exact_mut(8).enumerate() {
                    word.copy_from_slice(&mix(self.noise ^ (page * 512 + i) as u64).to_le_bytes());
                }
                Rc::new(noise)
            }
            Erased::Zero | Erased::Old => Rc::clone(&self.zeros),
        }
    }

    fn stable(&self, page: usize) -> Page {
        self.media.get(page).and_then(Clone::clone).unwrap_or_else(|| self.erased(page))
    }

    fn current(&self, page: usize) -> Page {
        let shown = || self.shown.as_ref().and_then(|shown| shown.get(&page)).cloned();
        let dirty = self.cache.get(&page).and_then(|versions| versions.last()).map(|v| Rc::clone(&v.page));
        dirty.or_else(shown).unwrap_or_else(|| self.stable(page))
    }

    fn put(&mut self, write: WriteNo, page: usize, content: Page) {
        self.done += 1;
        self.marked.iter_mut().for_each(|marked| _ = marked.insert(page));
        self.shown.iter_mut().for_each(|shown| _ = shown.remove(&page));
        self.cache.entry(page).or_default().push(Version { write, done: self.done, page: content });
    }

    /// True when the page was never written: a thinly provisioned device would need space for it.
    pub fn untouched(&self, page: usize) -> bool {
        self.media.get(page).is_some_and(Option::is_none) && !self.cache.contains_key(&page)
    }

    /// A write starts.
    pub fn begin_write(&mut self, write: WriteNo, first: usize, pages: Vec<Page>) {
        self.inflight.push(InFlight { write, first, change: Change::Write(pages) });
    }

    /// A discard starts.
    pub fn begin_discard(&mut self, write: WriteNo, first: usize, count: usize) {
        self.inflight.push(InFlight { write, first, change: Change::Discard(count) });
    }

    /// From now on nothing of what is discarded can be read.
    pub fn discard_for_good(&mut self) {
        if self.profile.erased == Erased::Old {
            self.profile.erased = Erased::Zero;
        }
    }

    fn take(&mut self, write: WriteNo) -> Option<InFlight> {
        let i = self.inflight.iter().position(|f| f.write == write)?;
        Some(self.inflight.remove(i))
    }

    fn contents(&self, flight: &InFlight) -> Vec<(usize, Page)> {
        match &flight.change {
            Change::Write(pages) => pages.iter().enumerate().map(|(i, page)| (flight.first + i, Rc::clone(page))).collect(),
            Change::Discard(_) if self.profile.erased == Erased::Old => Vec::new(),
            Change::Discard(count) => (flight.first..flight.first + count).map(|page| (page, self.erased(page))).collect(),
        }
    }

    /// A write or discard completes: the cache has it.
    pub fn finish(&mut self, write: WriteNo) {
        if let Some(flight) = self.take(write) {
            for (page, content) in self.contents(&flight) {
                self.put(write, page, content);
            }
        }
    }

    /// A write or discard fails: some of it may have happened all the same.
    pub fn fail(&mut self, write: WriteNo, rng: &mut Rng) {
        if let Some(flight) = self.take(write) {
            self.land_partly(&flight, rng);
        }
    }

    /// A write is acknowledged and forgotten.
    pub fn lose(&mut self, write: WriteNo) {
        self.take(write);
    }

    /// A write is acknowledged and lands elsewhere, `by` pages further on (around the end).
    pub fn misdirect(&mut self, write: WriteNo, by: usize) {
        if let Some(flight) = self.take(write) {
            for (page, content) in self.contents(&flight) {
                let wrong = (page + by) % self.media.len().max(1);
                self.put(write, wrong, content);
            }
        }
    }

    fn land_partly(&mut self, flight: &InFlight, rng: &mut Rng) {
        let how = rng.below(4);
        let contents = self.contents(flight);
        let prefix = rng.index(contents.len() + 1);
        for (i, (page, content)) in contents.into_iter().enumerate() {
            let lands = match how {
                0 => false,
                1 => true,
                2 => i < prefix,
                _ => rng.percent(50),
            };
            if lands {
                let torn = how != 1 && !self.profile.whole_pages && rng.percent(30);
                let content = if torn { tear(&self.current(page), &content, rng) } else { content };
                self.put(flight.write, page, content);
            }
        }
    }

    /// A flush starts: what its end will cover.
    pub fn flush_mark(&self) -> u64 {
        self.done
    }

    /// A flush ends: what had completed at its start is on the media.
    pub fn finish_flush(&mut self, mark: u64) {
        let media = &mut self.media;
        self.cache.retain(|page, versions| {
            let covered = versions.iter().take_while(|v| v.done <= mark).count();
            if let (Some(newest), Some(slot)) = (versions[..covered].last(), media.get_mut(*page)) {
                *slot = Some(Rc::clone(&newest.page));
            }
            versions.drain(..covered);
            !versions.is_empty()
        });
    }

    /// A flush fails and, as some kernels do, the pages it covered are dropped: half of them fall back to what the media hold.
    pub fn drop_unflushed(&mut self, mark: u64, rng: &mut Rng) {
        let shown = &mut self.shown;
        self.cache.retain(|page, versions| {
            if rng.percent(50) {
                let newest = versions.last().map(|v| Rc::clone(&v.page));
                versions.retain(|v| v.done > mark);
                if let (Some(shown), Some(newest), true) = (shown.as_mut(), newest, versions.is_empty()) {
                    shown.insert(*page, newest);
                }
            }
            !versions.is_empty()
        });
    }

    /// Reads whole pages. Where a write is under way, the old or the new content.
    pub fn read(&self, first: usize, out: &mut [u8], rng: &mut Rng) {
        for (i, bytes) in out.chunks_exact_mut(PAGE).enumerate() {
            let page = first + i;
            let racing = self.inflight.iter().find_map(|f| match &f.change {
                Change::Write(pages) if page >= f.first => pages.get(page - f.first),
                _ => None,
            });
            match racing {
                Some(new) if rng.percent(50) => bytes.copy_from_slice(&new[..]),
                _ => bytes.copy_from_slice(&self.current(page)[..]),
            }
        }
    }

    /// The daemon dies: what completed is with the kernel; of what is in flight, any part gets there. Nothing else is lost.
    pub fn kill(&mut self, rng: &mut Rng) {
        let mut flights = std::mem::take(&mut self.inflight);
        rng.shuffle(&mut flights);
        for flight in flights {
            self.land_partly(&flight, rng);
        }
    }

    /// Numbers of the writes that a power cut may lose, in order of submission.
    pub fn unflushed(&self) -> BTreeSet<WriteNo> {
        self.cache.values().flatten().map(|v| v.write).chain(self.inflight.iter().map(|f| f.write)).collect()
    }

    /// The power fails. Afterwards the cache is empty and the media hold what survived.
    pub fn power_cut(&mut self, survival: &Survival, rng: &mut Rng) {
        self.forget();
        for flight in std::mem::take(&mut self.inflight) {
            let lands = match survival {
                Survival::Nothing | Survival::Completed => false,
                Survival::Each(_) => rng.percent(60),
                Survival::Set { keep, .. } => keep.contains(&flight.write),
            };
            if lands {
                for (page, content) in self.contents(&flight) {
                    self.put(flight.write, page, content);
                }
            }
        }
        for (page, versions) in std::mem::take(&mut self.cache) {
            let Some(survivor) = self.survivor(page, &versions, survival, rng) else { continue };
            if let Some(slot) = self.media.get_mut(page) {
                *slot = Some(survivor);
            }
        }
    }

    fn survivor(&self, page: usize, versions: &[Version], survival: &Survival, rng: &mut Rng) -> Option<Page> {
        match survival {
            Survival::Nothing => None,
            Survival::Completed => versions.last().map(|v| Rc::clone(&v.page)),
            Survival::Each(newest) => {
                let any = |rng: &mut Rng| match rng.index(versions.len() + 1) {
                    0 => self.stable(page),
                    i => Rc::clone(&versions[i - 1].page),
                };
                let keep = if rng.percent(*newest) { Rc::clone(&versions.last()?.page) } else { any(rng) };
                if self.profile.whole_pages || !rng.percent(25) {
                    return Some(keep);
                }
                let other = any(rng);
                Some(tear(&other, &keep, rng))
            }
            Survival::Set { keep, torn } => {
                let newest = versions.iter().rev().find(|v| keep.contains(&v.write))?;
                if Some(newest.write) != *torn {
                    return Some(Rc::clone(&newest.page));
                }
                let below = versions.iter().rev().find(|v| keep.contains(&v.write) && v.done < newest.done);
                let old = below.map_or_else(|| self.stable(page), |v| Rc::clone(&v.page));
                match rng.below(3) {
                    0 => Some(old),
                    1 if !self.profile.whole_pages => Some(tear(&old, &newest.page, rng)),
                    _ => Some(Rc::clone(&newest.page)),
                }
            }
        }
    }

    /// Bits rot in one page that was written: a bit, a few bytes or a sector. Says where; `None` when nothing was ever written.
    pub fn rot(&mut self, rng: &mut Rng) -> Option<String> {
        let written: Vec<usize> = (0..self.media.len()).filter(|page| !self.untouched(*page)).collect();
        let page = *written.get(rng.index(written.len()))?;
        Some(self.rot_page(page, rng))
    }

    /// From now on it is noted which pages are written.
    pub fn mark(&mut self) {
        self.marked = Some(BTreeSet::new());
    }

    /// Pages that were written since.
    pub fn since_mark(&self) -> impl Iterator<Item = usize> + '_ {
        self.marked.iter().flatten().copied()
    }

    /// Bits rot in this page.
    pub fn rot_page(&mut self, page: usize, rng: &mut Rng) -> String {
        let mut bytes = *self.current(page);
        let at = rng.index(PAGE);
        let what = match rng.below(3) {
            0 => {
                bytes[at] ^= 1 << rng.below(8);
                "a bit"
            }
            1 => {
                let start = at / SECTOR * SECTOR;
                bytes[start..start + SECTOR].iter_mut().for_each(|b| *b = b.wrapping_add(rng.next() as u8 | 1));
                "a sector"
            }
            _ => {
                bytes.iter_mut().skip(at).take(8).for_each(|b| *b ^= 0x55);
                "some bytes"
            }
        };
        let content = Rc::new(bytes);
        match self.cache.get_mut(&page).and_then(|versions| versions.last_mut()) {
            Some(version) => version.page = content,
            None => self.media[page] = Some(content),
        }
        format!("{what} at byte {:#x}", page * PAGE + at)
    }
}

/// A page with some sectors of `new` and the rest of `old`.
fn tear(old: &Page, new: &Page, rng: &mut Rng) -> Page {
    let mut page = **old;
    let cut = rng.index(SECTORS + 1);
    let how = rng.below(3);
    for s in 0..SECTORS {
        let takes_new = match how {
            0 => s < cut,
            1 => s >= cut,
            _ => rng.percent(50),
        };
        if takes_new {
            page[s * SECTOR..(s + 1) * SECTOR].copy_from_slice(&new[s * SECTOR..(s + 1) * SECTOR]);
        }
    }
    Rc::new(page)
}

#[cfg(test)]
mod tests;
