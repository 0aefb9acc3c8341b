//! A guest whose disks are vhost-user-blk devices.

use super::PATIENCE;
use super::guest::{Guest, Protocol};
use super::guest_disk::{FIND_ALL, SIZE, WRITE_THROUGH_DEATH, room};
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::peer::{DISK, Millpond};
use millpond_lab::process::wait_until;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// Size of the disk after it has grown.
const GROWN: u64 = SIZE + (128 << 20);

/// Sector profiles: vda has 512e; vdb has 4kn; vdc is a snapshot with 512n.
const LOOK_AND_USE: &str = r#"
is() { [ "$(cat /sys/block/$1)" = "$2" ] || { echo "$1 is $(cat /sys/block/$1), not $2"; exit 8; }; }
is vda/queue/logical_block_size 512
is vda/queue/physical_block_size 4096
is vdb/queue/logical_block_size 4096
is vdb/queue/physical_block_size 4096
is vdc/queue/logical_block_size 512
is vdc/queue/physical_block_size 512
is vda/queue/minimum_io_size 4096
is vdc/queue/minimum_io_size 512
is vda/ro 0
is vdc/ro 1
is vda/queue/discard_granularity 4096
is vda/queue/write_cache "write back"
[ "$(cat /sys/block/vda/queue/discard_max_bytes)" -ge 1073741824 ]
[ "$(cat /sys/block/vda/queue/write_zeroes_max_bytes)" -ge 1073741824 ]
[ "$(ls /sys/block/vda/mq | wc -l)" = 1 ]
echo "SERIAL $(cat /sys/block/vda/serial) $(cat /sys/block/vdb/serial) $(cat /sys/block/vdc/serial)"
echo "write through" > /sys/block/vda/cache_type
is vda/queue/write_cache "write through"
dd if=/dev/urandom of=/tmp/some bs=4k count=64 2>/dev/null
dd if=/tmp/some of=/dev/vda bs=4k seek=100 oflag=direct 2>/dev/null
echo "write back" > /sys/block/vda/cache_type
is vda/queue/write_cache "write back"
dd if=/dev/vda bs=4k skip=100 count=64 iflag=direct 2>/dev/null | cmp - /tmp/some
if dd if=/dev/zero of=/dev/vdc bs=4k count=1 oflag=direct 2>/dev/null; then exit 7; fi
for disk in vda vdb; do
  /sbin/mke2fs -q -t ext4 -F /dev/$disk
  mount -t ext4 /dev/$disk /mnt
  for i in $(seq 1 30); do dd if=/dev/urandom of=/mnt/$i bs=1k count=$((i * 40)) 2>/dev/null; done
  (cd /mnt && md5sum * > /tmp/sums 2>/dev/null || true)
  sync
  echo 3 > /proc/sys/vm/drop_caches
  (cd /mnt && grep -v lost /tmp/sums | md5sum -c > /dev/null)
  umount /mnt
  /sbin/e2fsck -fn /dev/$disk
done
echo "FULL"
read go
mount -t ext4 /dev/vda /mnt
rm /mnt/[0-9]*
sync
fstrim /mnt
umount /mnt
/sbin/e2fsck -fn /dev/vda
blkdiscard /dev/vdb
dd if=/dev/vdb bs=1M count=8 iflag=direct 2>/dev/null | tr -d '\0' | wc -c | grep -qx 0
echo "TRIMMED"
read go
while [ "$(cat /sys/block/vda/size)" != $NEW ]; do sleep 0.1; done
dd if=/tmp/some of=/dev/vda bs=4k seek=$((NEW / 8 - 64)) oflag=direct 2>/dev/null
dd if=/dev/vda bs=4k skip=$((NEW / 8 - 64)) iflag=direct 2>/dev/null | cmp - /tmp/some
if dmesg | grep -i "I/O error" | grep -v vdc; then exit 9; fi
"#;

/// Exports a volume or snapshot over vhost-user.
pub fn export(millpond: &Millpond, dir: &Path, name: &str) -> Result<PathBuf> {
    let socket = dir.join(format!("{}.vu", name.replace(['/', '@'], "-")));
    millpond.cli(&["export".as_ref(), "vhost-user".as_ref(), name.as_ref(), "--force".as_ref(), "--unix".as_ref(), socket.as_os_str()])?;
    Ok(socket)
}

