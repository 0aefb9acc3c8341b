//! The daemon is killed repeatedly with a full queue in flight; the next daemon answers the
//! requests.

use super::subject::Subject;
use super::vhost_user::export;
use anyhow::{Result, ensure};
use millpond_export::vhost_user::front_end::{INDIRECT, STATUS_AT, Segment, WRITE, chain, descriptor, request_header};
use millpond_lab::load::vhost::{AVAILABLE, DATA, DESCRIPTORS, ENTRIES, FrontEnd, GUEST, HEADERS, TABLES};
use millpond_lab::load::{Client, Op, Rng};
use millpond_lab::peer::DISK;
use std::thread;
use std::time::Duration;

const SIZE: u64 = 64 << 20;
const BLOCK: usize = 4096;
const DEATHS: u64 = 8;

pub fn run(subject: &mut Subject) -> Result<()> {
    let endpoint = subject.start(SIZE)?;
    let dir = subject.file("server");
    let socket = export(subject.millpond()?, &dir, DISK)?;
    let mut front = FrontEnd::connect(&socket)?;
    front.start(0)?;
    let mut rng = Rng::new(11);
    for death in 0..DEATHS {
        let blocks = write_everywhere(&mut front, &mut rng, death)?;
        thread::sleep(Duration::from_micros(rng.below(4000)));
        subject.server().kill9()?;
        subject.server().restart()?;
        front.reconnect(&socket)?;
        // Like QEMU, which knows only the used ring.
        front.go_on(front.used()?)?;
        ensure!(front.wait()?, "the queue broke");
        let statuses = front.read(HEADERS, 32 * usize::from(ENTRIES))?;
        let failed = statuses.chunks(32).filter(|header| header[16] != 0).count();
        ensure!(failed == 0, "{failed} writes failed after death {death}");
        let mut client = Client::connect(&endpoint, 1, BLOCK, false)?;
        for (head, block) in blocks.iter().enumerate() {
            client.call(Op::Read, block * BLOCK as u64, BLOCK)?;
            ensure!(client.data(0) == content(head as u64, death), "the write of head {head} is lost after death {death}");
        }
    }
    ensure!(front.stop()? == (DEATHS as u16).wrapping_mul(ENTRIES), "the queue is not where it should be");
    let log = std::fs::read_to_string(dir.join("millpond.log"))?;
    let again = log.matches("requests in flight are repeated").count();
    println!("requests were in flight at {again} of {DEATHS} deaths");
    ensure!(again > 0, "nothing was ever in flight: this has shown nothing");
    Ok(())
}

fn content(head: u64, death: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    Rng::new(1 + head + death * 1000).fill(&mut bytes);
    bytes
}

/// Offers a write to a different place on every entry of the queue at once; returns the places.
fn write_everywhere(front: &mut FrontEnd, rng: &mut Rng, death: u64) -> Result<Vec<u64>> {
    let (mut table, mut tables, mut headers, mut data, mut ring) = (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut blocks = Vec::new();
    for head in 0..u64::from(ENTRIES) {
        let block = head * 64 + rng.below(64);
        blocks.push(block);
        headers.extend_from_slice(&request_header(1, block * 8));
        headers.resize(32 * (head as usize + 1), 0xff);
        data.extend(content(head, death));
        let header = GUEST + HEADERS + 32 * head;
        let segments = [
            Segment { at: header, length: 16, flags: 0 },
            Segment { at: GUEST + DATA + head * BLOCK as u64, length: BLOCK as u32, flags: 0 },
            Segment { at: header + STATUS_AT, length: 1, flags: WRITE },
        ];
        tables.extend_from_slice(&chain(&segments, 0));
        tables.resize(128 * (head as usize + 1), 0);
        table.extend_from_slice(&descriptor(GUEST + TABLES + 128 * head, 48, INDIRECT, 0));
        ring.extend_from_slice(&(head as u16).to_le_bytes());
    }
    front.write(TABLES, &tables)?;
    front.write(HEADERS, &headers)?;
    front.write(DATA, &data)?;
    front.write(DESCRIPTORS, &table)?;
    front.write(AVAILABLE + 4, &ring)?; // the whole ring, so that its start index does not matter
    front.offer(ENTRIES)?;
    Ok(blocks)
}
