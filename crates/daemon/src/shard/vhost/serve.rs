//! The shard's side of vhost-user: starts and ends exports, carries out orders, runs queues.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use millpond_api::GuestIo;
use millpond_block::{Completion, Features, Geometry, Tag};
use millpond_device::WatchId;
use millpond_engine::Target;
use millpond_export::vhost_user::{Device, Limits, Memory, QueueSetup, Signal};

use super::error::GuestError;
use super::guest::{Guest, wake};
use super::order::{Answer as OrderAnswer, Order, Orders, What};
use super::spec::VhostUserExport;
use super::stop::Stop;
use super::table::{GUEST, VhostExport};
use super::talk::Talk;
use crate::budget::{PoolBudget, Purse};
use crate::shard::connection::offer;
use crate::shard::error::ShardError;
use crate::shard::listen;
use crate::shard::load::Meter;
use crate::shard::message::Answer;
use crate::shard::pool::Pool;
use crate::shard::report::{ExportId, ExportInfo};
use crate::shard::serve::{LINGER_NANOS, need_descriptors};
use crate::shard::shard::Shard;

/// Descriptors of an export, and of a guest with one queue.
const VHOST_DESCRIPTORS: u64 = 12;
/// Hex digits of the pool's identity in a serial number, which has room for 20 characters.
const POOL_DIGITS: usize = 8;

impl<P: Pool> Shard<P> {
    /// Starts serving over vhost-user.
    pub(in crate::shard) fn export_vhost(&mut self, spec: VhostUserExport) -> Result<ExportInfo, ShardError> {
        if self.exports.contains_key(&spec.id) || self.vhost.contains(spec.id) {
            return Err(ShardError::ExportExists(spec.id));
        }
        if self.pool.geometry(spec.target).is_none() {
            return Err(ShardError::NoTarget(spec.target));
        }
        need_descriptors(VHOST_DESCRIPTORS)?;
        let failed = |source| ShardError::Listen { address: spec.unix.display().to_string(), source };
        let (socket, file) = listen::unix(&spec.unix, spec.access).map_err(failed)?;
        let stop = Arc::new(Stop::new(socket));
        let orders = Orders { export: spec.id, sender: self.vhost.sender.clone(), waker: self.ring.waker() };
        Talk::spawn(orders, Arc::clone(&stop), spec.queues).map_err(ShardError::Start)?;
        let id = spec.id;
        let export = VhostExport { spec, file: Some(file), stop, guest: None, past: GuestIo::default(), closing: None };
        let info = export.info(&self.vhost.guests);
        self.vhost.exports.insert(id, export);
        Ok(info)
    }

    /// Stops serving: requests in flight are answered, then the front end is disconnected.
    pub(in crate::shard) fn unexport_vhost(&mut self, id: ExportId, answer: Option<Answer<()>>) {
        let Some(export) = self.vhost.exports.get_mut(&id) else { return };
        if let Some(waiting) = &mut export.closing {
            return waiting.extend(answer);
        }
        export.closing = Some(answer.into_iter().collect());
        export.file = None;
        // The thread sees the end of its sockets, has the guest detached, and reports that it has
        // ended.
        export.stop.end();
    }

    /// Carries out the orders of the threads.
    pub(in crate::shard) fn take_orders(&mut self) {
        // The sender in `vhost` keeps the channel open.
        while let Ok(Order { export, what }) = self.vhost.orders.try_recv() {
            self.carry_out(export, what);
        }
    }

