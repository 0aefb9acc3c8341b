//! What fuzzers run, as plain functions, so that their corpus is replayed by every test run.

use millpond_block::SectorProfile;

use super::{Loopback, MemoryDisk, Order, Reads, Reply, parse_replies};
use crate::ExportId;
use crate::nbd::wire::{RequestHeader, Style, command};
use crate::nbd::{CloseReason, Encryption, Limits, Phase};

const DISK: usize = 256 << 10;
const LIMITS: Limits = Limits { requests: 8, bytes: 64 << 10, unsent: 16 << 10 };
/// More than any single answer adds to what is unsent: one read of the whole disk per request let in, or a list.
const UNSENT_SLACK: usize = 8 * DISK + (64 << 10);

/// A whole connection from hostile bytes. The first byte chooses: bit 0 read-only, bit 1 4 KiB sectors, bit 2 the handshake is
/// skipped, bit 3 every request's magic number is put right, bits 4-5 the order of answers, bits 6-7 the style of replies, with two metadata
/// contexts unless it is the simple one, where the handshake is skipped; elsewhere bit 6 offers encryption and bit 7 requires it. The rest is
/// what the client sends.
///
/// # Panics
/// When the session misbehaves: replies that cannot be parsed, more unsent than allowed, a connection that does not end, or other
/// replies when the same bytes come one at a time.
pub fn fuzz_session(data: &[u8]) {
    let Some((&choice, bytes)) = data.split_first() else { return };
    let in_transmission = choice & 4 != 0;
    let mut bytes = bytes.to_vec();
    if in_transmission && choice & 8 != 0 {
        put_magic_right(&mut bytes, style_of(choice));
    }
    let whole = run(choice, in_transmission, &bytes, usize::MAX, usize::MAX);
    let single = run(choice, in_transmission, &bytes, 1, 7);
    if whole.was_cut_off {
        // What comes together with STARTTLS came in the clear; one byte at a time, it comes encrypted.
        return;
    }
    assert_eq!(whole.bytes, single.bytes, "the disk depends on how the stream was cut");
    assert_eq!(whole.reason, single.reason, "the end depends on how the stream was cut");
    if in_transmission {
        // With one cookie used twice, a client could not take the replies apart either.
        if let Some(reads) = reads(&bytes, style_of(choice)) {
            let replies = |run: &Run| -> Vec<Reply> {
                let mut replies = parse_replies(&run.output, &reads, style_of(choice)).expect("replies that a client understands");
                replies.sort();
                replies
            };
            assert_eq!(replies(&whole), replies(&single), "replies depend on how the stream was cut");
        }
    } else if whole.bound.is_none() {
        assert_eq!(whole.output, single.output, "the handshake depends on how the stream was cut");
    }
}

fn style_of(choice: u8) -> Style {
    match choice >> 6 {
        0 => Style::Simple,
        1 => Style::Structured,
        _ => Style::Extended,
    }
}

struct Run {
    bytes: Vec<u8>,
    output: Vec<u8>,
    reason: Option<String>,
    bound: Option<ExportId>,
    was_cut_off: bool,
}

fn encryption_of(choice: u8) -> Encryption {
    match choice >> 6 {
        0 => Encryption::Off,
        1 => Encryption::Allowed,
        _ => Encryption::Required,
    }
}

fn run(choice: u8, in_transmission: bool, bytes: &[u8], chunk: usize, send_chunk: usize) -> Run {
    let sector = if choice & 2 != 0 { SectorProfile::S4kn } else { SectorProfile::S512e };
    let order = match choice >> 4 & 3 {
        0 | 1 => Order::InOrder,
        2 => Order::Reversed,
        _ => Order::Shuffled(0x9e37_79b9_7f4a_7c15),
    };
    let disk = MemoryDisk::new(DISK, sector).with_order(order).with_pieces(4096).with_read_only(choice & 1 != 0);
    let mut loopback = match in_transmission {
        true => Loopback::with_style(disk, LIMITS, style_of(choice)),
        false => Loopback::with_encryption(disk, LIMITS, encryption_of(choice)),
    };
    loopback.chunk = chunk;
    loopback.send_chunk = send_chunk;
    loopback.hold = choice & 32 != 0;
    for part in bytes.chunks(chunk.min(4096)) {
        let fed = loopback.feed(part);
        assert!(fed == part.len() || loopback.session.close_reason().is_some(), "input refused without a reason");
        assert!(loopback.session.unsent() <= LIMITS.unsent + UNSENT_SLACK, "unsent output is not bounded");
        assert!(loopback.session.in_flight() <= usize::from(LIMITS.requests), "requests in flight are not bounded");
    }
    loopback.end();
    assert_eq!(loopback.session.phase(), Phase::Closed, "{:?}", loopback.session);
    Run {
        bytes: loopback.disk.bytes().to_vec(),
        reason: loopback.session.close_reason().map(|reason| reason.to_string()),
        bound: loopback.session.bound(),
        was_cut_off: loopback.session.close_reason() == Some(CloseReason::ClearAfterStartTls),
        output: loopback.output,
    }
}

/// The requests that a server in step with the stream sees.
fn headers(mut bytes: &[u8], style: Style) -> impl Iterator<Item = RequestHeader> {
    std::iter::from_fn(move || {
        let header = RequestHeader::read(bytes, style)?;
        if header.magic != style.request_magic() || header.command == command::DISC {
            return None;
        }
        bytes = bytes.get(message_length(&header, style)..).unwrap_or_default();
        Some(header)
    })
}

fn message_length(header: &RequestHeader, style: Style) -> usize {
    usize::try_from(header.payload(style)).unwrap_or(usize::MAX).saturating_add(style.request_header())
}

/// The reads by cookie; `None` when a cookie is used twice.
fn reads(bytes: &[u8], style: Style) -> Option<Reads> {
    let (mut reads, mut cookies) = (Reads::new(), std::collections::HashSet::new());
    for header in headers(bytes, style) {
        if header.command == command::READ {
            reads.insert(header.cookie, header.offset..header.offset.saturating_add(header.length));
        }
        if !cookies.insert(header.cookie) {
            return None;
        }
    }
    Some(reads)
}

fn put_magic_right(bytes: &mut [u8], style: Style) {
    let mut at = 0usize;
    while let Some(header) = bytes.get(at..).and_then(|rest| RequestHeader::read(rest, style)) {
        if let Some(magic) = bytes.get_mut(at..at + 4) {
            magic.copy_from_slice(&style.request_magic().to_be_bytes());
        }
        at = at.saturating_add(message_length(&header, style));
    }
}

#[cfg(test)]
mod tests;
