//! Random streams of valid and invalid requests, compared with a model that follows the protocol
//! document and not the session.

use proptest::prelude::*;

use super::*;
use crate::testing::Extents;

const SMALL: usize = 256 << 10;

/// One request of a stream.
#[derive(Clone, Debug)]
struct Step {
    command: u16,
    flags: u16,
    offset: u64,
    length: u32,
    fill: u8,
}

impl Step {
    fn range(&self) -> std::ops::Range<u64> {
        self.offset..self.offset.saturating_add(self.length.into())
    }
}

fn lengths() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => (0u32..20).prop_map(|n| n * 512),
        3 => (0u32..5).prop_map(|n| n * 4096),
        2 => (60u32..140).prop_map(|n| n * 512),
        1 => 0u32..70_000,
        1 => (200u32..700).prop_map(|n| n * 1024),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let command = prop_oneof![8 => 0u16..2, 5 => 3u16..8, 1 => 8u16..12];
    let flags = prop_oneof![8 => Just(0u16), 2 => Just(1u16), 1 => Just(2u16), 1 => Just(4u16), 1 => Just(8u16), 1 => Just(16u16), 1 => any::<u16>()];
    let offset = prop_oneof![8 => (0u64..520).prop_map(|n| n * 512), 1 => 0u64..300_000, 1 => any::<u64>()];
    let step = (command, flags, offset, lengths(), any::<u8>()).prop_map(|(command, flags, offset, length, fill)| Step {
        command,
        flags,
        offset,
        length,
        fill,
    });
    proptest::collection::vec(step, 1..60)
}

/// Expected state of the disk.
struct Model {
    bytes: Vec<u8>,
    sector: u64,
    read_only: bool,
    style: Style,
}

impl Model {
    /// Returns the expected error and data of a reply, according to the protocol document.
    fn answer(&mut self, step: &Step) -> (u32, Vec<u8>) {
        let (offset, length) = (u128::from(step.offset), u128::from(step.length));
        let writes = matches!(step.command, 1 | 4 | 6);
        // With extended headers, the test sets the payload's flag where it belongs, and nowhere
        // else.
        let flags = if self.style == Style::Extended { step.flags & !command_flag::PAYLOAD_LEN } else { step.flags };
        if step.command == 7 && self.style != Style::Simple {
            let sector = u128::from(self.sector);
            let aligned = offset.is_multiple_of(sector) && length.is_multiple_of(sector) && length > 0;
            let good = flags & !9 == 0 && offset + length <= self.bytes.len() as u128 && aligned;
            return (if good { 0 } else { EINVAL }, vec![]);
        }
        let allowed = match step.command {
            0 if self.style != Style::Simple => 5,
            6 => 19,
            _ => 1,
        };
        if step.command > 6 || flags & !allowed != 0 {
            return (EINVAL, vec![]);
        }
        if step.command == 3 {
            return (if offset == 0 && length == 0 { 0 } else { EINVAL }, vec![]);
        }
        if writes && self.read_only {
            return (EPERM, vec![]);
        }
        if offset + length > self.bytes.len() as u128 {
            return (if matches!(step.command, 1 | 6) { ENOSPC } else { EINVAL }, vec![]);
        }
        let sector = u128::from(self.sector);
        if !offset.is_multiple_of(sector) || !length.is_multiple_of(sector) {
            return (EINVAL, vec![]);
        }
        let whole_blocks = (offset + length) / 4096 > offset.div_ceil(4096);
        if step.command == 6 && flags & 16 != 0 && length > 0 && !whole_blocks {
            return (ENOTSUP, vec![]);
        }
        let range = offset as usize..(offset + length) as usize;
        match step.command {
            0 => return (0, self.bytes[range].to_vec()),
            1 => self.bytes[range].copy_from_slice(&pattern(0, length as usize, step.fill)),
            4 | 6 => self.bytes[range].fill(0),
            _ => {}
        }
        (0, vec![])
    }
}

