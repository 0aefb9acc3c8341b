//! The exports over vhost-user of a shard, and their guests.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::mpsc;

use millpond_api::GuestIo;
use millpond_device::WatchId;
use millpond_engine::Target;
use slab::Slab;

use super::guest::Guest;
use super::order::Order;
use super::spec::VhostUserExport;
use super::stop::Stop;
use crate::shard::listen::SocketFile;
use crate::shard::load::Load;
use crate::shard::message::Answer;
use crate::shard::report::{ExportId, ExportInfo};

/// Bit in the ids of guests, which are the upper half of their tags, beside the table index.
/// Clients have lower ids, mounts have the bit above.
pub(super) const GUEST: u32 = 0x4000_0000;

/// An export over vhost-user, and its guest.
pub(super) struct VhostExport {
    pub spec: VhostUserExport,
    pub file: Option<SocketFile>,
    pub stop: Arc<Stop>,
    pub guest: Option<u32>,
    /// Counters of guests that are gone.
    pub past: GuestIo,
    /// Set while the export ends; the answers are sent when its thread has ended.
    pub closing: Option<Vec<Answer<()>>>,
}

impl Drop for VhostExport {
    fn drop(&mut self) {
        self.stop.end();
    }
}

/// All exports over vhost-user and their guests. INV-VHOST-3: a guest whose queues run is either
/// hot, that is, polled in each turn, or was asked to kick and polled after that.
pub(in crate::shard) struct VhostUsers {
    pub(super) exports: BTreeMap<ExportId, VhostExport>,
    pub(super) guests: Slab<Guest>,
    pub(super) hot: Vec<u32>,
    /// A guest has completions that are not published yet.
    pub(super) untold: bool,
    pub(super) kicks: HashMap<WatchId, u32>,
    pub(super) orders: mpsc::Receiver<Order>,
    pub(super) sender: mpsc::Sender<Order>,
}

impl Default for VhostUsers {
    fn default() -> Self {
        let (sender, orders) = mpsc::channel();
        VhostUsers { exports: BTreeMap::new(), guests: Slab::new(), hot: Vec::new(), untold: false, kicks: HashMap::new(), orders, sender }
    }
}

impl VhostUsers {
    /// True for the tags of guests.
    pub fn owns(tag: millpond_block::Tag) -> bool {
        (tag.0 >> 32) as u32 & GUEST != 0 && tag.0 >> 63 == 0
    }

    pub fn is_empty(&self) -> bool {
        self.exports.is_empty()
    }

    pub fn ids(&self) -> Vec<ExportId> {
        self.exports.keys().copied().collect()
    }

    pub fn contains(&self, id: ExportId) -> bool {
        self.exports.contains_key(&id)
    }

    pub(super) fn guest_mut(&mut self, index: u32) -> Option<&mut Guest> {
        self.guests.get_mut(index as usize)
    }

    /// Returns the guest of an export.
    pub(super) fn guest_of(&mut self, id: ExportId) -> Option<(u32, &mut Guest)> {
        let index = self.exports.get(&id)?.guest?;
        Some((index, self.guest_mut(index)?))
    }

    /// Polls a guest in every turn until it is idle.
    pub(super) fn heat(&mut self, index: u32) {
        if let Some(guest) = self.guests.get_mut(index as usize)
            && !guest.hot
        {
            guest.hot = true;
            guest.device.hush();
            self.hot.push(index);
        }
    }

    /// True when a guest that need not kick has offered requests.
    pub fn has_more(&self) -> bool {
        self.hot.iter().any(|index| self.guests.get(*index as usize).is_some_and(|guest| guest.device.has_more()))
    }

    /// Asks guests to kick, before the loop sleeps. True when one has offered requests meanwhile,
    /// so that the loop must not sleep.
    pub fn listen(&mut self) -> bool {
        let VhostUsers { hot, guests, .. } = self;
        let mut more = false;
        hot.retain(|index| {
            let Some(guest) = guests.get_mut(*index as usize) else { return false };
            // A guest at its limits stays hot: the next completion makes room for its requests.
            let full = !guest.device.has_room();
            let offered = !full && guest.device.listen();
            more |= offered;
            guest.hot = full || offered;
            guest.hot
        });
        more
    }

    pub fn infos(&self) -> impl Iterator<Item = ExportInfo> {
        self.exports.values().map(|export| export.info(&self.guests))
    }

    /// Adds the counters of all guests, connected or gone.
    pub fn count(&self, total: &mut GuestIo) {
        self.exports.values().for_each(|export| total.add(&export.past));
        self.guests.iter().for_each(|(_, guest)| total.add(&guest.counters()));
    }

    /// Returns the requests of connected guests, with the result of `of` for their targets; guests
    /// for which it is `None` are left out.
    pub fn loads<T>(&self, of: impl Fn(Target) -> Option<T>) -> impl Iterator<Item = (T, Load)> {
        self.guests.iter().filter_map(move |(_, guest)| Some((of(guest.target)?, guest.load())))
    }

    /// Returns the sessions whose requests that wait for chunks are to be ended.
    pub fn ending_waits(&self, now: u64) -> impl Iterator<Item = u32> {
        self.guests.iter().filter(move |(_, guest)| guest.ends_waits(now)).map(|(index, _)| GUEST | index as u32)
    }

    /// True when there are completions that are not published yet.
    pub fn has_answers(&self) -> bool {
        self.untold
    }

    /// Returns the number of connected guests.
    pub fn len(&self) -> usize {
        self.guests.len()
    }
}

impl VhostExport {
    pub fn info(&self, guests: &Slab<Guest>) -> ExportInfo {
        let guest = self.guest.and_then(|index| guests.get(index as usize));
        let mut counters = self.past;
        if let Some(guest) = guest {
            counters.add(&guest.counters());
        }
        ExportInfo {
            id: self.spec.id,
            name: self.spec.name.clone(),
            target: Some(self.spec.target),
            unix: Some(self.spec.unix.clone()),
            tcp: None,
            read_only: self.spec.read_only,
            clients: guest.map(Guest::info).into_iter().collect(),
            counters,
            images: Vec::new(),
        }
    }
}
