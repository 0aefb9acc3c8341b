//! Reads from cache devices, copies to them, and their attachment.
//!
//! Guests never wait for the cache: copies are written when devices are idle, and blocks that come
//! too fast are not copied.

use millpond_block::{Buf, BufSlice, DeviceError, MemberId};
use millpond_format::{Addr, Class, Coding, Filling, MemberState, SegmentId, crc32c};

use super::op::{Op, Part, Work};
use super::requests::Requests;
use super::state::Pool;
use crate::cache::{CacheSlot, Scan, SegmentWrite};
use crate::io::{Failing, Replica};
use crate::space::AllocClass;
use crate::store::{Context, Store};
use crate::{DeviceTrouble, Planted, PoolState};

/// Returns whether a block in the cache is plain and adjacent to the blocks of a read.
pub(super) fn follows(first: CacheSlot, blocks: &[(Addr, u32)], cache_slot: CacheSlot, addr: Addr) -> bool {
    let plain = |addr: &Addr| addr.coding() == Coding::Raw;
    let next = CacheSlot { unit: first.unit + 8 * blocks.len() as u32, ..first };
    cache_slot == next && plain(&addr) && blocks.iter().all(|(addr, _)| plain(addr))
}

impl Requests {
    /// Attaches cache devices that are present and not in use yet.
    pub(super) fn attach_caches(&mut self, store: &mut Store) {
        if store.tuning.read_only || store.state != PoolState::Online || !store.config.shape.has(Class::Cache) {
            return;
        }
        let shape = &store.config.shape;
        for (member, known) in shape.numbered() {
            let there = known.state == MemberState::Present && store.io.health.is_up(member) && shape.is_cache(member);
            if there && !self.cache.has(member) {
                self.cache.attach(member, known.device, u64::from(known.extents) * shape.extent_bytes);
            }
        }
    }

    /// Scans cache devices for their content, a few pages at a time.
    pub(super) fn step_cache(&mut self, store: &mut Store) {
        if store.closing.is_some() {
            return; // nothing waits for the rest of the scan
        }
        while let Some((scan, member, range)) = self.cache.next_scan() {
            store.io.read_raw(Context::CacheScan(scan), member, range, &mut store.bufs);
        }
    }

    /// Starts reading pages of the cache.
    pub(super) fn read_cached(&mut self, store: &mut Store, op: u32, part: u32, cache_slot: CacheSlot, pages: u32) {
        let place = self.cache.begin_read(cache_slot, pages);
        let (member, range) = place.expect("INV-CACHE-2: a segment of the cache is there until its reads have ended");
        store.io.read_raw(Context::Cached { op, part, cache_slot }, member, range, &mut store.bufs);
    }

    /// Returns the blocks in cache pages that were read, if all of them are right.
    fn sound_copy(
        &mut self,
        store: &mut Store,
        blocks: &[(Addr, u32)],
        cache_slot: CacheSlot,
        buf: Buf,
        trusting: bool,
    ) -> Option<BufSlice> {
        let skip = (cache_slot.unit % 8) as usize * 512;
        let bytes: usize = blocks.iter().map(|(addr, _)| addr.units() as usize * 512).sum();
        let stored = buf.bytes().get(skip..skip + bytes).unwrap_or_default();
        let mut rest = stored;
        let sound = blocks.iter().all(|(addr, crc)| {
            let (block, others) = rest.split_at(rest.len().min(addr.units() as usize * 512));
            rest = others;
            trusting || crc32c(block) == *crc
        });
        match blocks.first().map(|(addr, _)| addr.coding()) {
            Some(Coding::Raw) if sound => return Some(BufSlice::new(buf, skip..skip + bytes)),
            Some(coding) if sound => {
                let piece = self.unpack(store, stored, coding);
                store.bufs.give(buf);
                return piece;
            }
            _ => {}
        }
        store.bufs.give(buf);
        None
    }

    /// Returns whether blocks of a segment may be copied to devices of class cache.
    pub(super) fn may_copy(&self, store: &Store, segment: SegmentId) -> bool {
        !self.cache.is_empty() && store.core.space.layout.alloc_class(segment) != AllocClass::Special
    }

    /// Copies a block that the cache does not have, if it was read before.
    pub(super) fn copy_to_cache(&mut self, store: &mut Store, addr: Addr, stored: &[u8]) {
        store.metrics.cache_misses += 1;
        if store.state != PoolState::Online || !self.cache.wants(addr) {
            return;
        }
        store.metrics.cache_fill_bytes += stored.len() as u64;
        if let Some(write) = self.cache.take(addr, stored, store.now.0, &mut store.bufs) {
            write_cache(store, write);
        }
    }

