//! FUSE: files, file systems on loop devices, owners, hostile users.

use super::{Asks, Case};
use crate::{fuse, fuse_hostile, fuse_loop, fuse_owner, suites};

pub const CASES: &[Case] = &[
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
        name: "fuse-fsx",
        about: "fsx on a file of a mount",
        needs: &["fuse", "fsx"],
        guest: false,
        asks: Asks::Everything,
        run: suites::fsx,
    },
    Case {
        name: "fuse-hostile",
        about: "a hundred thousand calls with wrong numbers on a mount",
        needs: &["fuse"],
        guest: false,
        asks: Asks::Everything,
        run: fuse_hostile::run,
    },
    Case {
        name: "fuse-owner",
        about: "a mount that belongs to somebody: who may read and write, and copies by cp and qemu-img",
        needs: &["fuse", "root", "setpriv", "qemu-img"],
        guest: false,
        asks: Asks::Everything,
        run: fuse_owner::run,
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
];
