//! The targets of measurements: servers of one NBD export each, with a common interface to start,
//! snapshot and stop them.

mod ceiling;
mod contender;
mod control;
mod counters;
mod drives;
mod fio;
mod loop_mount;
mod millpond;
mod nbdkit;
mod qemu_nbd;
mod qmp;
mod qsd;
mod reflink;
mod volatile;

pub use ceiling::{Ceiling, mount as memory_mount, serve as serve_ceiling};
pub use contender::{Contender, PEERS, make};
pub use control::Control;
pub use counters::Counters;
pub use drives::Drives;
pub use fio::{Fio, fio, fio_file};
pub use loop_mount::{Loop, LoopMount, can_mount, knows_filesystem};
pub use millpond::{DISK, Millpond, POOL, millpond_binary};
pub use nbdkit::{Nbdkit, Plugin};
pub use qemu_nbd::QemuNbd;
pub use qmp::Qmp;
pub use qsd::{Aio, CacheMode, ImageFormat, Qsd};
pub use reflink::Reflink;
pub use volatile::VolatileDisk;
