//! Policies: a volume is put back to any second, and a nearly full pool is pruned in order.

use super::PATIENCE;
use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_lab::load::{Client, Endpoint, Op, Rng};
use millpond_lab::peer::{Contender, DISK, Millpond, POOL};
use serde_json::Value;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const BLOCK: usize = 4096;
/// Time for which the guest writes before and after the daemon is killed.
const WRITES: Duration = Duration::from_secs(7);
/// Difference between the time of a snapshot and the time at which it was taken.
const SLACK_MILLIS: u64 = 250;

/// A write of the guest: its number, when it was sent, and when it was acknowledged.
struct Written {
    number: u64,
    sent: u64,
    done: u64,
}

fn millis() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// Writes rising numbers into the first block for some time.
fn write_numbers(endpoint: &Endpoint, log: &mut Vec<Written>) -> Result<()> {
    let mut client = Client::connect(endpoint, 1, BLOCK, false)?;
    let end = Instant::now() + WRITES;
    while Instant::now() < end {
        let number = log.len() as u64 + 1;
        client.data(0)[..8].copy_from_slice(&number.to_le_bytes());
        let sent = millis();
        client.call(Op::Write, 0, BLOCK)?;
        log.push(Written { number, sent, done: millis() });
        sleep(Duration::from_millis(10));
    }
    client.call(Op::Flush, 0, 0)?;
    Ok(())
}

fn number_of(endpoint: &Endpoint) -> Result<u64> {
    let mut client = Client::connect(endpoint, 1, BLOCK, false)?;
    client.call(Op::Read, 0, BLOCK)?;
    Ok(u64::from_le_bytes(client.data(0)[..8].try_into()?))
}

/// Names and times of the snapshots of a policy.
fn snapshots(millpond: &Millpond, policy: &str) -> Result<Vec<(String, u64)>> {
    let listed = millpond.json(&["list", "-t", "snapshot", DISK])?;
    let rows = listed.as_array().context("no list of snapshots")?.iter();
    let mark = format!("@auto-{policy}-");
    let time = |row: &Value| -> Option<(String, u64)> {
        let created: jiff::Timestamp = row["created"].as_str()?.parse().ok()?;
        Some((row["name"].as_str()?.to_owned(), u64::try_from(created.as_millisecond()).ok()?))
    };
    Ok(rows.filter_map(time).filter(|(name, _)| name.contains(&mark)).collect())
}

/// A policy takes a snapshot each second while a guest writes and the daemon is killed; each
/// snapshot has the data of its time, and a rollback gives it back.
pub fn any_second(subject: &mut Subject) -> Result<()> {
    let endpoint = subject.start(64 << 20)?;
    let millpond = subject.millpond()?;
    millpond.cli(&["policy", "create", "continuous", "--keep", "1s:1h 1m:1d", "--zone", "UTC"])?;
    millpond.cli(&["policy", "attach", "continuous", DISK])?;
    let mut log = Vec::new();
    write_numbers(&endpoint, &mut log)?;
    millpond.kill9()?;
    millpond.restart()?;
    write_numbers(&endpoint, &mut log)?;
    let taken = snapshots(millpond, "continuous")?;
    let seconds = 2 * WRITES.as_secs() as usize;
    ensure!(taken.len() + 4 >= seconds, "{} snapshots in {seconds} seconds of writes", taken.len());
    for (name, created) in &taken {
        let (endpoint, id) = millpond.export_with_id(name)?;
        let number = number_of(&endpoint)?;
        millpond.cli(&["unexport", &id])?;
        let least = log.iter().filter(|write| write.done + SLACK_MILLIS < *created).map(|write| write.number).max().unwrap_or(0);
        let most = log.iter().filter(|write| write.sent < created + SLACK_MILLIS).map(|write| write.number).max().unwrap_or(0);
        ensure!((least..=most).contains(&number), "{name} of {created} has write {number}, and should have {least} to {most}");
    }
    let (middle, _) = taken.get(taken.len() / 2).context("no snapshot")?;
    let (of_snapshot, id) = millpond.export_with_id(middle)?;
    let wanted = number_of(&of_snapshot)?;
    millpond.cli(&["unexport", &id])?;
    millpond.cli(&["rollback", "--force", middle])?;
    ensure!(number_of(&endpoint)? == wanted, "the volume is not as at {middle}");
    // the policy goes on after the rollback
    let newest =
        |millpond: &Millpond| -> Result<Option<u64>> { Ok(snapshots(millpond, "continuous")?.into_iter().map(|(_, at)| at).max()) };
    let before = newest(millpond)?;
    let end = Instant::now() + PATIENCE;
    while newest(millpond)? <= before {
        ensure!(Instant::now() < end, "no snapshot after the rollback");
        sleep(Duration::from_millis(200));
    }
    Ok(())
}

