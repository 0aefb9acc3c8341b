//! Clients with a valid handshake and invalid requests: the daemon answers or disconnects, and
//! other volumes stay unchanged.

use super::subject::Subject;
use anyhow::{Context, Result, ensure};
use millpond_export::nbd::client::message;
use millpond_export::nbd::wire::{RequestHeader, Style, option};
use millpond_lab::load::{Client, Op, Rng};
use millpond_lab::peer::Millpond;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

const SIZE: u64 = 64 << 20;
const BLOCK: usize = 4096;
/// Name of the volume and of its export.
const VOLUME: &str = "lab/hostile";
/// Number of requests that are answered, mostly with an error.
const REQUESTS: u64 = 1_000_000;
/// Maximum requests per connection. Many connections end earlier, because the daemon cannot find
/// the next request.
const OF_ONE: u64 = 20_000;
/// Requests sent at once.
const TOGETHER: u64 = 50;

pub fn run(subject: &mut Subject) -> Result<()> {
    let witness = subject.start(SIZE)?;
    let millpond = subject.millpond()?;
    millpond.cli(&["create", VOLUME, "-L", &SIZE.to_string()])?;
    millpond.cli(&["snapshot", "lab/hostile@s"])?;
    let (victim, id) = millpond.export_with_id(VOLUME)?;
    let socket = victim.socket().context("a unix socket")?;
    let mut other = Client::connect(&witness, 1, BLOCK, false)?;
    for block in 0..64u64 {
        other.data(0).fill(block as u8 + 1);
        other.call(Op::Write, block * BLOCK as u64, BLOCK)?;
    }
    let mut rng = Rng::new(0x4e42_4402);
    let (mut connections, mut done) = (0u64, 0);
    while done < REQUESTS {
        let words = [Style::Simple, Style::Structured, Style::Extended][rng.below(3) as usize];
        converse(socket, words, &mut rng)?;
        connections += 1;
        let block = connections % 64;
        other.call(Op::Read, block * BLOCK as u64, BLOCK).context("another client")?;
        ensure!(other.data(0).iter().all(|byte| *byte == block as u8 + 1), "block {block} of another volume has changed");
        done = answered(millpond, &id)?;
    }
    println!("{done} hostile requests answered over {connections} connections");
    for block in 0..64u64 {
        other.call(Op::Read, block * BLOCK as u64, BLOCK)?;
        ensure!(other.data(0).iter().all(|byte| *byte == block as u8 + 1), "block {block} of another volume has changed");
    }
    // A client that behaves, on the same export.
    let mut client = Client::connect(&victim, 1, BLOCK, false)?;
    client.data(0).fill(7);
    client.call(Op::Write, 8192, BLOCK)?;
    client.call(Op::Read, 8192, BLOCK)?;
    ensure!(client.data(0).iter().all(|byte| *byte == 7), "what was written is not read");
    Ok(())
}

/// Requests of the export that were answered, by the daemon's counters.
fn answered(millpond: &Millpond, id: &str) -> Result<u64> {
    let export = millpond.json(&["exports", id])?;
    let io = &export["io"];
    let count = |name: &str| io[name].as_u64().with_context(|| format!("no {name} in {io}"));
    Ok(count("reads")? + count("writes")? + count("flushes")? + count("discards")? + count("errors")?)
}

/// Runs a connection from its handshake to its end.
fn converse(socket: &Path, words: Style, rng: &mut Rng) -> Result<()> {
    let mut stream = UnixStream::connect(socket).context("the daemon does not listen any more")?;
    stream.set_write_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(&handshake(words))?;
    let mut answers = stream.try_clone()?;
    answers.set_read_timeout(Some(Duration::from_secs(20)))?;
    let reader = thread::spawn(move || {
        let mut bytes = vec![0; 1 << 20];
        while matches!(answers.read(&mut bytes), Ok(1..)) {}
    });
    let mut sent = 0;
    while sent < OF_ONE {
        let mut batch = Vec::new();
        (0..TOGETHER).for_each(|_| request(words, rng, &mut batch));
        if stream.write_all(&batch).is_err() {
            break; // the daemon may disconnect
        }
        sent += TOGETHER;
    }
    let _ = stream.shutdown(Shutdown::Write);
    reader.join().map_err(|_| anyhow::anyhow!("the reader panicked"))
}

/// A valid handshake, sent without reading the replies.
fn handshake(words: Style) -> Vec<u8> {
    let extension = match words {
        Style::Simple => Vec::new(),
        Style::Structured => message::option(option::STRUCTURED_REPLY, &[]),
        Style::Extended => message::option(option::EXTENDED_HEADERS, &[]),
    };
    let contexts = match words {
        Style::Simple => Vec::new(),
        _ => message::meta_context(option::SET_META_CONTEXT, VOLUME, &["base:allocation", "qemu:dirty-bitmap:s"]),
    };
    [message::hello(), extension, contexts, message::go(VOLUME)].concat()
}

/// Appends a request, mostly with invalid numbers, and its payload if it has one.
fn request(words: Style, rng: &mut Rng, batch: &mut Vec<u8>) {
    let kind = if rng.below(40) == 0 { rng.below(1 << 16) as u16 } else { [0, 1, 3, 4, 5, 6, 7, 8][rng.below(8) as usize] };
    let flags = if rng.below(3) == 0 { rng.below(1 << 7) as u16 } else { 0 };
    let place = [rng.below(SIZE), rng.below(SIZE / 512) * 512, SIZE - 512, SIZE, u64::MAX, u64::MAX - 511, 1 << 63][rng.below(7) as usize];
    let long = if words == Style::Extended { u64::MAX } else { u64::from(u32::MAX) };
    let length = [0, 1, 511, 512, 4096, 8192, 65_536, 33 << 20, SIZE, SIZE + 512, long, rng.below(9000)][rng.below(12) as usize];
    // Only rarely is the payload shorter or longer than announced, because then the following bytes
    // are no requests.
    let (mut flags, mut length) = (flags, length);
    let lies = rng.below(5000) == 0;
    let extended = words == Style::Extended;
    if kind == 1 && !lies {
        length = [0, 512, 4096, 513, 8192][rng.below(5) as usize];
        flags |= if extended { 1 << 5 } else { 0 };
    }
    let has_payload = kind == 1 || (extended && flags & 1 << 5 != 0);
    if has_payload && !lies {
        length = length.min(9000);
    }
    let magic = if rng.below(30_000) == 0 { 0xdead_beef } else { words.request_magic() };
    let header = RequestHeader { magic, flags, command: kind, cookie: rng.below(1 << 40), offset: place, length };
    batch.extend_from_slice(&header.encode(words));
    if has_payload && !lies {
        let mut payload = vec![0; length as usize];
        rng.fill(&mut payload);
        batch.extend_from_slice(&payload);
    }
}
