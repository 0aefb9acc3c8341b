//! A hostile guest and a hostile front end: the daemon continues to serve, and other volumes stay
//! unchanged.

use super::subject::Subject;
use super::vhost_user::export;
use anyhow::{Context, Result, ensure};
use millpond_export::vhost_user::front_end::{INDIRECT, NEXT, WRITE, descriptor, request_header};
use millpond_export::vhost_user::wire::request;
use millpond_lab::load::vhost::{AVAILABLE, DATA, DESCRIPTORS, ENTRIES, FrontEnd, GUEST, HEADERS, MEMORY, TABLES};
use millpond_lab::load::{Client, Op, Rng};
use millpond_lab::peer::DISK;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const SIZE: u64 = 64 << 20;
const BLOCK: usize = 4096;
/// Number of requests of a hostile guest that are answered, mostly with an error.
const REQUESTS: u64 = 1_000_000;
const CONNECTIONS: u64 = 300;

pub fn run(subject: &mut Subject) -> Result<()> {
    let witness = subject.start(SIZE)?;
    let dir = subject.file("server");
    let millpond = subject.millpond()?;
    millpond.cli(&["create", "lab/hostile", "-L", &SIZE.to_string()])?;
    let socket = export(millpond, &dir, "lab/hostile")?;
    // Another volume with known blocks.
    let mut other = Client::connect(&witness, 1, BLOCK, false)?;
    for block in 0..64u64 {
        other.data(0).fill(block as u8 + 1);
        other.call(Op::Write, block * BLOCK as u64, BLOCK)?;
    }
    talk_nonsense(&socket)?;
    let (answered, broken) = hostile_queue(&socket)?;
    println!("{answered} hostile requests answered, the queue broke {broken} times");
    ensure!(broken > 0, "no queue broke: the guest was not hostile enough");
    for block in 0..64u64 {
        other.call(Op::Read, block * BLOCK as u64, BLOCK)?;
        ensure!(other.data(0).iter().all(|byte| *byte == block as u8 + 1), "block {block} of another volume has changed");
    }
    // A front end that behaves, on the same export.
    let mut front = FrontEnd::connect(&socket)?;
    front.start(0)?;
    let mut written = vec![0; BLOCK];
    Rng::new(3).fill(&mut written);
    ensure!(front.request(1, 800, &mut written.clone())? == 0, "a write failed");
    let mut found = vec![0; BLOCK];
    ensure!(front.request(0, 800, &mut found)? == 0 && found == written, "what was written is not read");
    ensure!(front.request(0, SIZE / 512 - 1, &mut found)? == 1, "a read beyond the end was not refused");
    ensure!(front.request(99, 0, &mut found)? == 2, "an unknown request was not told to be one");
    let export = millpond.json(&["exports"])?;
    let errors = export.as_array().into_iter().flatten().filter_map(|e| e["io"]["errors"].as_u64()).max();
    ensure!(errors.is_some_and(|errors| errors > 0), "no errors were counted: {export}");
    ensure!(front.stop()? == 4, "the queue is not where it should be");
    ensure!(millpond.json(&["list", "-t", "volume"])?[0]["name"] == DISK);
    Ok(())
}

/// Front ends that send noise, wrong lengths, or impossible requests.
fn talk_nonsense(socket: &Path) -> Result<()> {
    let mut rng = Rng::new(41);
    for round in 0..CONNECTIONS {
        let mut stream = UnixStream::connect(socket).context("the daemon does not listen any more")?;
        stream.set_read_timeout(Some(Duration::from_millis(200)))?;
        stream.set_write_timeout(Some(Duration::from_secs(2)))?;
        for _ in 0..1 + rng.below(20) {
            let mut payload = vec![0; rng.below(if round % 10 == 0 { 5000 } else { 64 }) as usize];
            rng.fill(&mut payload);
            if rng.below(2) == 0 {
                payload.iter_mut().for_each(|byte| *byte &= 1);
            }
            let mut bytes = request(rng.below(45) as u32, rng.below(2) == 0, &payload);
            if round % 7 == 0 {
                rng.fill(&mut bytes);
            }
            if stream.write_all(&bytes).is_err() {
                break; // the daemon disconnects, as expected
            }
        }
        if rng.below(4) == 0 {
            let _ = stream.read(&mut [0; 4096]);
        }
    }
    Ok(())
}

/// Puts random chains on a queue until [`REQUESTS`] are answered. Returns the number answered, and
/// how often the queue broke.
fn hostile_queue(socket: &Path) -> Result<(u64, u64)> {
    let mut front = FrontEnd::connect(socket)?;
    front.start(0)?;
    let mut rng = Rng::new(23);
    let (mut answered, mut broken) = (0, 0);
    while answered < REQUESTS {
        let before = front.used()?;
        let heads = scene(&mut front, &mut rng)?;
        front.offer(heads)?;
        let whole = front.wait()?;
        answered += u64::from(front.used()?.wrapping_sub(before));
        if !whole {
            // A driver that has lost its device starts anew.
            broken += 1;
            front.stop()?;
            let used = front.used()?;
            front.start(used)?;
        }
    }
    front.stop()?;
    Ok((answered, broken))
}