    fn carry_out(&mut self, id: ExportId, what: What) {
        // An order is carried out even when its sender does not wait for the answer any more.
        match what {
            What::Attach { peer, answer } => drop(answer.send(self.attach(id, peer))),
            What::Offer { fresh, answer } => drop(answer.send(self.offer_export(id, fresh).ok_or(GuestError::ExportClosing))),
            What::Ended => self.ended(id),
            What::Detach(answer) => self.detach(id, answer),
            What::Start { index, setup, kick, answer } => drop(answer.send(self.start_queue(id, index, &setup, kick))),
            What::Stop { index, answer } => {
                let Some((place, guest)) = self.vhost.guest_of(id) else { return drop(answer.send(Err(GuestError::ExportClosing))) };
                let kick = guest.kicks.remove(&index);
                guest.device.stop(index);
                guest.stops.push((index, answer));
                self.throttles.hurry(Some(guest.target));
                // Requests that a predecessor left are done before the queue comes to rest.
                self.vhost.heat(place);
                self.unwatch(kick);
                self.settle_guest(place);
            }
            what => {
                let Some((_, guest)) = self.vhost.guest_of(id) else { return };
                match what {
                    What::Shared(guard) => guest.shared.push(guard),
                    What::Memory(memory, guards, answer) => {
                        guest.guards = guards;
                        let exchanged = guest.device.set_memory(memory).map_err(|(error, _)| GuestError::Queue(error));
                        let _ = answer.send(exchanged);
                    }
                    What::Log(log, answer) => drop(answer.send(Ok(guest.device.set_log(log)))),
                    What::Features(features) => guest.device.set_features(features),
                    What::WriteCache(on) => guest.device.set_write_cache(on),
                    What::Signal { index, signal, fd } => {
                        // There may be completions from before the descriptor was set. A needless
                        // notification only makes the guest look.
                        if let (Signal::Call, Some(call)) = (signal, &fd) {
                            wake(call);
                        }
                        let table = if signal == Signal::Call { &mut guest.calls } else { &mut guest.alarms };
                        match fd {
                            Some(fd) => table.insert(index, fd),
                            None => table.remove(&index),
                        };
                    }
                    What::Channel(fd) => guest.channel = Some(fd),
                    _ => {}
                }
            }
        }
    }

    /// Returns geometry and features of an export, and notes what its guest knows. `fresh`: it
    /// has read no configuration before.
    fn offer_export(&mut self, id: ExportId, fresh: bool) -> Option<(Geometry, Features)> {
        let export = self.vhost.exports.get(&id)?;
        let (geometry, features) = offer(&self.pool, export.spec.target, export.spec.read_only);
        let mut released = false;
        if let Some((_, guest)) = self.vhost.guest_of(id) {
            guest.known_size = geometry.size;
            guest.known_write_cache = features.write_cache;
            // A front end that got a message about a change reads the configuration again, and need
            // not pass it on to the guest.
            released = fresh && features.write_cache && !guest.got_message;
            if released {
                guest.device.set_promised(false);
            }
        }
        if let Some(export) = self.vhost.exports.get_mut(&id).filter(|_| released) {
            export.spec.promised = false;
        }
        Some((geometry, features))
    }

    fn start_queue(&mut self, id: ExportId, index: usize, setup: &QueueSetup, kick: Arc<OwnedFd>) -> Result<(), GuestError> {
        let (place, guest) = self.vhost.guest_of(id).ok_or(GuestError::ExportClosing)?;
        let left = guest.device.start(index, setup).map_err(GuestError::Queue)?;
        if left > 0 {
            tracing::info!(export = %id, queue = index, requests = left, "requests in flight are repeated");
        }
        let watch = self.ring.watch(kick);
        guest.kicks.insert(index, watch);
        self.vhost.kicks.insert(watch, place);
        // There may be requests from before the kicks were watched, or left by a predecessor.
        self.vhost.heat(place);
        Ok(())
    }

