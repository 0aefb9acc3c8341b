//! A guest whose queues the shard runs.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use millpond_device::{Guard, WatchId};
use millpond_engine::{Target, Throttles, Time};
use millpond_export::vhost_user::{Device, Memory, wire};
use rustix::net::SendFlags;

use super::order::Answer;
use crate::daemon::budget::Purse;
use crate::daemon::shard::connection::{ConnectionDisk, Memory as Budgeted, Meter};
use crate::daemon::shard::handle::{ClientInfo, ExportId, IoCounters};
use crate::daemon::shard::pool::Pool;

/// Wakes who waits on an eventfd.
const ONE: [u8; 8] = 1u64.to_ne_bytes();

/// A guest and what belongs to it.
pub(super) struct Guest {
    pub export: ExportId,
    pub target: Target,
    pub read_only: bool,
    /// Number shown to people.
    pub number: u64,
    pub peer: String,
    pub since: Time,
    pub device: Device,
    pub meter: Meter,
    /// The memory that its requests hold.
    pub purse: Purse,
    /// What kicks a queue.
    pub kicks: HashMap<usize, WatchId>,
    /// How it is told of answers, by queue.
    pub calls: HashMap<usize, OwnedFd>,
    /// How it is told that a queue broke.
    pub alarms: HashMap<usize, OwnedFd>,
    /// How the front end is told of changes.
    pub channel: Option<OwnedFd>,
    /// The size that it knows.
    pub told_size: u64,
    /// Whether it knows of a write cache.
    pub told_write_cache: bool,
    /// It has been told of a change.
    pub told_of_changes: bool,
    /// Who waits for a queue to come to rest.
    pub stops: Vec<(usize, Answer<u16>)>,
    /// Set when the front end is gone; told when nothing is in flight.
    pub leaving: Option<Answer<Memory>>,
    /// It is looked at in every turn, and need not kick.
    pub hot: bool,
    /// What says that its memory was taken away: of its regions, and of other memory of the front end's.
    pub guards: Vec<Arc<Guard>>,
    pub shared: Vec<Arc<Guard>>,
    /// That was so: nothing is taken from it any more, and it is told of nothing.
    pub lost: bool,
}

impl Guest {
    /// Hands what it offers to the pool; true when there was something.
    pub fn take<P: Pool>(&mut self, pool: &mut P, throttles: &mut Throttles, now: u64, memory: &Budgeted) -> bool {
        if self.lost {
            self.device.refuse_held();
            self.purse.settle(&memory.budget);
            return false;
        }
        let guards = self.guards.as_slice();
        let mut disk = ConnectionDisk {
            pool,
            throttles,
            meter: &mut self.meter,
            target: self.target,
            read_only: self.read_only,
            now,
            guards,
            purse: &mut self.purse,
            memory,
        };
        let taken = self.device.take(&mut disk);
        self.purse.settle(&memory.budget);
        if let Some((index, error)) = taken.broken {
            tracing::warn!(export = %self.export, peer = self.peer, queue = index, %error, "a queue stands still");
            if let Some(alarm) = self.alarms.get(&index) {
                wake(alarm);
            }
        }
        taken.requests > 0
    }

    /// Its memory was taken away.
    pub fn has_lost_memory(&self) -> bool {
        self.guards.iter().chain(&self.shared).any(|guard| guard.is_broken())
    }

    /// Tells it of what was answered.
    pub fn publish(&mut self) {
        if self.lost {
            return;
        }
        let calls = &self.calls;
        self.device.publish(|index| {
            if let Some(call) = calls.get(&index) {
                wake(call);
            }
        });
    }

    /// Tells the front end of a new size, or of a write cache that came or went. It reads them when it gets to it.
    pub fn tell(&mut self, size: u64, write_cache: bool) {
        if (size, write_cache) == (self.told_size, self.told_write_cache) {
            return;
        }
        (self.told_size, self.told_write_cache) = (size, write_cache);
        self.told_of_changes = true;
        if let Some(channel) = &self.channel {
            // A front end that reads nothing there is not told twice; it sees what is new when it reads the configuration anyway.
            let sent = rustix::net::send(channel, &wire::config_change(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            if let Err(error) = sent {
                tracing::warn!(export = %self.export, peer = self.peer, %error, "the front end was not told of a change");
            }
        }
    }

    pub fn counters(&self) -> IoCounters {
        IoCounters { errors: self.device.counters().errors, ..self.meter.counters() }
    }

    pub fn info(&self) -> ClientInfo {
        ClientInfo { id: self.number, peer: self.peer.clone(), since: self.since, tls: None, counters: self.counters() }
    }
}

/// The descriptor does not block. A failure means that its counter is full, so who waits is awake already.
pub(super) fn wake(eventfd: &OwnedFd) {
    let _ = rustix::io::write(eventfd, &ONE);
}