/// Bytes that a volume refers to.
fn referenced(millpond: &Millpond, name: &str) -> Result<u64> {
    let list = millpond.json(&["list", "-t", "volume"])?;
    let volume = list.as_array().into_iter().flatten().find(|volume| volume["name"] == name).context("no such volume")?;
    volume["referenced_bytes"].as_u64().context("no referenced_bytes")
}

/// Returns the listed export on a socket.
fn listed(millpond: &Millpond, socket: &Path) -> Result<Value> {
    let list = millpond.json(&["exports"])?;
    let is_it = |export: &&Value| export["unix"].as_str() == socket.to_str();
    list.as_array().into_iter().flatten().find(is_it).cloned().context("the export is not listed")
}

/// The guest sees the sectors, caches and serial numbers of the volumes; a file system works,
/// discards free space, and a disk grows while it is used.
pub fn disk(subject: &mut Subject) -> Result<()> {
    subject.start(SIZE)?;
    let dir = room(subject, "guest")?;
    let millpond = subject.millpond()?;
    let size = SIZE.to_string();
    millpond.cli(&["create", "lab/native", "-L", &size, "--sector", "4kn"])?;
    millpond.cli(&["create", "lab/old", "-L", &size, "--sector", "512n"])?;
    millpond.cli(&["snapshot", "lab/old@then"])?;
    let sockets = [DISK, "lab/native", "lab/old@then"].map(|name| export(millpond, &dir, name));
    let sockets: Vec<PathBuf> = sockets.into_iter().collect::<Result<_>>()?;
    let script = LOOK_AND_USE.replace("$NEW", &(GROWN / 512).to_string()).replace("NEW /", &format!("{} /", GROWN / 512));
    let mut guest = Guest::boot_with(&dir, Protocol::VhostUser(&sockets), &script)?;
    let serials = guest.expect("SERIAL")?;
    let different: std::collections::BTreeSet<&str> = serials.split_whitespace().collect();
    ensure!(different.len() == 3, "serial numbers: {serials}");
    guest.expect("FULL")?;
    let full = [referenced(millpond, DISK)?, referenced(millpond, "lab/native")?];
    ensure!(full.iter().all(|bytes| *bytes > 18 << 20), "the volumes refer to {full:?} bytes only");
    let export = listed(millpond, &sockets[0])?;
    ensure!(export["kind"] == "vhost-user" && export["clients"] == 1, "listed as {export}");
    let written = export["io"]["write_bytes"].as_u64().context("no counters")?;
    ensure!(written > 18 << 20, "{written} bytes written");
    guest.go_on()?;
    guest.expect("TRIMMED")?;
    let trimmed = [referenced(millpond, DISK)?, referenced(millpond, "lab/native")?];
    ensure!(trimmed[0] < full[0] - (15 << 20), "fstrim has left {} of {} bytes", trimmed[0], full[0]);
    ensure!(trimmed[1] < 1 << 20, "blkdiscard has left {} bytes", trimmed[1]);
    millpond.cli(&["resize", DISK, &GROWN.to_string()])?;
    guest.go_on()?;
    guest.finish()?;
    wait_until("the guest's end", PATIENCE, || listed(millpond, &sockets[0]).is_ok_and(|export| export["clients"] == 0))?;
    Ok(())
}

/// The daemon is killed twice while the guest writes: no error in the guest and no data lost,
/// neither now nor after a clean restart.
pub fn kill(subject: &mut Subject) -> Result<()> {
    subject.start(SIZE)?;
    let dir = room(subject, "first")?;
    let sockets = [export(subject.millpond()?, &dir, DISK)?];
    let mut guest = Guest::boot_with(&dir, Protocol::VhostUser(&sockets), WRITE_THROUGH_DEATH)?;
    guest.expect("READY")?;
    for pause in [150, 1700] {
        thread::sleep(Duration::from_millis(pause));
        subject.server().kill9()?;
        subject.server().restart()?;
    }
    guest.finish()?;
    subject.server().stop()?;
    subject.server().restart()?;
    Guest::boot_with(&room(subject, "second")?, Protocol::VhostUser(&sockets), FIND_ALL)?.finish()
}
