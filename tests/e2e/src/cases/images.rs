//! Disk images, and sector sizes of their contents.

use super::{Asks, Case};
use crate::{backup, disk_images, sectors, send_receive};

pub const CASES: &[Case] = &[
    Case {
        name: "import-images",
        about: "20 images of all formats, with odd sizes and holes, become volumes and images again, byte for byte",
        needs: &["qemu-img", "qemu-io", "qemu-nbd"],
        guest: false,
        asks: Asks::Everything,
        run: disk_images::generated,
    },
    Case {
        name: "import-chains",
        about: "backing chains, a Proxmox chain and snapshots within become snapshots; and a chain again",
        needs: &["qemu-img", "qemu-io", "qemu-nbd"],
        guest: false,
        asks: Asks::Everything,
        run: disk_images::chains,
    },
    Case {
        name: "import-devices",
        about: "a Proxmox chain on devices, as on LVM: dry run, content of every snapshot, an inactive device, a short one",
        needs: &["qemu-img", "qemu-io", "qemu-nbd", "losetup", "/dev/loop-control", "root"],
        guest: false,
        asks: Asks::Everything,
        run: disk_images::devices,
    },
    Case {
        name: "import-hostile",
        about: "truncated, looped, absurd and spoilt images end with one line; no volume, export or process is left",
        needs: &["qemu-img", "qemu-io", "qemu-nbd"],
        guest: false,
        asks: Asks::Everything,
        run: disk_images::hostile,
    },
    Case {
        name: "send-receive",
        about: "snapshots of a volume under load go to a second host and back, while either end is killed",
        needs: &[],
        guest: false,
        asks: Asks::Everything,
        run: send_receive::run,
    },
    Case {
        name: "backup",
        about: "a volume under load is backed up while the backup, the prune or the daemon is killed; all that is listed comes back",
        needs: &[],
        guest: false,
        asks: Asks::Everything,
        run: backup::directory,
    },
    Case {
        name: "backup-bucket",
        about: "two backups at once into a bucket, a prune that waits for them, a killed one",
        needs: &["versitygw"],
        guest: false,
        asks: Asks::Everything,
        run: backup::bucket,
    },
    Case {
        name: "backup-one-file",
        about: "one file of a guest's file system comes back through a mount of the backups",
        needs: &["fuse", "/dev/loop-control", "root", "mkfs.ext4"],
        guest: false,
        asks: Asks::Everything,
        run: backup::one_file,
    },
    Case {
        name: "sectors-boot-4kn",
        about: "a 512-byte disk with an ESP, converted to 4096: firmware boots from it, filesystems are whole",
        needs: sectors::NEEDS,
        guest: true,
        asks: Asks::Everything,
        run: sectors::boot_4kn,
    },
    Case {
        name: "sectors-boot-512e",
        about: "the same disk, converted back: firmware boots from it, filesystems are whole",
        needs: sectors::NEEDS,
        guest: true,
        asks: Asks::Everything,
        run: sectors::boot_512e,
    },
];
