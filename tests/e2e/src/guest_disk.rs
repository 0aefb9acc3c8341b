//! Content of a guest's disk after snapshots, rollbacks and kills of the server.

use super::guest::Guest;
use super::subject::Subject;
use anyhow::{Result, ensure};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

pub const SIZE: u64 = 256 << 20;

/// Makes a file system and files, waits for the snapshot, then changes, removes and adds files.
const WRITE: &str = r#"
/sbin/mke2fs -q -t ext4 -F /dev/vda
mount -t ext4 /dev/vda /mnt
mkdir /mnt/old
for i in $(seq 1 40); do dd if=/dev/urandom of=/mnt/old/$i bs=1k count=$((i * 9)) 2>/dev/null; done
(cd /mnt && find old -type f | sort | xargs md5sum > sums)
sync
echo "SUMS $(md5sum < /mnt/sums)"
echo "READY"
read go
for i in $(seq 1 40); do dd if=/dev/urandom of=/mnt/old/$i bs=1k count=$((i * 9)) 2>/dev/null; done
rm -r /mnt/old/1*
echo "HALFWAY"
mkdir /mnt/new
for i in $(seq 1 40); do dd if=/dev/urandom of=/mnt/new/$i bs=1k count=300 2>/dev/null; done
sync
umount /mnt
"#;

/// Checks that the files are those before the snapshot, that nothing newer exists, and that the
/// file system is sound.
const FIND_OLD: &str = r#"
mount -t ext4 /dev/vda /mnt
echo "SUMS $(md5sum < /mnt/sums)"
cd /mnt
md5sum -c sums > /dev/null
[ "$(ls old | wc -l)" = 40 ]
[ ! -e new ]
cd /
umount /mnt
/sbin/e2fsck -fn /dev/vda
if dmesg | grep -i "I/O error"; then exit 9; fi
"#;

/// Writes and syncs files, then continues to write while the server is killed; all files must be
/// there with cold caches, without an I/O error.
pub const WRITE_THROUGH_DEATH: &str = r#"
/sbin/mke2fs -q -t ext4 -F /dev/vda
mount -t ext4 /dev/vda /mnt
mkdir /mnt/before /mnt/during
for i in $(seq 1 20); do dd if=/dev/urandom of=/mnt/before/$i bs=1k count=$((i * 9)) 2>/dev/null; done
(cd /mnt && find before -type f | xargs md5sum > /tmp/sums)
sync
echo "READY"
for i in $(seq 1 60); do
  dd if=/dev/urandom of=/tmp/file bs=1k count=200 2>/dev/null
  cp /tmp/file /mnt/during/$i
  md5sum < /tmp/file > /tmp/during$i
  [ $((i % 5)) != 0 ] || sync
done
sync
echo 3 > /proc/sys/vm/drop_caches
(cd /mnt && md5sum -c /tmp/sums > /dev/null)
for i in $(seq 1 60); do [ "$(md5sum < /mnt/during/$i)" = "$(cat /tmp/during$i)" ]; done
(cd /mnt && find before during -type f | xargs md5sum > sums)
umount /mnt
/sbin/e2fsck -fn /dev/vda
if dmesg | grep -i "I/O error"; then exit 9; fi
"#;

pub const FIND_ALL: &str = r#"
mount -t ext4 /dev/vda /mnt
(cd /mnt && md5sum -c sums > /dev/null && [ "$(wc -l < sums)" = 80 ])
umount /mnt
"#;

pub fn room(subject: &Subject, name: &str) -> Result<PathBuf> {
    let dir = subject.file(name);
    std::fs::create_dir_all(&dir)?;
    Ok(dir)
}

/// Files, a snapshot, other files, a rollback: the first files must be back.
pub fn rollback(subject: &mut Subject) -> Result<()> {
    there_and_back(subject, false)
}

/// The server is killed and restarted while the guest writes the other files.
pub fn rollback_after_kill(subject: &mut Subject) -> Result<()> {
    there_and_back(subject, true)
}

fn there_and_back(subject: &mut Subject, kill: bool) -> Result<()> {
    let endpoint = subject.start(SIZE)?;
    let mut guest = Guest::boot(&room(subject, "first")?, &endpoint, WRITE)?;
    let sums = guest.expect("SUMS")?;
    guest.expect("READY")?;
    subject.server().snapshot("before")?;
    guest.go_on()?;
    if kill {
        guest.expect("HALFWAY")?;
        subject.server().kill9()?;
        subject.server().restart()?;
    }
    guest.finish()?;
    subject.server().rollback("before")?;
    let endpoint = subject.server().endpoint()?;
    let mut guest = Guest::boot(&room(subject, "second")?, &endpoint, FIND_OLD)?;
    let found = guest.expect("SUMS")?;
    ensure!(found == sums, "the list of files is another one");
    guest.finish()
}

/// The server is killed twice while the guest writes: no error in the guest and no data lost,
/// neither now nor after a clean restart.
pub fn kill(subject: &mut Subject) -> Result<()> {
    let endpoint = subject.start(SIZE)?;
    let mut guest = Guest::boot(&room(subject, "first")?, &endpoint, WRITE_THROUGH_DEATH)?;
    guest.expect("READY")?;
    for pause in [150, 700] {
        thread::sleep(Duration::from_millis(pause));
        subject.server().kill9()?;
        subject.server().restart()?;
    }
    guest.finish()?;
    subject.server().stop()?;
    subject.server().restart()?;
    let endpoint = subject.server().endpoint()?;
    Guest::boot(&room(subject, "second")?, &endpoint, FIND_ALL)?.finish()
}

/// The server is stopped cleanly and restarted at once, then stopped and restarted after a while
/// without a socket; then it is killed, and restarted after a while without a listener. The guest
/// sees pauses, but no errors, and loses nothing.
pub fn restart(subject: &mut Subject) -> Result<()> {
    let endpoint = subject.start(SIZE)?;
    let mut guest = Guest::boot(&room(subject, "first")?, &endpoint, WRITE_THROUGH_DEATH)?;
    guest.expect("READY")?;
    for (clean, before, gone) in [(true, 100, 0), (true, 300, 1200), (false, 300, 1200)] {
        thread::sleep(Duration::from_millis(before));
        if clean {
            subject.server().stop()?;
        } else {
            subject.server().kill9()?;
        }
        let there = endpoint.socket().is_some_and(std::path::Path::exists);
        ensure!(there != clean, "the socket is {} after the server's end", if there { "there" } else { "gone" });
        thread::sleep(Duration::from_millis(gone));
        subject.server().restart()?;
    }
    guest.finish()?;
    subject.server().stop()?;
    subject.server().restart()?;
    let endpoint = subject.server().endpoint()?;
    Guest::boot(&room(subject, "second")?, &endpoint, FIND_ALL)?.finish()
}