/// Returns the buffers of request `own`: address, bytes and flags. One in three has a defect.
fn request_parts(kind: u32, own: u64, rng: &mut Rng) -> Vec<(u64, u32, u16)> {
    let header = GUEST + HEADERS + 32 * own;
    let length = [512, 4096, 16, 1024, 8192, 1][rng.below(6) as usize];
    let into = kind == 0 || kind == 8;
    let mut parts = vec![
        (header, 16, 0u16),
        (
            if kind > 8 { header + 16 } else { GUEST + DATA + rng.below(0x10_0000) },
            if kind > 8 { 16 } else { length },
            u16::from(into) * WRITE,
        ),
        (GUEST + DATA + 0x20_0000 + own, 1, WRITE),
    ];
    if rng.below(3) == 0 {
        let at = rng.below(3) as usize;
        let nowhere = [0, GUEST + MEMORY - 1, GUEST - 5, u64::MAX, 1 << 52, GUEST + MEMORY];
        match rng.below(5) {
            0 => parts[at].0 = nowhere[rng.below(6) as usize],
            1 => parts[at].1 = [0, u32::MAX, 3, 1 << 20, 15, 65 << 20][rng.below(6) as usize],
            2 => parts[at].2 ^= WRITE,
            3 => parts[at].2 |= INDIRECT,
            _ => parts.truncate(at),
        }
    }
    parts
}

/// Fills the whole queue; returns by how much to raise the available index, which is rarely more
/// than the number of entries.
fn scene(front: &mut FrontEnd, rng: &mut Rng) -> Result<u16> {
    let entries = u64::from(ENTRIES);
    let mut table = Vec::new();
    let mut tables = Vec::new();
    let mut headers = Vec::new();
    for index in 0..ENTRIES {
        let own = u64::from(index);
        let kind = [0u32, 0, 1, 1, 4, 8, 11, 13, 14, 200][rng.below(10) as usize];
        let sector = [rng.below(SIZE / 512), rng.below(64) * 8, u64::MAX / 512, u64::MAX, SIZE / 512][rng.below(5) as usize];
        headers.extend_from_slice(&request_header(kind, sector)[..16]);
        // A range for discards: sector, sectors, flags. Its first byte is the status byte of the
        // preceding header.
        headers.extend_from_slice(&rng.below(SIZE / 512).to_le_bytes());
        headers.extend_from_slice(&(rng.below(64) as u32).to_le_bytes());
        headers.extend_from_slice(&(rng.below(3) as u32).to_le_bytes());
        let header = GUEST + HEADERS + 32 * own;
        let parts = request_parts(kind, own, rng);
        let more = |at: usize, next: u16| if at + 1 < parts.len() || next == 0xffff { NEXT } else { 0 };
        let wild = if rng.below(20) == 0 { 0xffff } else { 0 };
        let mut indirect: Vec<u8> = Vec::new();
        for (at, (place, length, flags)) in parts.iter().enumerate() {
            let next = if wild != 0 { rng.below(300) as u16 } else { at as u16 + 1 };
            indirect.extend_from_slice(&descriptor(*place, *length, flags | more(at, wild), next));
        }
        indirect.resize(128, 0);
        tables.extend_from_slice(&indirect);
        let length = if rng.below(20) == 0 { rng.below(1 << 20) as u32 } else { 16 * parts.len().max(1) as u32 };
        table.extend_from_slice(&match rng.below(12) {
            // A chain in the queue's own table, with random links, possibly a loop.
            0 => descriptor(header, 16, NEXT, rng.below(entries + 2) as u16),
            1 => descriptor(GUEST + DATA + rng.below(0x10_0000), length, rng.below(8) as u16, rng.below(entries) as u16),
            _ => descriptor(GUEST + TABLES + 128 * own, length, INDIRECT, 0),
        });
    }
    let mut heads: Vec<u16> = (0..ENTRIES).collect();
    for index in (1..heads.len()).rev() {
        heads.swap(index, rng.below(index as u64 + 1) as usize);
    }
    if rng.below(50) == 0 {
        // a duplicate or invalid head
        heads[7] = [heads[8], ENTRIES, u16::MAX][rng.below(3) as usize];
    }
    front.write(TABLES, &tables)?;
    front.write(HEADERS, &headers)?;
    front.write(DESCRIPTORS, &table)?;
    // The ring may start at any index.
    let first = front.available();
    let mut ring = vec![0; 2 * usize::from(ENTRIES)];
    for (step, head) in (0u16..).zip(heads) {
        let place = 2 * usize::from(first.wrapping_add(step) % ENTRIES);
        ring[place..place + 2].copy_from_slice(&head.to_le_bytes());
    }
    front.write(AVAILABLE + 4, &ring)?;
    Ok(if rng.below(200) == 0 { ENTRIES + 1 + rng.below(1000) as u16 } else { ENTRIES })
}
