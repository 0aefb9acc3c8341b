//! Packages of releases.

use super::{Asks, Case};
use crate::{packages, walk};

pub const CASES: &[Case] = &[
    Case {
        name: "packages",
        about: "the Debian package in a clean tree under systemd: installed, used, upgraded under a client and a guest, removed, purged; six minutes, only if MILLPOND_PACKAGES is set",
        needs: &[
            "$MILLPOND_PACKAGES",
            "root",
            "mmdebstrap",
            "dpkg-deb",
            "dpkg-shlibdeps",
            "strip",
            "as",
            "ld",
            "mke2fs",
            "qemu-system-x86_64",
            "busybox",
        ],
        guest: true,
        asks: Asks::Everything,
        run: packages::debian,
    },
    Case {
        name: "walk",
        about: "the commands of docs/walk.md on a fresh Debian under systemd: package, pool, guest of libvirt, a lost disk, rollback, one file of yesterday; only if MILLPOND_PACKAGES is set",
        needs: &[
            "$MILLPOND_PACKAGES",
            "root",
            "mmdebstrap",
            "dpkg-deb",
            "dpkg-shlibdeps",
            "strip",
            "mke2fs",
            "mkfs.fat",
            "mcopy",
            "syslinux",
            "sfdisk",
            "qemu-img",
            "qemu-system-x86_64",
            "busybox",
        ],
        guest: true,
        asks: Asks::Everything,
        run: walk::run,
    },
    Case {
        name: "static-packages",
        about: "the tarball and the OCI image, with the static program in the directory that MILLPOND_STATIC names",
        needs: &["root", "$MILLPOND_STATIC", "strip", "readelf", "chroot"],
        guest: false,
        asks: Asks::Everything,
        run: packages::without_debian,
    },
];
