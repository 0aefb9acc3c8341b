//! A policy that sends to a second host, which is killed in the middle of sends as the first one is;
//! then the first host dies, the second one goes on, and the work comes back.

use super::PATIENCE;
use super::send_receive::{SIZE, content, host, load, same, snapshots};
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_export::nbd::client::Client;
use millpond_lab::peer::{Contender, Millpond};
use millpond_lab::process::wait_until;
use serde_json::Value;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const ROUNDS: usize = 4;
pub const VOLUME: &str = "tank/disk";

/// State of the sends of the volume.
pub fn state(host: &Millpond) -> Result<Value> {
    Ok(host.json(&["policy", "show", "replica"])?["volumes"][0]["send"].clone())
}

/// Runs the policy; returns the name of the snapshot that it took.
pub fn run_policy(host: &Millpond) -> Result<String> {
    let done = host.json(&["policy", "run", "replica"])?;
    let name = done["taken"][0].as_str().and_then(|name| name.split_once('@'));
    Ok(name.context("no snapshot was taken")?.1.to_owned())
}

pub fn arrives(here: &Millpond, there: &Millpond, name: &str) -> Result<()> {
    wait_until(&format!("snapshot {name} arrives"), PATIENCE, || {
        let is_there = snapshots(there, VOLUME).is_ok_and(|all| all.iter().any(|other| other == name));
        let Ok(state) = state(here) else { return false };
        // it would try again in a minute
        if state["retry"].is_string() && run_policy(here).is_ok() {
            thread::sleep(Duration::from_secs(1));
        }
        is_there && state["running"] == false
    })
    .map(drop)
}

/// True while data of a receive comes.
pub fn is_receiving(there: &Millpond) -> bool {
    let listed = there.json(&["list", "-t", "snapshot", "tank", "-o", "name"]);
    let is_mark = |one: &Value| one["name"].as_str().is_some_and(|name| name.ends_with("@receiving"));
    listed.is_ok_and(|listed| listed.as_array().is_some_and(|all| all.iter().any(is_mark)))
}

/// Takes a snapshot, and waits until a send of it is in its middle. Returns its name, and false if it
/// was complete before.
fn in_the_middle(here: &Millpond, there: &Millpond) -> Result<(String, bool)> {
    let name = run_policy(here)?;
    let is_complete = || snapshots(there, VOLUME).is_ok_and(|all| all.contains(&name));
    wait_until("a send begins", PATIENCE, || is_receiving(there) || is_complete())?;
    let cut = !is_complete();
    Ok((name, cut))
}

pub fn run(subject: &mut Subject) -> Result<()> {
    let room = subject.file("room");
    fs::create_dir_all(&room)?;
    let (mut here, mut there) = (host(&subject.file("here"))?, host(&subject.file("there"))?);
    here.cli(&["create", VOLUME, "-L", &SIZE.to_string(), "-o", "compression=lz4"])?;
    let socket = room.join("disk.sock");
    here.cli(&["export", "nbd", VOLUME, "--unix", &socket.display().to_string()])?;
    fill(&socket, 0)?;
    let target = format!("unix:{}/tank", there.control_socket().display());
    here.cli(&["policy", "create", "replica", "--keep", "1s:1d", "--at", "yearly", "--send", &target])?;
    here.cli(&["policy", "attach", "replica", VOLUME])?;
    let stop = Arc::new(AtomicBool::new(false));
    let loading = {
        let (socket, stop) = (socket.clone(), Arc::clone(&stop));
        thread::spawn(move || load(&socket, 3, &stop))
    };
    let done = rounds(&mut here, &mut there, &room);
    stop.store(true, Ordering::Relaxed);
    loading.join().map_err(|_| anyhow::anyhow!("the load panicked"))?;
    done?;
    over_and_back(&mut here, &mut there, &target, &room)?;
    here.stop()?;
    there.stop()
}

/// Fills the volume with data that cannot be compressed, so that a send takes its time.
pub fn fill(socket: &Path, seed: u64) -> Result<()> {
    let mut client = UnixStream::connect(socket).and_then(Client::new)?;
    let mut rng = millpond_lab::load::Rng::new(seed + 1);
    let mut data = vec![0; 1 << 20];
    for at in 0..SIZE >> 20 {
        rng.fill(&mut data);
        client.write(at << 20, &data)?;
    }
    Ok(())
}