    fn attach(&mut self, id: ExportId, peer: String) -> Result<(), GuestError> {
        let Some(export) = self.vhost.exports.get(&id).filter(|export| export.closing.is_none()) else {
            return Err(GuestError::ExportClosing);
        };
        if export.guest.is_some() {
            return Err(GuestError::Occupied);
        }
        let (target, read_only, promised) = (export.spec.target, export.spec.read_only, export.spec.promised);
        let (geometry, features) = offer(&self.pool, target, read_only);
        let pool = self.pool.pool().map(|pool| pool.id.to_string()).unwrap_or_default();
        let serial = format!("{}-{}", pool.get(..POOL_DIGITS).unwrap_or(&pool), number_of(target));
        tracing::debug!(export = %id, peer, serial, "front end connected");
        self.last_client += 1;
        let index = self.vhost.guests.vacant_key() as u32; // exports are far fewer
        let mut device = Device::new(GUEST | index, &serial, Limits::default());
        device.set_promised(promised);
        let guest = Guest {
            export: id,
            target,
            read_only,
            number: self.last_client,
            peer,
            since: self.wall,
            device,
            meter: Meter::default(),
            purse: Purse::new(self.memory.asker()),
            kicks: HashMap::new(),
            calls: HashMap::new(),
            alarms: HashMap::new(),
            channel: None,
            known_size: geometry.size,
            known_write_cache: features.write_cache,
            got_message: false,
            stops: Vec::new(),
            leaving: None,
            patient_until: None,
            hot: false,
            guards: Vec::new(),
            shared: Vec::new(),
            lost: false,
        };
        self.vhost.guests.insert(guest);
        if let Some(export) = self.vhost.exports.get_mut(&id) {
            export.guest = Some(index);
        }
        Ok(())
    }

    fn detach(&mut self, id: ExportId, answer: OrderAnswer<Memory>) {
        let now = self.now;
        let Some((index, guest)) = self.vhost.guest_of(id) else { return drop(answer.send(Err(GuestError::ExportClosing))) };
        guest.leaving = Some(answer);
        guest.device.set_alone();
        // what is on record is repeated for the next front end, anything else is answered with an error
        let patience = if guest.device.has_record() { 0 } else { LINGER_NANOS };
        guest.patient_until = Some(now + patience);
        self.throttles.hurry(Some(guest.target));
        let kicks: Vec<(usize, WatchId)> = guest.kicks.drain().collect();
        for (queue, kick) in kicks {
            if let Some(guest) = self.vhost.guest_mut(index) {
                guest.device.stop(queue);
            }
            self.unwatch(Some(kick));
        }
        self.vhost.heat(index);
        self.settle_guest(index);
    }

    fn unwatch(&mut self, kick: Option<WatchId>) {
        if let Some(kick) = kick {
            self.vhost.kicks.remove(&kick);
            self.ring.unwatch(kick);
        }
    }

    /// Removes an export whose thread has ended.
    fn ended(&mut self, id: ExportId) {
        let Some(mut export) = self.vhost.exports.remove(&id) else { return };
        self.past.add(&export.past);
        match export.closing.take() {
            Some(waiting) => waiting.into_iter().for_each(|answer| drop(answer.send(Ok(())))),
            None => tracing::error!(export = %id, "the socket is no longer served; unexport it and export it again"),
        }
    }

    /// Answers callers that wait for a queue to come to rest, and removes a leaving guest that has
    /// nothing in flight.
    fn settle_guest(&mut self, index: u32) {
        let Some(guest) = self.vhost.guest_mut(index) else { return };
        if !guest.stops.is_empty() || guest.leaving.is_some() {
            // limits must not delay a guest that pauses or leaves
            self.throttles.hurry(Some(guest.target));
        }
        for (queue, answer) in std::mem::take(&mut guest.stops) {
            match guest.device.stopped(queue) {
                Ok(None) => guest.stops.push((queue, answer)),
                Ok(Some(base)) => drop(answer.send(Ok(base))),
                Err(error) => drop(answer.send(Err(error.into()))),
            }
        }
        if guest.leaving.is_none() || !guest.device.collect() {
            return;
        }
        let Some(mut guest) = self.vhost.guests.try_remove(index as usize) else { return };
        self.vhost.hot.retain(|hot| *hot != index);
        guest.purse.empty(&self.memory);
        tracing::debug!(export = %guest.export, peer = guest.peer, "front end gone");
        if let Some(export) = self.vhost.exports.get_mut(&guest.export) {
            export.guest = None;
            export.past.add(&guest.counters());
        }
        self.loads.of_mut(self.pool.volume_of(guest.target)).add(&guest.load());
        if let (Some(answer), Ok(memory)) = (guest.leaving.take(), guest.device.set_memory(Memory::new())) {
            let _ = answer.send(Ok(memory));
        }
    }

