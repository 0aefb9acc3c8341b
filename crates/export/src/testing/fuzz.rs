//! Bodies of fuzz tests for NBD sessions, as plain functions, so that every test run replays their
//! corpus.

use millpond_block::SectorProfile;

use super::{Loopback, MemoryDisk, Order, Reads, Reply, parse_replies};
use crate::ExportId;
use crate::nbd::wire::{RequestHeader, Style, command};
use crate::nbd::{CloseReason, Encryption, Limits, Phase};

const DISK: usize = 256 << 10;
const LIMITS: Limits = Limits { requests: 8, bytes: 64 << 10, unsent: 16 << 10 };
/// Limit, in bytes, of the unsent replies beyond the session's own limit: one read of the whole
/// disk for each request in flight, or one list of exports.
const UNSENT_SLACK: usize = 8 * DISK + (64 << 10);

/// Runs a whole connection from hostile bytes. The bits of the first byte are: 0 read-only, 1
/// sectors of 4 KiB, 2 the handshake is skipped, 3 the magic number of every request is corrected,
/// 4-5 the order of answers. If the handshake is skipped, bits 6-7 are the reply style, with two
/// metadata contexts unless it is the simple one. Otherwise bit 6 offers encryption and bit 7
/// requires it. All other bytes are the client's.
///
/// # Panics
/// When the session misbehaves: replies that cannot be parsed, too many unsent bytes, a connection
/// that does not end, or different replies when the same bytes arrive one at a time.
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
        // Bytes that arrive together with STARTTLS are plaintext. One at a time, they arrive
        // encrypted.
        return;
    }
    assert_eq!(whole.bytes, single.bytes, "the disk depends on how the stream was cut");
    assert_eq!(whole.reason, single.reason, "the end depends on how the stream was cut");
    if in_transmission {
        // If a cookie is used twice, a client cannot assign the replies either.
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
    reason: Option<CloseReason>,
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
        reason: loopback.session.close_reason(),
        bound: loopback.session.bound(),
        was_cut_off: loopback.session.close_reason() == Some(CloseReason::ClearAfterStartTls),
        output: loopback.output,
    }
}

/// Returns the requests in the stream, up to the first invalid one.
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

/// Returns the ranges of reads by cookie; `None` if a cookie is used twice.
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
