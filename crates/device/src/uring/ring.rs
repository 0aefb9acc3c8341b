//! The ring: set-up, the turn, dispatch of completions, orderly end.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::time::{Duration, Instant};

use io_uring::squeue::Entry;
use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, Submitter, cqueue, opcode};
use rustix::io::Errno;

use super::device::Devices;
use super::event::{Event, Wait};
use super::slots::{Op, Slots};
use super::socket::{Sockets, take_descriptor};
use super::wake::Waker;
use super::watch::Watches;
use crate::{Deadline, IoDone, Queue};

/// Entries of the submission queue: what one turn may start without a second system call. 64 connections' receives and sends and a few
/// hundred device operations.
const SUBMISSIONS: u32 = 512;
/// Entries of the completion queue; beyond it the kernel keeps completions aside, which costs time but loses nothing.
const COMPLETIONS: u32 = 4096;
/// How long [`Ring`]'s drop waits for operations that cannot be cancelled (disk writes, flushes).
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
    /// Until when devices may be changed; for ever where there is none.
    lease: Option<Deadline>,
    /// The kernel left entries in its queue that must not reach it any more: nothing is handed to it from now on.
    sealed: bool,
    pub(super) events: VecDeque<Event>,
    pub(super) devices: Devices,
    pub(super) sockets: Sockets,
    pub(super) watches: Watches,
    waker: Waker,
}

impl Ring {
    /// A ring for the calling thread; it must be used and dropped there, which the type system sees to.
    ///
    /// # Errors
    /// The kernel's: no io_uring, or not allowed, or out of descriptors.
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

    /// A way to wake this ring from other threads.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// The next event, oldest first.
    pub fn pop(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// From now on nothing that changes a device is handed to the kernel after `until`: it comes back as [`Event::Unsent`]. The clock is read right
    /// before the system call, so however long an operation waited here, or this thread was held up, makes no difference. What the kernel was
    /// given before goes on.
    pub fn set_lease(&mut self, until: Option<Deadline>) {
        self.lease = until;
    }

    pub(super) fn lease_is_over(&self) -> bool {
        self.lease.is_some_and(|lease| lease.is_over())
    }

    /// The next event when it is the end of a device operation: since the last turn's events were popped, of one that was carried out at once.
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

    /// Starts what was asked for since the last turn and collects what has ended: at most one system call. Waits only when there is no
    /// event to be popped.
    ///
    /// # Errors
    /// The kernel's, when the ring does not work any more. Interruptions and ends of waits are no errors.
    pub fn turn(&mut self, wait: Wait) -> io::Result<()> {
        self.rearm_listeners();
        self.collect();
        self.refill()?;
        let wait = if self.events.is_empty() { self.sockets.bound_wait(wait) } else { Wait::No };
        self.enter(wait)?;
        self.collect();
        Ok(())
    }

    /// Looks for events for up to `time` without sleeping: cheaper for both sides than a sleep and a wake-up when the next event is
    /// microseconds away. Returns true when there is one, or when `look` has found something to do elsewhere; that one is asked every
    /// hundred nanoseconds or so, and the kernel's queue less often.
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

    /// Operations under way, idle receives and listeners included.
    pub fn in_flight(&self) -> usize {
        self.slots.live()
    }

    /// Device operations under way.
    pub fn io_in_flight(&self) -> usize {
        self.slots.ios().count()
    }

    /// Forgets the device operations that have not reached the kernel, and asks it to cancel the others. It does not cancel what a device is at:
    /// those end later, or never when the device hangs.
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

    pub(super) fn submitter(&self) -> Submitter<'_> {
        self.uring.submitter()
    }

    /// Queues an entry whose memory is owned by the slot named by its `user_data`.
    pub(super) fn push(&mut self, index: u32, entry: Entry) {
        self.waiting.push(entry.user_data(u64::from(index)), false);
    }

    /// The same, before all others.
    pub(super) fn push_first(&mut self, index: u32, entry: Entry) {
        self.waiting.push(entry.user_data(u64::from(index)), true);
    }

    /// Moves entries into the submission queue, right before the system call. This is the one place through which operations reach the kernel
    /// (those on files in memory aside, see [`Ring::submit`]), so the lease is asked for here.
    fn refill(&mut self) -> io::Result<()> {
        let left = self.uring.submission().len();
        if left == 0 && self.waiting.is_empty() {
            return Ok(());
        }
        if self.lease_is_over() {
            if left > 0 {
                // the kernel was short of memory; what it has not taken cannot be taken out of its queue again
                self.sealed = true;
                return Err(io::Error::other("the kernel took operations too late for the pool's lease"));
            }
            self.recall();
        }
        let mut queue = self.uring.submission();
        while let Some(entry) = self.waiting.pop() {
            // SAFETY: what the entry points to is owned by the slot that it names, lies on the heap and stays there until the operation's last
            // completion was seen (INV-URING-1); descriptors are owned by `devices`, `sockets` and `waker`, or are checked by the kernel.
            if unsafe { queue.push(&entry) }.is_err() {
                self.waiting.push(entry, true);
                break;
            }
        }
        Ok(())
    }

    /// Gives back everything that would change a device and that the kernel does not have yet.
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
            // Interrupted; the wait is over; completions must be collected first; short of memory for now.
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
            // Multishot: the operation goes on and keeps its slot.
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

    /// Cancels what can be cancelled and waits for the rest. True when the kernel has let go of everything.
    fn drain(&mut self) -> bool {
        // What never reached the kernel needs no waiting for.
        while let Some(entry) = self.waiting.pop() {
            self.slots.take_named_by(&entry);
        }
        self.sealed |= self.lease_is_over() && !self.uring.submission().is_empty();
        if self.sealed {
            return self.slots.live() == 0;
        }
        // nothing but cancellations is handed over from here on
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
            // Completions of writes may start another part of them, and a wake-up arms the waker again: cancel until nothing is left.
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
        // The kernel may hold sockets for a moment longer than its operations: peers shall see their end now.
        self.sockets.shut_all();
        if drained {
            // The kernel would keep the files, and with them their locks, until it gets round to clearing the ring away.
            let _ = self.uring.submitter().unregister_files();
        } else {
            // The kernel may still write to the buffers, and to the devices: those stay locked until it has finished.
            mem::forget(mem::take(&mut self.slots));
        }
    }
}

/// Builds the kernel's part with the best task-work mode that it has.
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
