//! `send` to a second host and back: a volume that is written all the time goes over snapshot by
//! snapshot, while the sender, the receive, or one of the daemons is killed. Every snapshot that
//! arrives is the one that was sent.

use super::PATIENCE;
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_export::nbd::client::Client;
use millpond_lab::load::Rng;
use millpond_lab::peer::{Contender, Millpond, millpond_binary};
use millpond_lab::process::wait_until;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

pub const SIZE: u64 = 96 << 20;
const ROUNDS: usize = 14;
/// Writes of the load between two pauses; a pause keeps the rounds short.
const BURST: u64 = 20;

/// Writes to a volume of [`SIZE`] bytes until it is asked to stop, and across kills of its daemon.
pub fn load(socket: &Path, seed: u64, stop: &AtomicBool) {
    let mut rng = Rng::new(seed);
    while !stop.load(Ordering::Relaxed) {
        let connected = UnixStream::connect(socket).and_then(Client::new);
        let Ok(mut client) = connected else {
            thread::sleep(Duration::from_millis(20));
            continue;
        };
        while !stop.load(Ordering::Relaxed) {
            let wrote = (0..BURST).try_for_each(|_| {
                let length = 4096 * (1 + rng.below(16));
                let at = rng.below((SIZE - length) / 4096) * 4096;
                if rng.below(8) == 0 {
                    return client.write_zeroes(at, length as u32);
                }
                let mut data = vec![0; length as usize];
                rng.fill(&mut data);
                client.write(at, &data)
            });
            if wrote.is_err() {
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Part of a transfer that is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Nobody,
    Sender,
    Receive,
    There,
    Here,
}

/// Sends `what` from one host into `volume` of the other, and kills the victim after a while.
/// Returns whether all of it arrived.
fn transfer(hosts: [&mut Millpond; 2], what: &str, volume: &str, victim: Victim, after: Duration) -> Result<bool> {
    let [here, there] = hosts;
    let token = there.cli(&["receive", volume, "--token"]).ok().map(|token| token.trim().to_owned());
    let resume = token.as_ref().map_or_else(Vec::new, |token| vec!["--resume", token.as_str()]);
    let mut sender = here.command(&[&["send", what], &resume[..]].concat()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let stream = sender.stdout.take().context("no pipe")?;
    // the command is dropped at once: it has the other end of the pipe, too
    let mut receive =
        there.command(&[&["receive", volume], &resume[..]].concat()).stdin(stream).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    if victim != Victim::Nobody {
        thread::sleep(after);
        match victim {
            Victim::Nobody => {}
            Victim::Sender => sender.kill()?,
            Victim::Receive => receive.kill()?,
            Victim::There => there.kill9()?,
            Victim::Here => here.kill9()?,
        }
    }
    let sent = ended(&mut sender)?;
    let received = ended(&mut receive)?;
    for (host, is_dead) in [(there, victim == Victim::There), (here, victim == Victim::Here)] {
        if is_dead {
            host.launch()?;
        }
    }
    Ok(sent && received)
}

fn ended(child: &mut Child) -> Result<bool> {
    wait_until("the transfer ends", PATIENCE, || matches!(child.try_wait(), Ok(Some(_)) | Err(_)))?;
    Ok(child.wait()?.success())
}

/// Snapshots of a volume by the part after `@`, oldest first.
pub fn snapshots(host: &Millpond, volume: &str) -> Result<Vec<String>> {
    let listed = host.json(&["list", "-t", "snapshot", volume])?;
    let name = |snapshot: &serde_json::Value| snapshot["name"].as_str()?.rsplit_once('@').map(|(_, name)| name.to_owned());
    Ok(listed.as_array().into_iter().flatten().filter_map(name).collect())
}

/// Returns the content of a volume or snapshot, through a file in `room`.
pub fn content(host: &Millpond, name: &str, room: &Path) -> Result<Vec<u8>> {
    let file = room.join("content.raw");
    host.cli(&["export-image", name, &file.display().to_string(), "--force"])?;
    fs::read(&file).context("reading what was exported")
}

/// Checks that a snapshot is the same on both hosts.
pub fn same(hosts: [(&Millpond, &str); 2], snapshot: &str, room: &Path) -> Result<()> {
    let [one, other] = hosts.map(|(host, volume)| content(host, &format!("{volume}@{snapshot}"), room));
    ensure!(one? == other?, "snapshot {snapshot} differs");
    Ok(())
}

/// Starts a daemon with a pool `tank`.
pub fn host(dir: &Path) -> Result<Millpond> {
    host_of(Millpond::new(millpond_binary()?), dir)
}

/// As [`host`], with settings.
pub fn host_of(mut host: Millpond, dir: &Path) -> Result<Millpond> {
    host.start_empty(dir)?;
    host.cli(&["pool", "create", "tank", &format!("{}:1G", dir.join("pool.img").display())])?;
    Ok(host)
}

pub fn run(subject: &mut Subject) -> Result<()> {
    let room = subject.file("room");
    fs::create_dir_all(&room)?;
    let (mut here, mut there) = (host(&subject.file("here"))?, host(&subject.file("there"))?);
    here.cli(&["create", "tank/disk", "-L", &SIZE.to_string(), "-o", "compression=lz4"])?;
    let socket = room.join("disk.sock");
    here.cli(&["export", "nbd", "tank/disk", "--unix", &socket.display().to_string()])?;
    let stop = Arc::new(AtomicBool::new(false));
    let loading = {
        let (socket, stop) = (socket.clone(), Arc::clone(&stop));
        thread::spawn(move || load(&socket, 1, &stop))
    };
    let done = rounds(&mut here, &mut there, &room);
    stop.store(true, Ordering::Relaxed);
    loading.join().map_err(|_| anyhow::anyhow!("the load panicked"))?;
    done?;
    back(&mut here, &mut there, &room)?;
    here.stop()?;
    there.stop()
}

/// Sends one snapshot after the other, with kills.
fn rounds(here: &mut Millpond, there: &mut Millpond, room: &Path) -> Result<()> {
    let mut rng = Rng::new(7);
    let victims = [Victim::Receive, Victim::There, Victim::Sender, Victim::Here, Victim::Nobody];
    let mut cut = 0;
    for round in 0..ROUNDS {
        here.cli(&["snapshot", &format!("tank/disk@r{round}")])?;
        let what = match round.checked_sub(1) {
            Some(before) => format!("tank/disk@r{before}%r{round}"),
            None => "tank/disk@r0".to_owned(),
        };
        let victim = victims[round % victims.len()];
        // the first receive is killed at once, so that one transfer is cut on any machine
        let after = if round == 0 { Duration::ZERO } else { Duration::from_millis(rng.below(400)) };
        let arrived = transfer([&mut *here, &mut *there], &what, "tank/copy", victim, after)?;
        cut += usize::from(!arrived);
        let name = format!("r{round}");
        wait_until(&format!("snapshot {name} arrives after a kill of {victim:?}"), PATIENCE, || {
            let is_there = |there: &Millpond| snapshots(there, "tank/copy").is_ok_and(|all| all.contains(&name));
            is_there(there)
                || transfer([&mut *here, &mut *there], &what, "tank/copy", Victim::Nobody, Duration::ZERO).is_ok() && is_there(there)
        })?;
    }
    ensure!(cut > 0, "no kill cut a transfer");
    let arrived = snapshots(there, "tank/copy")?;
    let marks: Vec<&String> = arrived.iter().filter(|name| name.starts_with("receiv")).collect();
    ensure!(marks.len() <= 1, "marks are left: {marks:?}");
    for round in 0..ROUNDS {
        same([(here, "tank/disk"), (there, "tank/copy")], &format!("r{round}"), room)?;
    }
    Ok(())
}

/// The other host goes on with the volume, and its changes come back.
fn back(here: &mut Millpond, there: &mut Millpond, room: &Path) -> Result<()> {
    let last = format!("r{}", ROUNDS - 1);
    // the last receive may have been killed before its last step
    transfer([&mut *here, &mut *there], &format!("tank/disk@{last}"), "tank/copy", Victim::Nobody, Duration::ZERO)?;
    here.cli(&["unexport", "tank/disk", "--force"])?;
    let socket = room.join("copy.sock");
    there.cli(&["export", "nbd", "tank/copy", "--unix", &socket.display().to_string()])?;
    let mut client = UnixStream::connect(&socket).and_then(Client::new)?;
    client.write(1 << 20, &[7; 1 << 20])?;
    drop(client);
    there.cli(&["snapshot", "tank/copy@back"])?;
    let what = format!("tank/copy@{last}%back");
    let refused = transfer([&mut *there, &mut *here], &what, "tank/disk", Victim::Nobody, Duration::ZERO)?;
    ensure!(!refused, "the volume was written since, and that was lost");
    here.cli(&["rollback", &format!("tank/disk@{last}")])?;
    ensure!(transfer([&mut *there, &mut *here], &what, "tank/disk", Victim::Nobody, Duration::ZERO)?, "the way back fails");
    same([(here, "tank/disk"), (there, "tank/copy")], "back", room)
}