    /// Handles a kick of a guest.
    pub(in crate::shard) fn kicked(&mut self, watch: WatchId) {
        if let Some(index) = self.vhost.kicks.get(&watch).copied() {
            self.vhost.heat(index);
        }
    }

    /// Hands the requests that guests have offered to the pool.
    pub(in crate::shard) fn take_from_guests(&mut self) {
        for index in &self.vhost.hot {
            if let Some(guest) = self.vhost.guests.get_mut(*index as usize) {
                guest.take(&mut self.pool, &mut self.throttles, self.now, &self.memory);
            }
        }
        self.break_off_guests();
    }

    /// Disconnects guests whose memory was taken away, before they are notified of anything: data
    /// that they were to read may not have reached them.
    fn break_off_guests(&mut self) {
        for (_, guest) in &mut self.vhost.guests {
            if guest.lost || !guest.has_lost_memory() {
                continue;
            }
            guest.lost = true;
            tracing::error!(
                export = %guest.export, peer = guest.peer,
                "the guest is disconnected: a page of its memory is missing (its file was truncated, or the host has no memory for it)"
            );
            if let Some(export) = self.vhost.exports.get(&guest.export) {
                export.stop.break_off();
            }
        }
    }

    /// Passes the pool's completion of a request to its guest.
    pub(in crate::shard) fn completed_for_guest(&mut self, completion: Completion) {
        let Completion { tag: Tag(tag), .. } = completion;
        let index = (tag >> 32) as u32 & !GUEST;
        let Some(guest) = self.vhost.guests.get_mut(index as usize) else { return };
        let success = completion.result.is_ok();
        self.vhost.untold = true;
        if guest.device.complete(completion, self.pool.buffers()) {
            guest.meter.end(Tag(tag), success, self.now);
        }
    }

    /// Publishes completions to guests. True when a guest has offered more requests.
    pub(in crate::shard) fn publish_to_guests(&mut self) -> bool {
        self.vhost.untold = false;
        self.break_off_guests();
        let mut settled = Vec::new();
        for (index, guest) in &mut self.vhost.guests {
            guest.publish();
            guest.purse.shrink(&self.memory, guest.device.bytes());
            if !guest.stops.is_empty() || guest.leaving.is_some() {
                settled.push(index as u32);
            }
        }
        settled.into_iter().for_each(|index| self.settle_guest(index));
        self.vhost.has_more()
    }

    /// Informs front ends whose volume has a new size, or whose write cache was added or removed.
    pub(in crate::shard) fn tell_changes(&mut self) {
        for (_, guest) in &mut self.vhost.guests {
            if let Some((geometry, features)) = self.pool.geometry(guest.target) {
                guest.tell(geometry.size, features.write_cache);
            }
        }
    }

    /// Returns the guests' memory to the budget `before`; from now on they use the shard's new
    /// budget.
    pub(in crate::shard) fn set_budget_of_guests(&mut self, before: &PoolBudget) {
        for (_, guest) in &mut self.vhost.guests {
            guest.purse.empty(before);
            guest.purse = Purse::new(self.memory.asker());
        }
    }

    /// Makes every write of a target's guests durable before its completion, in every later cache
    /// mode but `unsafe`: the guests may have been promised that there is no write cache.
    pub(in crate::shard) fn keep_promises(&mut self, target: Target) {
        for export in self.vhost.exports.values_mut().filter(|export| export.spec.target == target) {
            export.spec.promised = true;
        }
        for (_, guest) in self.vhost.guests.iter_mut().filter(|(_, guest)| guest.target == target) {
            guest.device.set_promised(true);
        }
    }
}

/// Returns the part of a serial number that identifies a target in its pool.
fn number_of(target: Target) -> String {
    match target {
        Target::Head(volume) => format!("v{}", volume.0),
        Target::Snapshot(snapshot) => format!("s{}", snapshot.0),
    }
}
