//! The package is upgraded, and once downgraded, under a guest with a disk over vhost-user and one over
//! NBD. Exports, volumes, snapshots, policies and the format of the pool stay as they are.

use super::PATIENCE;
use super::guest::{Guest, Protocol, nbd_disk};
use super::guest_disk::{SIZE, room};
use super::subject::Subject;
use super::vhost_user::export;
use anyhow::{Context, Result, ensure};
use millpond_lab::peer::{Contender, Millpond, millpond_binary};
use serde_json::{Value, json};
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

/// Names the program of an earlier version, which is installed first; else it is the one under test.
const OLD: &str = "MILLPOND_OLD_BIN";
/// Snapshot with a read-only export that no client uses.
const SNAPSHOT: &str = "lab/disk@before";
/// Maximum wait until the exports are online again.
const RESTORED: Duration = Duration::from_secs(120);

/// Installs a version of the program as dpkg does: a new file takes the place of the old one, which
/// a running daemon keeps. Bytes after the program make each version another file.
fn install(version: &Path, program: &Path, number: u64) -> Result<()> {
    let new = program.with_extension("dpkg-new");
    fs::copy(version, &new).context("copying the program")?;
    let mut file = File::options().append(true).open(&new)?;
    file.write_all(&number.to_le_bytes())?;
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

/// Adds what no client of this test uses: a held snapshot, its export with limits and a mode, and a
/// policy.
fn add_unused(millpond: &Millpond, dir: &Path) -> Result<()> {
    millpond.cli(&["snapshot", SNAPSHOT])?;
    millpond.cli(&["hold", SNAPSHOT, "--tag", "audit"])?;
    let socket = dir.join("unused.sock").display().to_string();
    let words = ["export", "nbd", SNAPSHOT, "--readonly", "--max-clients", "3", "--mode", "0640", "--unix", &socket];
    millpond.cli(&words)?;
    millpond.cli(&["policy", "create", "daily", "--keep", "1d:7d"])?;
    millpond.cli(&["policy", "attach", "daily", OTHER]).map(drop)
}

/// Returns listed exports without their states, clients and counters.
fn settings(exports: &Value) -> Value {
    let mut exports = exports.clone();
    for export in exports.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        export.retain(|field, _| !["state", "reason", "clients", "connections", "io", "volumes"].contains(&field.as_str()));
    }
    exports
}

/// Returns the modes of the sockets of listed exports.
fn modes(exports: &Value) -> Result<Vec<u32>> {
    let sockets = exports.as_array().into_iter().flatten().filter_map(|export| export["unix"].as_str());
    sockets.map(|socket| Ok(fs::symlink_metadata(socket).context("a socket")?.permissions().mode())).collect()
}

/// Returns all that an upgrade must keep besides data. Snapshots of the policy are left out, because
/// their number depends on the time.
fn kept(millpond: &Millpond) -> Result<Value> {
    let lines = |words: &[&str], columns: &str| -> Result<Vec<String>> {
        let text = millpond.cli(&[words, &["-H", "-o", columns]].concat())?;
        Ok(text.lines().filter(|line| !line.contains("@auto-")).map(str::to_owned).collect())
    };
    let exports = millpond.json(&["exports"])?;
    let of_snapshots = "name,id,size,created,hold_tags,description,expires";
    Ok(json!({
        "exports": settings(&exports),
        "modes": modes(&exports)?,
        "pool": lines(&["pool", "get", "format,features", "lab"], "property,value")?,
        "volumes": lines(&["list", "-t", "volume"], "name,id,size,sector,cache,compression,readonly,created")?,
        "snapshots": lines(&["list", "-t", "snapshot"], of_snapshots)?,
        "policies": lines(&["policy", "list"], "name,keep,at,zone,group,template,volumes")?,
    }))
}

/// Waits until the exports are online, and compares all that must be kept with the state `before`.
fn check_kept(millpond: &Millpond, before: &Value) -> Result<()> {
    let end = Instant::now() + RESTORED;
    loop {
        let exports = millpond.json(&["exports"])?;
        let listed = settings(&exports);
        ensure!(listed == before["exports"], "the exports were {:#}, and are {listed:#}", before["exports"]);
        if exports.as_array().into_iter().flatten().all(|export| export["state"] == "online") {
            break;
        }
        ensure!(Instant::now() < end, "exports are not online: {exports:#}");
        thread::sleep(Duration::from_millis(200));
    }
    let after = kept(millpond)?;
    ensure!(after == *before, "not kept: before {before:#}, after {after:#}");
    Ok(())
}

