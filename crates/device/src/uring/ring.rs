//! The ring: setup, the turn, dispatch of completions, and shutdown.

mod submit;

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::time::{Duration, Instant};

use io_uring::squeue::Entry;
use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode};
use millpond_block::IoDone;
use rustix::io::Errno;

use super::device::Devices;
use super::event::{Event, Wait};
use super::slots::{Op, Slots};
use super::socket::{Sockets, take_descriptor};
use super::wake::Waker;
use super::watch::Watches;
use crate::{Deadline, Queue};

/// Entries of the submission queue, which one turn can start with one system call: receives and
/// sends of 64 connections and a few hundred device operations.
const SUBMISSIONS: u32 = 512;
/// Entries of the completion queue. Beyond it the kernel keeps completions in a list, which costs
/// time but loses nothing.
const COMPLETIONS: u32 = 4096;
/// How long dropping a [`Ring`] waits for operations that cannot be cancelled (disk writes,
/// flushes).
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// A reactor for one thread; see the module's documentation.
///
/// ```no_run
/// use millpond_device::{Event, Ring, Wait};
/// let mut ring = Ring::new()?;
/// let waker = ring.waker();
/// std::thread::spawn(move || waker.wake());
/// ring.turn(Wait::Forever)?;
/// assert!(matches!(ring.pop(), Some(Event::Woken)));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Ring {
    uring: IoUring,
    pub(super) slots: Slots,
    /// Entries for the next system call.
    waiting: Queue<Entry>,
    /// When the right to change devices ends; `None`: never.
    lease: Option<Deadline>,
    /// True when the kernel's queue holds entries that must not reach the kernel any more: no
    /// entries are submitted from now on.
    sealed: bool,
    pub(super) events: VecDeque<Event>,
    pub(super) devices: Devices,
    pub(super) sockets: Sockets,
    pub(super) watches: Watches,
    waker: Waker,
}

impl Ring {
    /// Creates a ring for the calling thread. It must be used and dropped there; the types ensure
    /// that.
    ///
    /// # Errors
    /// The kernel's error: no io_uring, no permission, or no free descriptors.
    pub fn new() -> io::Result<Ring> {
        let uring = build()?;
        let devices = Devices::new(&uring);
        let waker = Waker::new()?;
        let mut ring = Ring {
            uring,
            slots: Slots::default(),
            waiting: Queue::default(),
            lease: None,
            sealed: false,
            events: VecDeque::new(),
            devices,
            sockets: Sockets::default(),
            watches: Watches::default(),
            waker,
        };
        ring.arm_waker();
        Ok(ring)
    }

