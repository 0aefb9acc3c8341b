//! Migrates a guest between two QEMUs while it reads and writes its vhost-user disk.

use super::PATIENCE;
use super::guest::{Guest, Protocol};
use super::guest_disk::{SIZE, room};
use super::subject::Subject;
use anyhow::{Context, Result, bail, ensure};
use millpond_lab::peer::{DISK, Qmp};
use millpond_lab::process::wait_until;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Bandwidth so low that the guest ends its reads before the migration ends, on any machine: its
/// memory takes half an hour to transfer.
const SLOW: u64 = 64 << 10;
const FAST: u64 = 4 << 30;

/// Reads files into the page cache during the migration, and verifies the cached files afterwards.
/// All of the reads may happen before QEMU's first pass over the memory has ended, so this does not
/// prove that every page written by the device is marked dirty; `crates/export` has a test for
/// that.
const READ_WHILE_MOVING: &str = r#"
/sbin/mke2fs -q -t ext4 -F /dev/vda
mount -t ext4 /dev/vda /mnt
mkdir /mnt/before /mnt/during
for i in $(seq 1 40); do dd if=/dev/urandom of=/mnt/before/$i bs=1k count=300 2>/dev/null; done
(cd /mnt && find before -type f | xargs md5sum > /tmp/sums)
sync
echo 3 > /proc/sys/vm/drop_caches
echo "READY"
read go
for i in $(seq 1 40); do
  cat /mnt/before/$i > /dev/null
  dd if=/dev/urandom of=/tmp/file bs=1k count=50 2>/dev/null
  cp /tmp/file /mnt/during/$i
  md5sum < /tmp/file > /tmp/during$i
done
sync
echo "READ"
read go
(cd /mnt && md5sum -c /tmp/sums > /dev/null)
echo 3 > /proc/sys/vm/drop_caches
(cd /mnt && md5sum -c /tmp/sums > /dev/null)
for i in $(seq 1 40); do md5sum < /mnt/during/$i | cmp - /tmp/during$i; done
umount /mnt
/sbin/e2fsck -fn /dev/vda
if dmesg | grep -i "I/O error"; then exit 9; fi
"#;

fn monitor(dir: &Path) -> PathBuf {
    dir.join("monitor")
}

fn options(dir: &Path) -> Vec<String> {
    vec!["-qmp".to_owned(), format!("unix:{},server=on,wait=off", monitor(dir).display())]
}

/// Connects to QEMU's monitor. Its socket exists for a moment before QEMU listens on it.
fn connect(dir: &Path) -> Result<Qmp> {
    let mut qmp = None;
    wait_until("QEMU's monitor", PATIENCE, || {
        qmp = Qmp::connect(&monitor(dir)).ok();
        qmp.is_some()
    })?;
    qmp.context("QEMU's monitor")
}

/// Returns the state of a migration, and the bytes transferred.
fn status(qmp: &mut Qmp) -> Result<(String, u64)> {
    let found = qmp.call("query-migrate", json!({}))?;
    ensure!(found["status"] != "failed", "the guest cannot move: {found}");
    Ok((found["status"].as_str().unwrap_or_default().to_owned(), found["ram"]["transferred"].as_u64().unwrap_or(0)))
}

fn wait_for(qmp: &mut Qmp, what: &str, reached: impl Fn(&(String, u64)) -> bool) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        let status = status(qmp)?;
        if reached(&status) {
            return Ok(());
        }
        if Instant::now() > end {
            bail!("not {what} within {PATIENCE:?}: {status:?}");
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Migrates a guest, after a pause. Each QEMU has its own export of the same volume.
pub fn run(subject: &mut Subject) -> Result<()> {
    subject.start(SIZE)?;
    let (here, there) = (room(subject, "here")?, room(subject, "there")?);
    let millpond = subject.millpond()?;
    let mut sockets = Vec::new();
    for dir in [&here, &there] {
        let socket = dir.join("disk.vu");
        millpond.cli(&[
            "export".as_ref(),
            "vhost-user".as_ref(),
            DISK.as_ref(),
            "--force".as_ref(),
            "--unix".as_ref(),
            socket.as_os_str(),
        ])?;
        sockets.push(socket);
    }
    let (first, second) = sockets.split_at(1);
    let mut guest = Guest::boot_as(&here, Protocol::VhostUser(first), READ_WHILE_MOVING, &options(&here))?;
    guest.expect("READY")?;
    let way = format!("unix:{}", here.join("way").display());
    let moved = Guest::boot_as(
        &there,
        Protocol::VhostUser(second),
        READ_WHILE_MOVING,
        &[options(&there), vec!["-incoming".into(), way.clone()]].concat(),
    );
    let mut moved = moved.context("the QEMU that the guest moves to")?;
    connect(&there)?;
    let mut qmp = connect(&here)?;
    // For the back end a pause is a reset of the device; the guest does not see it.
    qmp.call("stop", json!({}))?;
    qmp.call("cont", json!({}))?;
    qmp.call("migrate-set-parameters", json!({"max-bandwidth": SLOW}))?;
    qmp.call("migrate", json!({"uri": way}))?;
    wait_for(&mut qmp, "moving", |(status, bytes)| status == "active" && *bytes > 0)?;
    guest.go_on()?;
    guest.expect("READ")?;
    ensure!(status(&mut qmp)?.0 == "active", "the guest has moved too early: this has shown nothing");
    qmp.call("migrate-set-parameters", json!({"max-bandwidth": FAST, "downtime-limit": 2000}))?;
    wait_for(&mut qmp, "moved", |(status, _)| status == "completed")?;
    drop(guest);
    moved.go_on()?;
    moved.finish()
}
