//! Estimate whether the next event of a shard comes soon, so that its thread polls before it
//! sleeps.

/// A wait was short when its event came within this many nanoseconds: the time of polling (`SPIN` of the event loop) and a wake-up.
const SOON_NANOS: u64 = 35_000;

/// Whether the last wait was short, with and without device operations in flight: how long a client
/// takes until its next request says nothing about how long a device takes. With one estimate for
/// both, the loop never polled for a client that flushes after each write, because a flush takes
/// long: such a client got 0.93 of the requests that qemu-storage-daemon carries at depth 1, and 1.01
/// with two estimates (`millpond-lab run defaults --media disk --disk-dir DIR`, the rows of write +
/// flush, in an XFS on a loop device).
#[derive(Default)]
pub(super) struct Soon {
    client: bool,
    device: bool,
}

impl Soon {
    /// Returns whether the next event is expected soon.
    pub(super) fn expects(&self, devices_work: bool) -> bool {
        if devices_work { self.device } else { self.client }
    }

    /// Notes the length of a wait.
    pub(super) fn waited(&mut self, devices_work: bool, nanos: u64) {
        let last = if devices_work { &mut self.device } else { &mut self.client };
        *last = nanos <= SOON_NANOS;
    }
}