impl Model {
    /// Returns the expected extents of both contexts, by sectors. The older state is all zeroes, so
    /// every sector with data has changed.
    fn status(&self, step: &Step) -> Vec<(u32, Extents)> {
        let tell = |kinds: [u64; 2]| {
            let mut extents = Extents::new();
            for sector in step.offset / 512..step.range().end / 512 {
                let block = sector as usize / 8 * 4096;
                let kind = kinds[usize::from(self.bytes[block..block + 4096].iter().any(|byte| *byte != 0))];
                match extents.last_mut() {
                    Some(last) if last.1 == kind => last.0 += 512,
                    _ => extents.push((512, kind)),
                }
            }
            extents.truncate(if step.flags & command_flag::REQ_ONE != 0 { 1 } else { usize::MAX });
            extents
        };
        vec![(1, tell([3, 0])), (2, tell([0, 1]))]
    }
}

fn message(cookie: u64, step: &Step, style: Style) -> Vec<u8> {
    let (mut flags, write) = (step.flags, step.command == command::WRITE);
    if style == Style::Extended {
        // The flag decides whether a payload follows. Writes have a payload anyway; other flags
        // stay, even undefined ones.
        flags = if write { flags } else { flags & !command_flag::PAYLOAD_LEN };
    }
    let mut bytes = match style {
        Style::Extended => extended_request(step.command, flags, cookie, step.offset, step.length.into()),
        Style::Simple | Style::Structured => request(step.command, flags, cookie, step.offset, step.length),
    };
    if write {
        bytes.extend(pattern(0, step.length as usize, step.fill));
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 192 }))]

    #[test]
    fn every_request_gets_the_reply_it_deserves(
        steps in steps(),
        four_k in any::<bool>(),
        read_only in prop::bool::weighted(0.2),
        chunk in prop_oneof![1usize..100, 1000usize..100_000, Just(usize::MAX)],
        send_chunk in prop_oneof![1usize..100, 1000usize..100_000, Just(usize::MAX)],
        order in prop_oneof![Just(Order::InOrder), Just(Order::Reversed), (1u64..).prop_map(Order::Shuffled)],
        hold in any::<bool>(),
        requests in 1u16..20,
        bytes in 1u64..200_000,
        unsent in 0usize..200_000,
        style in prop_oneof![Just(Style::Simple), Just(Style::Structured), Just(Style::Extended)],
    ) {
        let sector = if four_k { SectorProfile::S4kn } else { SectorProfile::S512e };
        let disk = MemoryDisk::new(SMALL, sector).with_order(order).with_pieces(5000).with_read_only(read_only);
        let limits = Limits { requests, bytes, unsent };
        let mut loopback = Loopback::with_style(disk, limits, style);
        (loopback.chunk, loopback.send_chunk, loopback.hold) = (chunk, send_chunk, hold);

        let stream: Vec<u8> = steps.iter().zip(0..).flat_map(|(step, cookie)| message(cookie, step, style)).collect();
        prop_assert_eq!(loopback.feed(&stream), stream.len());
        loopback.release();
        let mut model = Model { bytes: vec![0; SMALL], sector: sector.logical().into(), read_only, style };
        let expected: Vec<Reply> = steps
            .iter()
            .zip(0..)
            .map(|(step, cookie)| {
                let (error, data) = model.answer(step);
                let status = if step.command == command::BLOCK_STATUS && error == 0 { model.status(step) } else { vec![] };
                Reply { cookie, error, data, status }
            })
            .collect();
        let reads =
            steps.iter().zip(0..).filter(|(step, _)| step.command == 0).map(|(step, c)| (c, step.range())).collect();
        let mut replies = parse_replies(&loopback.take_output(), &reads, style).map_err(TestCaseError::fail)?;
        replies.sort();
        prop_assert!(replies == expected, "replies differ from the model's");
        prop_assert!(loopback.disk.bytes() == model.bytes, "the disk differs from the model's");
        prop_assert!(loopback.session.is_idle());
        prop_assert_eq!(loopback.session.phase(), Phase::Transmission);
        let errors = expected.iter().filter(|reply| reply.error != 0).count() as u64;
        prop_assert_eq!(loopback.session.counters().errors, errors);
    }
}
