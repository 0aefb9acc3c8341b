//! The end of a shard whose pool cannot be closed: a device hangs, or the host has no room for the last checkpoint.
//!
//! It is what a crash of the process would be for this pool alone: what was acknowledged is on the devices or in their caches, and the next import
//! replays the log. INV-SHARD-3: each device stays locked until the kernel has finished every operation that it was given for it, so nobody on this host
//! has it in service while an old write may still come. A device that never answers keeps its shard's thread, and no other device.

use std::mem;
use std::sync::mpsc;

use millpond_device::{DeviceIndex, Gate, Wait};
use millpond_engine::PoolState;

use super::pool::Pool;
use super::shard::{Shard, TICK};
use super::vhost::VhostUsers;

impl<P: Pool> Shard<P> {
    /// Disconnects everybody, starts nothing more, and waits until the kernel has finished what it has.
    pub(super) fn await_last_operations(&mut self) {
        // whoever waits is told that the shard is gone, and whoever asks from now on
        drop(mem::replace(&mut self.messages, mpsc::channel().1));
        self.pending.clear();
        drop(self.stage.take_answers());
        self.disconnect();
        self.gate = Gate::default();
        self.ring.cancel_io();
        self.state.send_replace(PoolState::Faulted("it was given up without being closed".to_owned()));
        let waiting = self.ring.io_in_flight();
        if waiting > 0 {
            tracing::warn!(
                operations = waiting,
                "the kernel has not finished operations of a pool that was given up; the devices that they are for stay locked until then"
            );
        }
        while self.ring.io_in_flight() > 0 {
            for device in 0..self.ring.devices() {
                drop(self.ring.remove_device(DeviceIndex(device)));
            }
            if let Err(error) = self.ring.turn(Wait::AtMost(TICK)) {
                tracing::error!(%error, "the ring of a shard failed at its end");
                return;
            }
            // nobody is left who would look at what has ended
            while self.ring.pop().is_some() {}
        }
        if waiting > 0 {
            tracing::info!("the last operations of a pool that was given up have ended; its devices are free");
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
        // their threads see the end of their sockets
        self.vhost = VhostUsers::default();
    }
}
