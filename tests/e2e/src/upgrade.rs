//! The package is upgraded under a guest with a disk over vhost-user and one over NBD.

use super::PATIENCE;
use super::guest::{Guest, Protocol, nbd_disk};
use super::guest_disk::{SIZE, room};
use super::subject::Subject;
use super::vhost_user::export;
use anyhow::{Context, Result, ensure};
use millpond_lab::peer::{Contender, Millpond, millpond_binary};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Volume of the disk over vhost-user, which is /dev/vda; /dev/vdb is the one over NBD.
const OTHER: &str = "lab/other";

/// Writes files to both disks until the word `end`, and answers each other word with the number
/// of files written so far. Then all files must be there with cold caches, without an I/O error.
const LOAD: &str = r#"
for disk in vda vdb; do
  /sbin/mke2fs -q -t ext4 -F /dev/$disk
  mkdir -p /mnt/$disk /tmp/$disk
  mount -t ext4 /dev/$disk /mnt/$disk
  echo 0 > /tmp/$disk.files
done
load() {
  i=0
  until [ -e /tmp/end ]; do
    i=$((i + 1))
    file=$((i % 40))
    dd if=/dev/urandom of=/tmp/$1/$file bs=1k count=100
    cp /tmp/$1/$file /mnt/$1/$file
    [ $((i % 4)) != 0 ] || sync
    echo $i > /tmp/$1.new
    mv /tmp/$1.new /tmp/$1.files
  done
}
load vda 2> /tmp/vda.log &
first=$!
load vdb 2> /tmp/vdb.log &
second=$!
echo "READY"
while read word && [ $word != end ]; do
  kill -0 $first || { tail -n 30 /tmp/vda.log; false; }
  kill -0 $second || { tail -n 30 /tmp/vdb.log; false; }
  echo "FILES $(cat /tmp/vda.files) $(cat /tmp/vdb.files)"
done
touch /tmp/end
wait $first || { tail -n 30 /tmp/vda.log; false; }
wait $second || { tail -n 30 /tmp/vdb.log; false; }
sync
echo 3 > /proc/sys/vm/drop_caches
for disk in vda vdb; do
  (cd /tmp/$disk && md5sum * > /tmp/sums)
  (cd /mnt/$disk && md5sum -c /tmp/sums > /dev/null && cp /tmp/sums sums)
  umount /mnt/$disk
  /sbin/e2fsck -fn /dev/$disk
done
if dmesg | grep -i "I/O error"; then exit 9; fi
"#;

/// Finds the files again.
const FIND: &str = r#"
for disk in vda vdb; do
  mount -t ext4 /dev/$disk /mnt
  (cd /mnt && md5sum -c sums > /dev/null && [ "$(wc -l < sums)" -gt 8 ])
  umount /mnt
done
"#;

/// Installs a version of the program as dpkg does: a new file takes the place of the old one, which
/// a running daemon keeps. Bytes after the program make each version another file.
fn install(program: &Path, version: u64) -> Result<()> {
    let new = program.with_extension("dpkg-new");
    fs::copy(millpond_binary()?, &new).context("copying the program")?;
    let mut file = File::options().append(true).open(&new)?;
    file.write_all(&version.to_le_bytes())?;
    file.set_permissions(fs::Permissions::from_mode(0o755))?;
    file.sync_all()?;
    drop(file);
    fs::rename(&new, program).context("replacing the program")
}

/// Returns the path of the file that a process runs, without symbolic links; it ends with
/// `(deleted)` once the file is replaced.
fn runs(pid: u32) -> Result<PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe")).context("reading the program of a process")
}

/// Returns the numbers of files that the guest has written so far.
fn files(guest: &mut Guest) -> Result<[u64; 2]> {
    guest.go_on()?;
    let line = guest.expect("FILES")?;
    let (first, second) = line.split_once(' ').context("two numbers")?;
    Ok([first.parse()?, second.parse()?])
}

/// Waits until the guest has written more files to both disks.
fn wait_for_more(guest: &mut Guest) -> Result<()> {
    let (before, end) = (files(guest)?, Instant::now() + PATIENCE);
    while files(guest)?.iter().zip(&before).any(|(now, before)| *now < before + 3) {
        ensure!(Instant::now() < end, "the guest does not go on to write");
        thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

/// The program is replaced twice, and each time the daemon is restarted as the package's `postinst`
/// does it. The guest sees no error, and every file is there, also after another restart.
pub fn run(subject: &mut Subject) -> Result<()> {
    let program = fs::canonicalize(room(subject, "package")?)?.join("millpond");
    install(&program, 0)?;
    let mut millpond = Millpond::new(program.clone()).without_read_cache();
    let dir = room(subject, "server")?;
    millpond.start(&dir, SIZE)?;
    millpond.cli(&["create", OTHER, "-L", &SIZE.to_string()])?;
    let sockets = [export(&millpond, &dir, OTHER)?];
    let endpoint = millpond.endpoint()?;
    let boot = |dir: &Path, script: &str| Guest::boot_as(dir, Protocol::VhostUser(&sockets), script, &nbd_disk(&endpoint)?);
    let mut guest = boot(&room(subject, "first")?, LOAD)?;
    guest.expect("READY")?;
    for version in 1..3 {
        wait_for_more(&mut guest)?;
        let old = millpond.pid()?;
        install(&program, version)?;
        ensure!(runs(old)?.to_string_lossy().ends_with("(deleted)"), "the old daemon runs the new program");
        millpond.stop()?;
        millpond.restart()?;
        ensure!(millpond.pid()? != old && runs(millpond.pid()?)? == program, "the daemon runs {}", runs(millpond.pid()?)?.display());
        wait_for_more(&mut guest)?;
    }
    let turned_on = millpond.cli(&["pool", "upgrade", "-y", "lab"])?;
    ensure!(turned_on.contains("nothing to turn on"), "{turned_on}");
    wait_for_more(&mut guest)?;
    guest.send("end")?;
    guest.finish()?;
    millpond.stop()?;
    millpond.restart()?;
    boot(&room(subject, "second")?, FIND)?.finish()
}
