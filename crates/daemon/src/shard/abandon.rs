//! Gives up a shard whose pool cannot be closed: a device hangs, or the host has no space for the
//! last checkpoint.
//!
//! For this pool alone that is like a crash of the process: acknowledged data is on the devices or
//! in their caches, and the next import replays the log. INV-SHARD-3: each device stays locked
//! until the kernel has finished every operation on it, so no process on this host takes the device
//! into service while an old write may still reach it. A device that never answers keeps its
//! shard's thread and itself, and no other device.

use std::mem;
use std::sync::mpsc;

use millpond_block::DeviceSlot;
use millpond_device::{Gate, Wait};
use millpond_engine::{Fault, PoolState};

use super::pool::Pool;
use super::shard::{Shard, TICK};
use super::vhost::VhostUsers;

impl<P: Pool> Shard<P> {
    /// Disconnects all clients, starts no new operation, and waits until the kernel has finished
    /// the operations that it has.
    pub(super) fn await_last_operations(&mut self) {
        // callers that wait now, and later callers, get the error that the shard is gone
        drop(mem::replace(&mut self.messages, mpsc::channel().1));
        self.pending.clear();
        drop(self.stage.take_answers());
        self.disconnect();
        self.gate = Gate::default();
        self.ring.cancel_io();
        self.state.send_replace(PoolState::Faulted(Fault::Caller("it was stopped without a clean close".to_owned())));
        let waiting = self.ring.io_in_flight();
        if waiting > 0 {
            tracing::warn!(
                operations = waiting,
                "the kernel still has operations of a stopped pool; their devices stay locked until these end"
            );
        }
        while self.ring.io_in_flight() > 0 {
            for slot in (0..self.ring.devices()).map(DeviceSlot) {
                drop(self.ring.remove_device(slot));
            }
            if let Err(error) = self.ring.turn(Wait::AtMost(TICK)) {
                tracing::error!(%error, "io_uring failed while the pool was stopped");
                return;
            }
            // no client is left for these completions
            while self.ring.pop().is_some() {}
        }
        if waiting > 0 {
            tracing::info!("all operations of the stopped pool have ended; its devices are free");
        }
    }

    /// Ends every export at once: listeners, connections, guests and mounts.
    fn disconnect(&mut self) {
        for export in mem::take(&mut self.exports).into_values() {
            export.listeners.iter().for_each(|listener| self.ring.close_listener(listener.id));
            export.closing.into_iter().flatten().for_each(drop);
        }
        for client in mem::take(&mut self.clients).iter() {
            self.ring.close(client.id);
        }
        for device in mem::take(&mut self.mounts).devices() {
            self.ring.close(device);
        }
        // their threads notice that their sockets are closed
        self.vhost = VhostUsers::default();
    }
}
