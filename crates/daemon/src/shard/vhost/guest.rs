//! A guest whose queues the shard runs.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use millpond_api::GuestIo;
use millpond_device::{Guard, WatchId};
use millpond_engine::{Target, Throttles, Time};
use millpond_export::vhost_user::{Device, Memory, wire};
use rustix::net::SendFlags;

use super::order::Answer;
use crate::budget::{PoolBudget, Purse};
use crate::shard::connection::ConnectionDisk;
use crate::shard::load::{Load, Meter};
use crate::shard::pool::Pool;
use crate::shard::report::{ClientInfo, ExportId};

/// Value that wakes the reader of an eventfd.
const ONE: [u8; 8] = 1u64.to_ne_bytes();

/// A guest, with its queues and descriptors.
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
    /// Memory that its requests hold.
    pub purse: Purse,
    /// Watches of the eventfds with which the guest kicks, by queue.
    pub kicks: HashMap<usize, WatchId>,
    /// Eventfds that notify the guest of completions, by queue.
    pub calls: HashMap<usize, OwnedFd>,
    /// Eventfds that notify the guest of a broken queue, by queue.
    pub alarms: HashMap<usize, OwnedFd>,
    /// Socket for messages to the front end about changes.
    pub channel: Option<OwnedFd>,
    /// Size that the front end knows, in bytes.
    pub known_size: u64,
    /// The front end knows of a write cache.
    pub known_write_cache: bool,
    /// The front end got a message about a change.
    pub got_message: bool,
    /// Callers that wait for a queue to have nothing in flight.
    pub stops: Vec<(usize, Answer<u16>)>,
    /// Set when the front end is gone; sent when nothing is in flight.
    pub leaving: Option<Answer<Memory>>,
    /// When its requests that wait for chunks are ended, in nanoseconds of the shard's clock: set when
    /// the front end is gone.
    pub patient_until: Option<u64>,
    /// It is polled in every turn, and need not kick.
    pub hot: bool,
    /// Guards that report when memory is taken away: of its regions, and of other memory of the
    /// front end.
    pub guards: Vec<Arc<Guard>>,
    pub shared: Vec<Arc<Guard>>,
    /// Memory was taken away: no request is taken from the guest any more, and it gets no
    /// completion.
    pub lost: bool,
}

impl Guest {
    /// Hands the requests that the guest has offered to the pool; true when there were some.
    pub fn take<P: Pool>(&mut self, pool: &mut P, throttles: &mut Throttles, now: u64, memory: &PoolBudget) -> bool {
        if self.lost {
            self.device.refuse_held();
            self.purse.settle(memory);
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
        self.purse.settle(memory);
        if let Some((index, error)) = taken.broken {
            tracing::warn!(export = %self.export, peer = self.peer, queue = index, %error, "a queue stands still");
            if let Some(alarm) = self.alarms.get(&index) {
                wake(alarm);
            }
        }
        taken.requests > 0
    }

    /// True when its requests that wait for chunks are to be ended: no client waits for their answers.
    pub fn ends_waits(&self, now: u64) -> bool {
        self.patient_until.is_some_and(|until| until <= now) && self.device.in_flight() > 0
    }

    /// True when some of its memory was taken away.
    pub fn has_lost_memory(&self) -> bool {
        self.guards.iter().chain(&self.shared).any(|guard| guard.is_broken())
    }

    /// Publishes completions in the guest's queues, and notifies it.
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

    /// Informs the front end of a new size, or that a write cache was added or removed. The front
    /// end reads the configuration when it handles the message.
    pub fn tell(&mut self, size: u64, write_cache: bool) {
        if (size, write_cache) == (self.known_size, self.known_write_cache) {
            return;
        }
        (self.known_size, self.known_write_cache) = (size, write_cache);
        self.got_message = true;
        if let Some(channel) = &self.channel {
            // A front end that reads nothing there gets no second message; it sees the change when
            // it reads the configuration.
            let sent = rustix::net::send(channel, &wire::config_change(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            if let Err(error) = sent {
                tracing::warn!(export = %self.export, peer = self.peer, %error, "cannot notify the front end of a configuration change");
            }
        }
    }

    pub fn counters(&self) -> GuestIo {
        GuestIo { errors: self.device.counters().errors, ..self.meter.counters() }
    }

    /// Returns the requests, with their latencies.
    pub fn load(&self) -> Load {
        self.meter.load(self.device.counters().errors)
    }

    pub fn info(&self) -> ClientInfo {
        ClientInfo { id: self.number, peer: self.peer.clone(), since: self.since, tls: None, counters: self.counters() }
    }
}

/// Wakes the reader of an eventfd. The descriptor does not block; a failure means that its counter
/// is full, so the reader is awake already.
pub(super) fn wake(eventfd: &OwnedFd) {
    let _ = rustix::io::write(eventfd, &ONE);
}