    /// Writes what was copied and not written yet, before the pool is closed.
    pub(super) fn keep_cache(&mut self, store: &mut Store) {
        if let Some(write) = self.cache.seal() {
            write_cache(store, write);
        }
    }
}

impl Pool {
    /// Handles a read of a page of a cache device.
    pub(super) fn cache_scanned(&mut self, scan: Scan, result: Result<(), DeviceError>, buf: Option<Buf>) {
        let page = buf.as_ref().filter(|_| result.is_ok()).map(|buf| buf.bytes()).and_then(|bytes| bytes.get(..4096));
        let begun = Filling { incarnation: self.store.incarnation, time: self.store.now.0 };
        let write = self.requests.cache.scanned(scan, page, begun);
        buf.into_iter().for_each(|buf| self.store.bufs.give(buf));
        if let Some(write) = write {
            write_cache(&mut self.store, write);
        }
        if let Err(error) = result
            && let Some(member) = self.requests.cache.failed(scan.drive, error)
        {
            self.give_cache_up(member, error);
        }
    }

    /// Handles a read of cache pages. When the content is not what the map says, the read is
    /// repeated without the cache (INV-CACHE-1).
    pub(super) fn cached_read(&mut self, id: u32, part: u32, cache_slot: CacheSlot, result: Result<(), DeviceError>, buf: Option<Buf>) {
        self.requests.cache.ended(cache_slot);
        let trusting = self.store.tuning.plants(Planted::TrustCache);
        let Some(Op { work: Work::Read(work), .. }) = self.requests.ops.get_mut(id) else { return };
        let Some(place) = work.parts.get_mut(part as usize) else { return };
        let Part::Cached { blocks, .. } = &*place else { return };
        let (blocks, remembered) = (blocks.clone(), work.remembered);
        let piece = match (result, buf) {
            (Ok(()), Some(buf)) => self.requests.sound_copy(&mut self.store, &blocks, cache_slot, buf, trusting),
            (_, buf) => {
                buf.into_iter().for_each(|buf| self.store.bufs.give(buf));
                None
            }
        };
        match (piece, result) {
            (Some(piece), _) => {
                self.store.metrics.cache_hits += blocks.len() as u64;
                self.store.metrics.cache_hit_bytes += blocks.iter().map(|(addr, _)| u64::from(addr.units()) * 512).sum::<u64>();
                if let Some(volume) = remembered {
                    self.requests.remember(&mut self.store, volume, blocks.iter().map(|(addr, _)| *addr), &piece);
                }
                if let Some(Op { work: Work::Read(work), .. }) = self.requests.ops.get_mut(id)
                    && let Some(place) = work.parts.get_mut(part as usize)
                {
                    *place = Part::Ready(piece);
                }
            }
            (None, result) => {
                if let Some(Op { work: Work::Read(work), .. }) = self.requests.ops.get_mut(id) {
                    work.again = true;
                }
                let failed = match result {
                    Err(error) => self.requests.cache.failed(cache_slot.drive, error).map(|member| (member, error)),
                    Ok(()) => {
                        let errors = self.requests.cache.wrong(cache_slot).and_then(|member| self.store.io.errors.get_mut(member.index()));
                        errors.into_iter().for_each(|errors| *errors += 1);
                        None
                    }
                };
                if let Some((member, error)) = failed {
                    self.give_cache_up(member, error);
                }
            }
        }
        self.requests.release(&mut self.store, id);
    }

    /// Handles the end of a write to the cache.
    pub(super) fn cache_written(&mut self, scan: Scan, result: Result<(), DeviceError>) {
        if let Some(member) = self.requests.cache.written(scan, result, self.store.now.0)
            && let Err(error) = result
        {
            self.give_cache_up(member, error);
        }
    }

    /// Gives up a cache device that failed.
    fn give_cache_up(&mut self, member: MemberId, error: DeviceError) {
        self.requests.cache.detach(member, &mut self.store.bufs);
        let why = DeviceTrouble::Failed(error);
        self.store.io.lose(member, why);
        if matches!(self.store.state, PoolState::Online | PoolState::Closing) {
            self.device_failed(Failing { member, replica: Replica::Current, why });
        }
    }
}

pub(crate) fn write_cache(store: &mut Store, write: SegmentWrite) {
    store.io.write_loose(Context::CacheWrite(write.scan), write.member, write.offset, write.piece);
}