/// Sends snapshots while either host is killed; each arrives as it was taken.
fn rounds(here: &mut Millpond, there: &mut Millpond, room: &Path) -> Result<()> {
    let (mut cuts, mut names) = (0, Vec::new());
    for round in 0..ROUNDS {
        let (name, cut) = in_the_middle(here, there)?;
        cuts += usize::from(cut);
        let victim = if round % 2 == 0 { &mut *here } else { &mut *there };
        victim.kill9()?;
        victim.launch()?;
        if round % 2 == 1 {
            // the source would try again in a minute
            run_policy(here)?;
        }
        arrives(here, there, &name)?;
        names.push(name);
        let socket = room.join("disk.sock");
        wait_until("the export is back", PATIENCE, || UnixStream::connect(&socket).is_ok())?;
        fill(&socket, 10 + round as u64)?;
    }
    ensure!(cuts > 0, "no kill cut a send");
    let kept = snapshots(here, VOLUME)?;
    for name in names.iter().filter(|name| kept.contains(name)) {
        same([(here, VOLUME), (there, VOLUME)], name, room)?;
    }
    Ok(())
}

/// Checks that a fail-back is refused for this reason.
fn refused(here: &Millpond, target: &str, word: &str) -> Result<()> {
    let ended = here.command(&["failback", VOLUME, "--from", target, "-y"]).output()?;
    let said = String::from_utf8_lossy(&ended.stderr);
    ensure!(!ended.status.success() && said.contains(word), "the fail-back was not refused because of '{word}': {said}");
    Ok(())
}

/// The first host dies in the middle of a send; the second one goes on, and the work comes back.
fn over_and_back(here: &mut Millpond, there: &mut Millpond, target: &str, room: &Path) -> Result<()> {
    let last = run_policy(here)?;
    arrives(here, there, &last)?;
    let known = content(here, &format!("{VOLUME}@{last}"), room)?;
    fill(&room.join("disk.sock"), 99)?;
    in_the_middle(here, there)?;
    here.kill9()?;
    wait_until("the receive ends", PATIENCE, || {
        let over = there.cli(&["failover", VOLUME]);
        over.is_ok()
    })?;
    let arrived = snapshots(there, VOLUME)?;
    if arrived.iter().rev().find(|name| name.starts_with("auto-")) == Some(&last) {
        ensure!(content(there, VOLUME, room)? == known, "the volume is not at its newest complete snapshot");
    }
    here.launch()?;
    let unsent = run_policy(here)?;
    wait_until("the send of the old source is refused", PATIENCE, || {
        state(here).is_ok_and(|state| state["error"].as_str().is_some_and(|error| error.contains("failed over")))
    })?;
    ensure!(!snapshots(there, VOLUME)?.contains(&unsent), "the old source has sent to a volume that was failed over");

    let socket = room.join("copy.sock");
    there.cli(&["export", "nbd", VOLUME, "--unix", &socket.display().to_string()])?;
    let mut client = UnixStream::connect(&socket).and_then(Client::new)?;
    client.write(3 << 20, &[9; 1 << 20])?;
    client.flush()?;
    here.cli(&["unexport", VOLUME, "--force"])?;
    refused(here, target, "clients use")?;
    drop(client);
    there.cli(&["unexport", VOLUME, "--force"])?;
    let work = content(there, VOLUME, room)?;
    let old = content(here, VOLUME, room)?;
    here.cli(&["export", "nbd", VOLUME, "--unix", &room.join("disk.sock").display().to_string()])?;
    refused(here, target, "millpond unexport")?;
    here.cli(&["unexport", VOLUME, "--force"])?;
    here.cli(&["failback", VOLUME, "--from", target, "-y"])?;
    ensure!(content(here, VOLUME, room)? == work, "the work of the second host did not come back");
    let kept = snapshots(here, VOLUME)?.into_iter().find(|name| name.starts_with("pre-rollback-")).context("nothing is kept")?;
    ensure!(content(here, &format!("{VOLUME}@{kept}"), room)? == old, "the old state was not kept");
    let again = run_policy(here)?;
    arrives(here, there, &again)?;
    same([(here, VOLUME), (there, VOLUME)], &again, room)
}