const POOL_BYTES: u64 = 256 << 20;
const VOLUME: u64 = 64 << 20;
const CHUNK: usize = 256 << 10;

/// A guest overwrites its disk under two policies until the pool is nearly full: snapshots are
/// pruned in the order of the policies, and never held or locked ones.
pub fn pressure(subject: &mut Subject) -> Result<()> {
    let dir = subject.file("server");
    fs::create_dir_all(&dir)?;
    let millpond = subject.millpond()?;
    millpond.start_empty(&dir)?;
    millpond.cli(&["pool", "create", POOL, "linear", &format!("{}:{POOL_BYTES}", millpond.device().display())])?;
    millpond.cli(&["create", DISK, "-L", &VOLUME.to_string()])?;
    let endpoint = millpond.export(DISK)?;
    // runs of the second policy come between those of the first one
    for (policy, keep, order) in [("second", "2s:1h", "2"), ("first", "1s:1h", "1"), ("never", "3s:1h", "0")] {
        millpond.cli(&["policy", "create", policy, "--keep", keep, "--zone", "UTC", "--prune", order])?;
        if policy != "never" {
            millpond.cli(&["policy", "attach", policy, DISK])?;
        }
    }
    let mut client = Client::connect(&endpoint, 1, CHUNK, false)?;
    let mut rng = Rng::new(5);
    let (mut held, mut pruned) = (None, Vec::new());
    let end = Instant::now() + 2 * PATIENCE;
    for round in 0u64.. {
        ensure!(Instant::now() < end, "nothing of the second policy was pruned: {pruned:?}");
        for chunk in 0..8 {
            rng.fill(client.data(0));
            let at = (round * 8 + chunk) % (VOLUME / CHUNK as u64) * CHUNK as u64;
            // a write on a full pool may fail, until there is space again
            client.submit(0, Op::Write, at, CHUNK);
            let mut done = Vec::new();
            client.wait(&mut done)?;
        }
        if held.is_none()
            && let Some((oldest, _)) = snapshots(millpond, "first")?.into_iter().next()
        {
            millpond.cli(&["hold", &oldest])?;
            millpond.cli(&["snapshot", &format!("{DISK}@locked"), "--lock", "30d"])?;
            held = Some(oldest);
        }
        let events = millpond.cli(&["events", "-H", "-o", "event,subject"])?;
        let lines = events.lines().filter_map(|line| line.strip_prefix("snapshot.pruned"));
        pruned = lines.map(|name| name.trim().to_owned()).collect();
        if pruned.iter().any(|name| name.contains("@auto-second-")) {
            break;
        }
        sleep(Duration::from_millis(100));
    }
    let held = held.context("no snapshot was held")?;
    ensure!(!pruned.contains(&held), "the held snapshot {held} was pruned");
    // all of the first policy before any of the second one, oldest first
    let first_of_second = pruned.iter().position(|name| name.contains("@auto-second-")).context("none of the second policy")?;
    ensure!(first_of_second > 0 && pruned.iter().take(first_of_second).all(|name| name.contains("@auto-first-")), "{pruned:?}");
    let of_first: Vec<&String> = pruned.iter().take(first_of_second).collect();
    ensure!(of_first.is_sorted(), "not oldest first: {of_first:?}");
    let listed = millpond.json(&["list", "-t", "snapshot", DISK])?;
    let names: Vec<&str> = listed.as_array().into_iter().flatten().filter_map(|row| row["name"].as_str()).collect();
    for name in [held.as_str(), &format!("{DISK}@locked")] {
        ensure!(names.contains(&name), "{name} is gone");
    }
    ensure!(millpond.cli(&["destroy", "-y", "-R", &format!("{DISK}@locked")]).is_err(), "a locked snapshot was destroyed");
    // the pool is in service, and takes writes again
    let end = Instant::now() + PATIENCE;
    while client.call(Op::Write, 0, CHUNK).is_err() {
        ensure!(Instant::now() < end, "no write is possible after pruning");
        client = Client::connect(&endpoint, 1, CHUNK, false)?;
        sleep(Duration::from_millis(200));
    }
    Ok(())
}