    /// Returns a handle that wakes this ring from other threads.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Removes the next event, oldest first.
    pub fn pop(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Sets the lease: after `until`, no operation that changes a device is passed to the kernel;
    /// it comes back as [`Event::Unsent`]. The clock is read right before the system call, so it
    /// does not matter how long an operation waited here or this thread was suspended. Operations
    /// that the kernel already has continue.
    pub fn set_lease(&mut self, until: Option<Deadline>) {
        self.lease = until;
    }

    /// Removes the next event if it is the completion of a device operation. When all events of the
    /// last turn were popped, these are operations that were carried out at once.
    pub fn pop_io(&mut self) -> Option<IoDone> {
        match self.events.pop_front() {
            Some(Event::Io(done)) => Some(done),
            Some(other) => {
                self.events.push_front(other);
                None
            }
            None => None,
        }
    }

    /// Starts the operations submitted since the last turn and collects completions: at most one
    /// system call. Waits only when there is no event to pop.
    ///
    /// # Errors
    /// The kernel's error, when the ring does not work any more. Interruptions and the end of a
    /// wait are not errors.
    pub fn turn(&mut self, wait: Wait) -> io::Result<()> {
        self.rearm_listeners();
        self.collect();
        self.refill()?;
        let wait = if self.events.is_empty() { self.sockets.bound_wait(wait) } else { Wait::No };
        self.enter(wait)?;
        self.collect();
        Ok(())
    }

    /// Polls for events for up to `time` without sleeping: cheaper for both sides than a sleep and
    /// a wake-up when the next event is microseconds away. Returns true when there is an event, or
    /// when `look` found other work; `look` is called about every hundred nanoseconds, and the
    /// kernel's queue is checked less often.
    ///
    /// # Errors
    /// As [`Ring::turn`].
    pub fn spin(&mut self, time: Duration, mut look: impl FnMut() -> bool) -> io::Result<bool> {
        self.turn(Wait::No)?;
        let start = Instant::now();
        while self.events.is_empty() {
            if start.elapsed() >= time {
                return Ok(false);
            }
            for _ in 0..8 {
                if look() {
                    return Ok(true);
                }
                for _ in 0..4 {
                    std::hint::spin_loop();
                }
            }
            let pending = self.uring.submission().taskrun() || !self.uring.completion().is_empty();
            if pending {
                self.turn(Wait::No)?;
            }
        }
        Ok(true)
    }

    /// Operations in flight, idle receives and listeners included.
    pub fn in_flight(&self) -> usize {
        self.slots.live()
    }

    /// Device operations in flight.
    pub fn io_in_flight(&self) -> usize {
        self.slots.io_count()
    }

    /// Drops the device operations that have not reached the kernel, and asks it to cancel the
    /// others. Operations that a device is working on are not cancelled: they complete later, or
    /// never if the device hangs.
    pub fn cancel_io(&mut self) {
        let Ring { waiting, slots, devices, .. } = self;
        for entry in waiting.recall(|entry| matches!(slots.named_by(entry), Some(Op::Io(_)))) {
            if let Some(Op::Io(op)) = slots.take_named_by(&entry) {
                devices.forget(&op);
            }
        }
        let started: Vec<u32> = self.slots.ios().collect();
        started.into_iter().for_each(|index| self.cancel(index));
    }

    /// Moves entries into the submission queue, right before the system call. Apart from operations
    /// on files in memory (see [`Ring::submit`]), all operations reach the kernel through this
    /// function, so it checks the lease.
    fn refill(&mut self) -> io::Result<()> {
        let left = self.uring.submission().len();
        if left == 0 && self.waiting.is_empty() {
            return Ok(());
        }
        if self.lease_is_over() {
            if left > 0 {
                // the kernel was short of memory; entries that it has not taken cannot be removed
                // from its queue
                self.sealed = true;
                return Err(io::Error::other("the kernel took operations too late for the pool's lease"));
            }
            self.recall();
        }
        let mut queue = self.uring.submission();
        while let Some(entry) = self.waiting.pop() {
            // SAFETY: memory that the entry points to is owned by the slot that it names; it is on
            // the heap and stays there until the operation's last completion was seen
            // (INV-URING-1). Descriptors are owned by `devices`, `sockets` and `waker`, or are
            // checked by the kernel.
            if unsafe { queue.push(&entry) }.is_err() {
                self.waiting.push(entry, true);
                break;
            }
        }
        Ok(())
    }

    /// Returns all operations that would change a device and that the kernel does not have yet.
    fn recall(&mut self) {
        let Ring { waiting, slots, .. } = self;
        for entry in waiting.recall(|entry| matches!(slots.named_by(entry), Some(Op::Io(op)) if op.changes())) {
            if let Some(Op::Io(op)) = self.slots.take_named_by(&entry) {
                self.unsend(op);
            }
        }
    }

    fn enter(&mut self, wait: Wait) -> io::Result<()> {
        let (idle, taskrun) = {
            let queue = self.uring.submission();
            (queue.is_empty(), queue.taskrun() || queue.cq_overflow())
        };
        let submitter = self.uring.submitter();
        let result = match wait {
            Wait::No if idle && !taskrun => return Ok(()),
            Wait::No => submitter.submit(),
            Wait::Forever => submitter.submit_and_wait(1),
            Wait::AtMost(time) => {
                let time = Timespec::from(time);
                submitter.submit_with_args(1, &SubmitArgs::new().timespec(&time))
            }
        };
        match result {
            Ok(_) => Ok(()),
            // Interrupted; the wait has timed out; completions must be collected first; short of
            // memory for now.
            Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::INTR | Errno::TIME | Errno::BUSY | Errno::AGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }

    fn collect(&mut self) {
        while let Some(entry) = {
            let mut queue = self.uring.completion();
            queue.next()
        } {
            self.complete(&entry);
        }
    }

    fn complete(&mut self, entry: &cqueue::Entry) {
        let Ok(index) = u32::try_from(entry.user_data()) else { return };
        let (result, flags) = (entry.result(), entry.flags());
        if cqueue::more(flags) {
            // Multishot: the operation continues and keeps its slot.
            match self.slots.get_mut(index) {
                Some(&mut Op::Accept { listener }) => self.accepted(listener, result, true),
                Some(&mut Op::PollIn { connection }) => self.readable(connection, result, true),
                Some(&mut Op::Watch { watch }) => self.signalled(watch, result, true),
                _ => {}
            }
            return;
        }
        if let Some(Op::Io(op)) = self.slots.get_mut(index)
            && let Some(entry) = self.devices.go_on(op, result)
        {
            self.push(index, entry);
            return;
        }
        match self.slots.remove(index) {
            Some(Op::Io(op)) => self.io_done(op, result),
            Some(Op::Accept { listener }) => self.accepted(listener, result, false),
            Some(Op::PollIn { connection }) => self.readable(connection, result, false),
            Some(Op::PollOut { connection }) => self.writable(connection),
            Some(Op::Watch { watch }) => self.signalled(watch, result, false),
            Some(Op::Wake { .. }) => {
                self.events.push_back(Event::Woken);
                self.arm_waker();
            }
            Some(Op::Cancel) | None => {}
        }
    }

    fn arm_waker(&mut self) {
        let index = self.slots.insert(Op::Wake { counter: Box::new([0; 8]) });
        let Some(Op::Wake { counter }) = self.slots.get_mut(index) else { return };
        let entry = opcode::Read::new(Fd(self.waker.raw()), counter.as_mut_ptr(), 8).build();
        self.push(index, entry);
    }

    /// Cancels operations and waits for the rest. True when the kernel has completed all of them.
    fn drain(&mut self) -> bool {
        // Operations that never reached the kernel need no wait.
        while let Some(entry) = self.waiting.pop() {
            self.slots.take_named_by(&entry);
        }
        self.sealed |= self.lease_is_over() && !self.uring.submission().is_empty();
        if self.sealed {
            return self.slots.live() == 0;
        }
        // only cancellations are submitted from here on
        self.lease = None;
        let deadline = Instant::now() + PATIENCE;
        let mut pause = Duration::from_millis(1);
        loop {
            if self.slots.live() == 0 {
                return true;
            }
            let now = Instant::now();
            if now >= deadline {
                return false;
            }
            // Completions of writes may start another part, and a wake-up arms the waker again:
            // cancel until nothing is left.
            let index = self.slots.insert(Op::Cancel);
            self.push(index, opcode::AsyncCancel2::new(CancelBuilder::any().all()).build());
            if self.refill().is_err() || self.enter(Wait::AtMost(pause)).is_err() {
                return false;
            }
            pause = (pause * 2).min(Duration::from_millis(100));
            while let Some(entry) = {
                let mut queue = self.uring.completion();
                queue.next()
            } {
                let Ok(index) = u32::try_from(entry.user_data()) else { continue };
                if let Some(Op::Accept { .. }) = self.slots.get_mut(index) {
                    drop(take_descriptor(entry.result()));
                }
                if !cqueue::more(entry.flags()) {
                    self.slots.remove(index);
                }
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let drained = self.drain();
        // The kernel may keep sockets a moment longer than its operations; peers should see the end
        // now.
        self.sockets.shut_all();
        if drained {
            // Otherwise the kernel keeps the files, with their locks, until it frees the ring.
            let _ = self.uring.submitter().unregister_files();
        } else {
            // The kernel may still write to the buffers and to the devices: the devices stay locked
            // until it has finished.
            mem::forget(mem::take(&mut self.slots));
        }
    }
}

/// Builds the kernel's ring with the best task-work mode that the kernel has.
fn build() -> io::Result<IoUring> {
    let base = || {
        let mut builder = IoUring::builder();
        builder.dontfork().setup_clamp().setup_cqsize(COMPLETIONS).setup_submit_all();
        builder
    };
    let mut best = base();
    best.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
    let mut good = base();
    good.setup_coop_taskrun().setup_taskrun_flag();
    best.build(SUBMISSIONS).or_else(|_| good.build(SUBMISSIONS)).or_else(|_| base().build(SUBMISSIONS))
}
