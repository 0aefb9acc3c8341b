//! The list of tests.

use super::subject::Subject;
use super::{
    activation, devices, fio, full, fuse, fuse_loop, guest_disk, hostile, images, libnbd, model, restart, status, tls, vhost_hostile,
    vhost_recover, vhost_user,
};
use anyhow::Result;

/// What a test asks of a server beyond reading and writing; servers without it are not given the test.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Asks {
    /// Nothing.
    Nothing,
    /// Snapshots and rollback.
    Snapshots,
    /// Millpond's own commands.
    Everything,
}

/// A test.
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// What it shows.
    pub about: &'static str,
    /// Programs without which it is skipped; with a slash, files of the system; `root` and `fuse`: to be allowed to mount.
    pub needs: &'static [&'static str],
    /// It boots a guest.
    pub guest: bool,
    /// What it asks of the server beyond reading and writing.
    pub asks: Asks,
    /// The test.
    pub run: fn(&mut Subject) -> Result<()>,
}

const GUEST: &[&str] = &["qemu-system-x86_64", "busybox", "mke2fs", "e2fsck", "ldd"];

/// All of them, quick ones first.
pub const CASES: &[Case] = &[
    Case {
        name: "nbdinfo",
        about: "size, flags and export list as told",
        needs: &["nbdinfo"],
        guest: false,
        asks: Asks::Nothing,
        run: images::nbdinfo,
    },
    Case {
        name: "nbdcopy",
        about: "a file to the disk and back, over 4 connections",
        needs: &["nbdcopy"],
        guest: false,
        asks: Asks::Nothing,
        run: images::nbdcopy,
    },
    Case {
        name: "qemu-img",
        about: "convert raw and qcow2 images to the disk, compare back",
        needs: &["qemu-img"],
        guest: false,
        asks: Asks::Nothing,
        run: images::qemu_img,
    },
    Case {
        name: "qemu-io",
        about: "patterns at odd sectors, zeroes, discards",
        needs: &["qemu-io"],
        guest: false,
        asks: Asks::Nothing,
        run: images::qemu_io,
    },
    Case {
        name: "mirror",
        about: "a side of a mirror rots, goes missing, is replaced; the other one under load with a kill; the pool grows, and the mirror is removed",
        needs: &["fio"],
        guest: false,
        asks: Asks::Everything,
        run: devices::run,
    },
    Case {
        name: "libnbd",
        about: "libnbd's calls one by one: flags, FUA, zeroes, block status, 32 MiB, connections that share, refusals",
        needs: &["nbdsh"],
        guest: false,
        asks: Asks::Everything,
        run: libnbd::run,
    },
    Case {
        name: "tls-psk",
        about: "pre-shared keys with libnbd's and QEMU's clients; wrong keys and none are refused",
        needs: &["psktool", "nbdinfo", "nbdcopy", "qemu-img", "qemu-io"],
        guest: false,
        asks: Asks::Everything,
        run: tls::keys,
    },
    Case {
        name: "tls-certificate",
        about: "certificates on both sides with libnbd's and QEMU's clients, over TCP, after a restart",
        needs: &["certtool", "nbdinfo", "nbdcopy", "qemu-img"],
        guest: false,
        asks: Asks::Everything,
        run: tls::certificates,
    },
    Case {
        name: "restart",
        about: "stopped and killed under QEMU's client with 32 requests in flight: no error, no write lost",
        needs: &["qemu-img"],
        guest: false,
        asks: Asks::Nothing,
        run: restart::run,
    },
    Case {
        name: "activation",
        about: "sockets of a service manager outlive the daemon, and clients wait in them",
        needs: &["sh"],
        guest: false,
        asks: Asks::Everything,
        run: activation::run,
    },
    Case {
        name: "holes",
        about: "block status agrees with what was written; copies keep holes",
        needs: &["nbdinfo", "nbdcopy", "qemu-img", "qemu-io"],
        guest: false,
        asks: Asks::Everything,
        run: status::holes,
    },
    Case {
        name: "changes",
        about: "dirty bitmaps since a snapshot, also after kill -9; an incremental backup",
        needs: &["nbdinfo", "nbdcopy", "qemu-img", "qemu-io"],
        guest: false,
        asks: Asks::Everything,
        run: status::changes,
    },
    Case {
        name: "model",
        about: "random writes, discards, snapshots, rollbacks, kills against a model",
        needs: &[],
        guest: false,
        asks: Asks::Everything,
        run: model::run,
    },
    Case {
        name: "full",
        about: "a full pool reads, flushes, deletes, discards, and comes back",
        needs: &[],
        guest: false,
        asks: Asks::Everything,
        run: full::run,
    },
    Case {
        name: "hostile",
        about: "garbage, impossible requests, damaged devices",
        needs: &[],
        guest: false,
        asks: Asks::Everything,
        run: hostile::run,
    },
    Case {
        name: "vhost-user-hostile",
        about: "a million hostile requests on a queue, and nonsense on its socket",
        needs: &[],
        guest: false,
        asks: Asks::Everything,
        run: vhost_hostile::run,
    },
    Case {
        name: "vhost-user-recover",
        about: "a full queue in flight whenever the daemon dies",
        needs: &[],
        guest: false,
        asks: Asks::Everything,
        run: vhost_recover::run,
    },
    Case {
        name: "fio-verify",
        about: "crc32c over overwrites, discards and snapshots; rollback",
        needs: &["fio"],
        guest: false,
        asks: Asks::Nothing,
        run: fio::verify,
    },
    Case {
        name: "fuse-files",
        about: "a mounted pool: live directory, sparse copies, holes, read-only snapshots",
        needs: &["fuse", "cp"],
        guest: false,
        asks: Asks::Everything,
        run: fuse::files,
    },
    Case {
        name: "fuse-end",
        about: "a mount is named busy, goes with unexport, SIGTERM and kill -9, comes back, is replaced when dead",
        needs: &["fuse", "pgrep", "kill"],
        guest: false,
        asks: Asks::Everything,
        run: fuse::comes_and_goes,
    },
    Case {
        name: "fuse-model",
        about: "random bytes, holes and kills through files of a mount against bytes in memory",
        needs: &["fuse"],
        guest: false,
        asks: Asks::Everything,
        run: fuse::model,
    },
    Case {
        name: "fuse-fio",
        about: "fio's crc32c over asynchronous direct I/O to a file of a mount",
        needs: &["fuse", "fio"],
        guest: false,
        asks: Asks::Everything,
        run: fuse::fio,
    },
    Case {
        name: "fuse-user",
        about: "who is not root mounts by fusermount3",
        needs: &["fuse", "root", "fusermount3", "setpriv"],
        guest: false,
        asks: Asks::Everything,
        run: fuse::as_user,
    },
    Case {
        name: "fuse-ext4",
        about: "ext4 on a loop device on a mount's file: load, fstrim, fsck, restart, snapshot",
        needs: &["fuse", "/dev/loop-control", "root", "losetup", "mkfs.ext4", "e2fsck", "fstrim", "fsfreeze"],
        guest: false,
        asks: Asks::Everything,
        run: fuse_loop::ext4,
    },
    Case {
        name: "fuse-xfs",
        about: "the same with XFS",
        needs: &["fuse", "/dev/loop-control", "root", "losetup", "mkfs.xfs", "xfs_repair", "fstrim", "fsfreeze"],
        guest: false,
        asks: Asks::Everything,
        run: fuse_loop::xfs,
    },
    Case {
        name: "guest-rollback",
        about: "a guest's files after a rollback",
        needs: GUEST,
        guest: true,
        asks: Asks::Snapshots,
        run: guest_disk::rollback,
    },
    Case {
        name: "guest-kill9-rollback",
        about: "the same, the server killed in between",
        needs: GUEST,
        guest: true,
        asks: Asks::Snapshots,
        run: guest_disk::rollback_after_kill,
    },
    Case {
        name: "guest-kill9",
        about: "a writing guest survives the server's death",
        needs: GUEST,
        guest: true,
        asks: Asks::Nothing,
        run: guest_disk::kill,
    },
    Case {
        name: "guest-stopped",
        about: "the server is stopped and started again under a writing guest, cleanly and by its death",
        needs: GUEST,
        guest: true,
        asks: Asks::Everything,
        run: guest_disk::restart,
    },
    Case {
        name: "vhost-user-disk",
        about: "a guest over vhost-user: sectors, filesystem, discards, growth",
        needs: GUEST,
        guest: true,
        asks: Asks::Everything,
        run: vhost_user::disk,
    },
    Case {
        name: "vhost-user-kill9",
        about: "a guest over vhost-user that writes while the daemon dies",
        needs: GUEST,
        guest: true,
        asks: Asks::Everything,
        run: vhost_user::kill,
    },
];
