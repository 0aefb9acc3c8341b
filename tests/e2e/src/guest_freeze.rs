//! Snapshots of a guest whose file systems are frozen by its agent, and a daemon that is killed while
//! they are.

use super::PATIENCE;
use super::guest::{Guest, Protocol, prepare_with};
use super::guest_disk::{SIZE, room};
use super::subject::Subject;
use anyhow::{Context, Result, bail, ensure};
use millpond_lab::load::{Client, Op};
use millpond_lab::peer::{Contender, DISK, Millpond};
use millpond_lab::process::wait_until;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;

/// Runs the agent, and writes files until a file asks it to stop.
const WRITE: &str = r#"
/sbin/mke2fs -q -t ext4 -F /dev/vda
mount -t ext4 /dev/vda /mnt
port=$(ls /dev/vport* | head -n 1)
/sbin/qemu-ga --method=virtio-serial --path=$port --statedir=/tmp > /tmp/agent 2>&1 &
(while [ ! -e /tmp/stop ]; do
  dd if=/dev/urandom of=/mnt/file bs=1k count=64 2>/dev/null
  md5sum < /mnt/file > /mnt/sum
  sync
done) &
echo "READY"
read go
echo 1 > /tmp/stop
wait %2
(md5sum < /mnt/file) > /tmp/sum
[ "$(cat /tmp/sum)" = "$(cat /mnt/sum)" ]
umount /mnt
/sbin/e2fsck -fn /dev/vda
if dmesg | grep -i "I/O error"; then exit 9; fi
"#;

/// Number of snapshots that take longer than it takes to notice the first one.
const MANY: usize = 2000;

/// Bit of the ext4 superblock (`s_feature_incompat`): the journal has changes that the file system
/// lacks. A frozen file system does not have it, a mounted one does.
const RECOVER: u8 = 4;

/// Whether the file system of a snapshot needs no recovery.
fn is_clean(millpond: &Millpond, snapshot: &str) -> Result<bool> {
    let (endpoint, id) = millpond.export_with_id(snapshot)?;
    let mut client = Client::connect(&endpoint, 1, 4096, false)?;
    client.call(Op::Read, 0, 4096)?;
    let superblock = client.data(0)[1024..2048].to_vec();
    drop(client);
    millpond.cli(&["unexport", "--force", &id])?;
    ensure!(superblock[0x38..0x3a] == [0x53, 0xef], "{snapshot} has no ext4");
    Ok(superblock[0x60] & RECOVER == 0)
}

/// Asks the agent whether the guest is frozen.
fn status(socket: &Path) -> Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut lines = BufReader::new(stream.try_clone()?).split(b'\n');
    stream.write_all(b"\xff{\"execute\": \"guest-sync-delimited\", \"arguments\": {\"id\": 77}}\n")?;
    let mut next = |until: Option<Value>| -> Result<Value> {
        for line in &mut lines {
            let line = line?;
            let line = line.rsplit(|byte| *byte == 0xff).next().unwrap_or_default();
            let answer: Value = serde_json::from_slice(line).unwrap_or_default();
            if until.is_none() || answer.get("return") == until.as_ref() {
                return Ok(answer);
            }
        }
        bail!("the agent has gone")
    };
    next(Some(json!(77)))?;
    stream.write_all(b"{\"execute\": \"guest-fsfreeze-status\"}\n")?;
    Ok(next(None)?["return"].as_str().context("no status")?.to_owned())
}

/// Snapshots by `snapshot` and by a policy are of clean file systems; a daemon that is killed while
/// the guest is frozen thaws it at its next start.
pub fn run(subject: &mut Subject) -> Result<()> {
    let endpoint = subject.start(SIZE)?;
    let dir = room(subject, "guest")?;
    let state = subject.file("server").join("state");
    let socket = dir.join("agent.sock");
    let path = socket.display().to_string();
    let prepared = prepare_with(&dir, WRITE, &["qemu-ga"], &["virtio_console"])?;
    let options = [
        "-chardev",
        &format!("socket,id=agent,path={path},server=on,wait=off"),
        "-device",
        "virtio-serial",
        "-device",
        "virtserialport,chardev=agent,name=org.qemu.guest_agent.0",
    ];
    let mut guest = Guest::boot_prepared(&prepared, Protocol::Nbd(&endpoint), &options.map(str::to_owned))?;
    guest.expect("READY")?;
    let millpond = subject.millpond()?;

    // without the agent, and with it
    millpond.cli(&["snapshot", &format!("{DISK}@running")])?;
    ensure!(!is_clean(millpond, &format!("{DISK}@running"))?, "a snapshot of a running guest needs no recovery: the test proves nothing");
    wait_until("the agent", PATIENCE, || {
        millpond.cli(&["snapshot", &format!("{DISK}@frozen"), "--freeze", &path, "--freeze-required"]).is_ok()
    })?;
    ensure!(is_clean(millpond, &format!("{DISK}@frozen"))?, "the file system of the frozen guest needs recovery");
    ensure!(status(&socket)? == "thawed", "the guest is left frozen");
    millpond.cli(&["policy", "create", "clean", "--keep", "1h:2d", "--freeze", &path, "--freeze-required"])?;
    millpond.cli(&["policy", "attach", "clean", DISK])?;
    let done = millpond.json(&["policy", "run", "clean"])?;
    let taken = done["taken"][0].as_str().with_context(|| format!("nothing was taken: {done}"))?.to_owned();
    ensure!(is_clean(millpond, &taken)?, "the file system in {taken} needs recovery");
    millpond.cli(&["policy", "destroy", "clean"])?;

    // killed while the guest is frozen: it has been since the first of many snapshots, until the last
    let names: Vec<String> = (0..MANY).map(|number| format!("{DISK}@many{number}")).collect();
    let options = ["--freeze", path.as_str(), "--freeze-required"];
    let words: Vec<&str> = ["snapshot"].into_iter().chain(names.iter().map(String::as_str)).chain(options).collect();
    let mut taking = millpond.command(&words).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let marks = || fs::read_dir(state.join("frozen")).map_or(0, Iterator::count);
    wait_until("the first snapshot", PATIENCE, || millpond.cli(&["show", &names[0]]).is_ok())?;
    millpond.kill9()?;
    taking.wait()?;
    let before = status(&socket)?;
    println!("guest-freeze: after the kill the guest is {before}, with {} marks", marks());
    ensure!(before == "frozen", "the daemon was killed at another time: the guest is {before}");
    millpond.restart()?;
    wait_until("the thaw by the next daemon", PATIENCE, || marks() == 0)?;
    ensure!(status(&socket)? == "thawed", "the guest is left frozen");
    guest.go_on()?;
    guest.finish()
}
