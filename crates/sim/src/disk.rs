//! A simulated device: stable media and a volatile write cache, with the possible outcomes of a
//! power cut.
//!
//! Rules, from the contract of [`millpond_block::IoKind`] and the behaviour of real devices:
//! - A completed write is in the cache. A flush moves writes that *completed before the flush was
//!   submitted* to the media.
//! - A power cut keeps any part of the unflushed data, in any order: a sector may keep any of its
//!   unflushed versions, not only the newest.
//! - A 4096-byte page tears at 512 bytes, unless the device writes whole physical sectors of 4096
//!   bytes.
//! - A write in flight may be on the media wholly, partly or not at all.
//! - A discarded range reads as zeroes, as before or as garbage, depending on the device.
//! - Behind a page cache, reads still return pages that a failed flush dropped, and no later flush
//!   writes them, until the cache is dropped, the kernel needs the memory or the power fails.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use millpond_block::DeviceGeometry;
use millpond_device::PageCache;

use crate::content::SECTOR;
use crate::rng::{Rng, mix};

/// Granularity of device operations, in bytes.
pub const PAGE: usize = 4096;
/// Sectors in a page.
const SECTORS: usize = PAGE / SECTOR;

pub type Page = Rc<[u8; PAGE]>;

/// Number of a write, in order of submission over all devices of a machine.
pub type WriteNo = u64;

/// Content of discarded or never written ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Erased {
    /// Zeroes.
    Zero,
    /// As before the discard; zeroes if never written.
    Old,
    /// Noise.
    Garbage,
}

/// Properties of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Pages never tear.
    pub whole_pages: bool,
    pub erased: Erased,
}

/// Which unflushed writes survive a power cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Survival {
    /// None: the cache is lost.
    Nothing,
    /// All completed writes.
    Completed,
    /// Decided page by page: the newest version in this percentage of cases, else any version,
    /// sometimes torn on devices that tear.
    Each(u64),
    /// Exactly these writes, except that one of them may be torn.
    Set {
        /// The writes that survive.
        keep: BTreeSet<WriteNo>,
        /// The write of which any part of each page, and of its pages, survives.
        torn: Option<WriteNo>,
    },
}

#[derive(Clone, Debug)]
struct Version {
    write: WriteNo,
    /// Order of completion; a flush covers versions up to its mark.
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

/// A device with its cache and its operations in flight. Clones share pages, so forking a device at
/// every event of a trace is cheap.
#[derive(Clone, Debug)]
pub struct SimDevice {
    geometry: DeviceGeometry,
    profile: Profile,
    noise: u64,
    media: Vec<Option<Page>>,
    cache: BTreeMap<usize, Vec<Version>>,
    inflight: Vec<InFlight>,
    done: u64,
    /// Pages written since [`SimDevice::mark`].
    marked: Option<BTreeSet<usize>>,
    /// Pages that the page cache holds as clean though the media differ; `None` without a page
    /// cache.
    shown: Option<BTreeMap<usize, Page>>,
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
    /// Makes a blank device; `noise` is the seed of its garbage.
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

    /// Puts the kernel's page cache in front of the device.
    #[must_use]
    pub fn buffered(self) -> SimDevice {
        SimDevice { shown: Some(BTreeMap::new()), ..self }
    }

    /// Returns whether the device is behind a page cache.
    pub fn is_buffered(&self) -> bool {
        self.shown.is_some()
    }

    /// Number of pages that exist in the page cache only and that no flush will write.
    pub fn only_shown(&self) -> usize {
        self.shown.as_ref().map_or(0, BTreeMap::len)
    }

    /// Drops `percent` of the clean pages, as a kernel does that needs memory; they are read from
    /// the media again.
    pub fn evict(&mut self, percent: u64, rng: &mut Rng) {
        self.shown.iter_mut().for_each(|shown| shown.retain(|_, _| !rng.percent(percent)));
    }

    /// Returns size and sector sizes.
    pub fn geometry(&self) -> DeviceGeometry {
        self.geometry
    }

    /// Returns the number of pages.
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

    /// Returns whether a page was never written: a thin-provisioned device would have to allocate
    /// it.
    pub fn untouched(&self, page: usize) -> bool {
        self.media.get(page).is_some_and(Option::is_none) && !self.cache.contains_key(&page)
    }

    /// Starts a write.
    pub fn begin_write(&mut self, write: WriteNo, first: usize, pages: Vec<Page>) {
        self.inflight.push(InFlight { write, first, change: Change::Write(pages) });
    }

    /// Starts a discard.
    pub fn begin_discard(&mut self, write: WriteNo, first: usize, count: usize) {
        self.inflight.push(InFlight { write, first, change: Change::Discard(count) });
    }

    /// From now on discards erase: a device that kept the old content reads zeroes.
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

    /// Completes a write or discard: its pages are in the cache.
    pub fn finish(&mut self, write: WriteNo) {
        if let Some(flight) = self.take(write) {
            for (page, content) in self.contents(&flight) {
                self.put(write, page, content);
            }
        }
    }

    /// Fails a write or discard, some of which may have happened all the same.
    pub fn fail(&mut self, write: WriteNo, rng: &mut Rng) {
        if let Some(flight) = self.take(write) {
            self.land_partly(&flight, rng);
        }
    }

    /// Drops a write, although it is acknowledged.
    pub fn lose(&mut self, write: WriteNo) {
        self.take(write);
    }

    /// Completes a write at the wrong place, `by` pages further on, wrapping at the end.
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

    /// Starts a flush: returns the mark that it covers at its end.
    pub fn flush_mark(&self) -> u64 {
        self.done
    }

    /// Ends a flush: versions up to `mark` are on the media.
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

    /// Fails a flush. As some kernels do, drops half of the pages that it covered; those read from
    /// the media again, or stay visible in a page cache.
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

    /// Reads whole pages. Pages with a write in flight read as their old or their new content.
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

    /// The daemon dies: completed writes stay in the cache, and any part of the writes in flight
    /// reaches it. Nothing else is lost.
    pub fn kill(&mut self, rng: &mut Rng) {
        let mut flights = std::mem::take(&mut self.inflight);
        rng.shuffle(&mut flights);
        for flight in flights {
            self.land_partly(&flight, rng);
        }
    }

    /// Returns the writes that a power cut may lose.
    pub fn unflushed(&self) -> BTreeSet<WriteNo> {
        self.cache.values().flatten().map(|v| v.write).chain(self.inflight.iter().map(|f| f.write)).collect()
    }

    /// The power fails: the cache is empty afterwards, and the media hold the survivors.
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

    /// Corrupts one written page: a bit, a few bytes or a sector. Returns a description, or `None`
    /// if nothing was ever written.
    pub fn rot(&mut self, rng: &mut Rng) -> Option<String> {
        let written: Vec<usize> = (0..self.media.len()).filter(|page| !self.untouched(*page)).collect();
        let page = *written.get(rng.index(written.len()))?;
        Some(self.rot_page(page, rng))
    }

    /// Starts recording which pages are written.
    pub fn mark(&mut self) {
        self.marked = Some(BTreeSet::new());
    }

    /// Pages written since [`SimDevice::mark`].
    pub fn since_mark(&self) -> impl Iterator<Item = usize> + '_ {
        self.marked.iter().flatten().copied()
    }

    /// Corrupts a bit, a few bytes or a sector of this page, and returns a description.
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

/// Returns a page with some sectors of `new` and the rest of `old`.
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