/// Returns the content of the state file that version 0.1.0 writes for the pool, the exports and the
/// policy of this test. A change of the file's form changes nothing here: every later version reads
/// this.
fn state_of_0_1_0(millpond: &Millpond, dir: &Path) -> Result<Value> {
    let id_of = |words: &[&str], name: &str| -> Result<String> {
        let list = millpond.cli(&[words, &["-H", "-o", "name,id"]].concat())?;
        let found = list.lines().filter_map(|line| line.split_once('\t')).find(|(of, _)| *of == name);
        found.map(|(_, id)| id.to_owned()).with_context(|| format!("no id of {name} in {list}"))
    };
    let pool = id_of(&["pool", "list"], "lab")?;
    let disk: u32 = id_of(&["list", "-t", "volume"], "lab/disk")?.parse()?;
    let other: u32 = id_of(&["list", "-t", "volume"], OTHER)?.parse()?;
    let snapshot: u64 = id_of(&["list", "-t", "snapshot"], SNAPSHOT)?.parse()?;
    let path = |name: &str| dir.join(name).display().to_string();
    Ok(json!({
        "version": 2,
        "program": "0.1.0",
        "next_export": 4,
        "pools": [{"name": "lab", "id": pool, "devices": [path("device0")], "io": "direct"}],
        "exports": [
            {
                "id": 1, "pool": "lab", "name": "lab/disk", "readonly": false, "kind": "nbd", "served": {"volume": disk},
                "unix": path("lab-disk.sock"), "tcp": null, "access": {}, "tls": null, "limits": {}
            },
            {
                "id": 2, "pool": "lab", "name": OTHER, "readonly": false, "kind": "vhost-user", "served": {"volume": other},
                "unix": path("lab-other.vu"), "access": {}, "queues": 64
            },
            {
                "id": 3, "pool": "lab", "name": SNAPSHOT, "readonly": true, "kind": "nbd", "served": {"snapshot": snapshot},
                "unix": path("unused.sock"), "tcp": null, "access": {"mode": 0o640}, "tls": null, "limits": {"max_clients": 3}
            }
        ],
        "known": [],
        "policies": [{
            "name": "daily", "keep": "1d:7d", "group": false, "zone": "Etc/UTC", "template": "auto-{policy}-{time}",
            "volumes": [{"pool_id": pool, "volume": other, "name": OTHER, "since": "2026-11-27T05:47:40.161Z"}]
        }]
    }))
}

/// The program is replaced four times, once by the first version again, and each time the daemon is
/// restarted as the package's `postinst` does it. The guest sees no error, and every file is there,
/// also after another restart.
pub fn run(subject: &mut Subject) -> Result<()> {
    let program = fs::canonicalize(room(subject, "package")?)?.join("millpond");
    let new = millpond_binary()?;
    let named = std::env::var_os(OLD).map(PathBuf::from);
    let old = named.clone().unwrap_or_else(|| new.clone());
    install(&old, &program, 0)?;
    let mut millpond = Millpond::new(program.clone()).without_read_cache();
    let dir = room(subject, "server")?;
    let mut device = vec![format!("{}:{}", dir.join("device0").display(), 8 * SIZE + (256 << 20))];
    if named.is_none() {
        // as an earlier version makes it
        device.extend(["-o", "features=none"].map(str::to_owned));
    }
    millpond.start_with(&dir, &device, SIZE)?;
    millpond.cli(&["create", OTHER, "-L", &SIZE.to_string()])?;
    let sockets = [export(&millpond, &dir, OTHER)?];
    add_unused(&millpond, &dir)?;
    let endpoint = millpond.endpoint()?;
    let boot = |dir: &Path, script: &str| Guest::boot_as(dir, Protocol::VhostUser(&sockets), script, &nbd_disk(&endpoint)?);
    let mut guest = boot(&room(subject, "first")?, LOAD)?;
    guest.expect("READY")?;
    let before = kept(&millpond)?;
    for (version, number) in [&new, &new, &old, &new].into_iter().zip(1..) {
        wait_for_more(&mut guest)?;
        let pid = millpond.pid()?;
        install(version, &program, number)?;
        ensure!(runs(pid)?.to_string_lossy().ends_with("(deleted)"), "the old daemon runs the new program");
        let first_upgrade = number == 1 && named.is_none();
        let state = first_upgrade.then(|| state_of_0_1_0(&millpond, &dir)).transpose()?;
        millpond.stop()?;
        if let Some(state) = state {
            fs::write(dir.join("state/state.json"), serde_json::to_vec_pretty(&state)?).context("writing the state file")?;
        }
        millpond.launch()?;
        check_kept(&millpond, &before).with_context(|| format!("after replacement {number} of the program"))?;
        ensure!(millpond.pid()? != pid && runs(millpond.pid()?)? == program, "the daemon runs {}", runs(millpond.pid()?)?.display());
        wait_for_more(&mut guest)?;
    }
    let turned_on = millpond.cli(&["pool", "upgrade", "-y", "lab"])?;
    ensure!(turned_on.contains("turned on bases, forwards"), "{turned_on}");
    // the features changed, and nothing else
    let mut upgraded = before;
    upgraded["pool"] = json!(["format\t3", "features\tbases, forwards"]);
    wait_for_more(&mut guest)?;
    guest.send("end")?;
    guest.finish()?;
    millpond.stop()?;
    millpond.restart()?;
    check_kept(&millpond, &upgraded)?;
    boot(&room(subject, "second")?, FIND)?.finish()
}
