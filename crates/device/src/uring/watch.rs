//! Watched descriptors of other programs: the eventfds by which guests kick their queues.
//!
//! A place keeps its generation when it is free, so that a stale id names nothing; `slab` has no
//! generations.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::opcode;
use io_uring::types::Fd;

use super::event::{Event, WatchId};
use super::ring::Ring;
use super::slots::Op;

#[derive(Default)]
pub(super) struct Watches {
    watches: Vec<Watch>,
    free: Vec<u32>,
}

#[derive(Default)]
struct Watch {
    fd: Option<Arc<OwnedFd>>,
    generation: u32,
    /// The poll in flight.
    poll: Option<u32>,
    closing: bool,
}

impl Ring {
    /// Reports [`Event::Signalled`] each time the descriptor is written to, and once if it is
    /// readable already. One poll serves until [`Ring::unwatch`], and the descriptor is never read:
    /// the wake-up is all that counts, so a signal costs no system call.
    pub fn watch(&mut self, fd: Arc<OwnedFd>) -> WatchId {
        let index = self.watches.free.pop().unwrap_or_else(|| {
            let index = u32::try_from(self.watches.watches.len()).unwrap_or_else(|_| std::process::abort());
            self.watches.watches.push(Watch::default());
            index
        });
        let mut generation = 0;
        if let Some(watch) = self.watches.watches.get_mut(index as usize) {
            generation = watch.generation;
            *watch = Watch { fd: Some(fd), generation, poll: None, closing: false };
        }
        self.arm_watch(index);
        WatchId { index, generation }
    }

    /// Stops watching; from now on there are no new events for it, but some may wait to be popped.
    pub fn unwatch(&mut self, id: WatchId) {
        let Some(watch) = self.watches.watches.get_mut(id.index as usize) else { return };
        if watch.generation != id.generation || watch.closing {
            return;
        }
        watch.closing = true;
        match watch.poll {
            Some(poll) => self.cancel(poll),
            None => self.end_watch(id.index),
        }
    }

    pub(super) fn signalled(&mut self, index: u32, result: i32, goes_on: bool) {
        let Some(watch) = self.watches.watches.get_mut(index as usize) else { return };
        if !goes_on {
            watch.poll = None;
        }
        if watch.closing {
            if !goes_on {
                self.end_watch(index);
            }
            return;
        }
        let id = WatchId { index, generation: watch.generation };
        self.events.push_back(Event::Signalled(id));
        // A descriptor that cannot be polled, or reports errors again and again, is not polled any
        // more.
        let failed = result < 0 || result & i32::from(libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0;
        if !goes_on && !failed {
            self.arm_watch(index);
        }
    }

    fn arm_watch(&mut self, index: u32) {
        let Some(watch) = self.watches.watches.get_mut(index as usize) else { return };
        let Some(fd) = &watch.fd else { return };
        let fd = Fd(fd.as_raw_fd());
        let slot = self.slots.insert(Op::Watch { watch: index });
        watch.poll = Some(slot);
        self.push(slot, opcode::PollAdd::new(fd, u32::from(libc::POLLIN.cast_unsigned())).multi(true).build());
    }

    fn end_watch(&mut self, index: u32) {
        let Some(watch) = self.watches.watches.get_mut(index as usize) else { return };
        *watch = Watch { generation: watch.generation.wrapping_add(1), ..Watch::default() };
        self.watches.free.push(index);
    }
}
