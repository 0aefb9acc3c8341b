//! Compares stripes with a model: bytes distributed by hand, parity by multiplication in GF(2^8)
//! bit by bit.

use millpond_block::MemberId;
use millpond_format::{Class, Column, DeviceId, Layout, Member, MemberState, SegmentId, Shape};

use super::*;
use crate::space::{PAGE, SegmentLayout};
use millpond_testing::Random;

fn layout(width: u16, parity: u8, unit: u32) -> SegmentLayout {
    let member =
        |at| Member { device: DeviceId(at), extents: 20, state: MemberState::Present, replacement: None, leaving: false, down_since: 0 };
    let members = (0..u64::from(width)).map(member).collect();
    let mut shape = Shape { generation: 1, extent_bytes: 64 << 10, chunk_units: 16, next: SegmentId(0), members, groups: Vec::new() };
    let columns = (0..width).map(MemberId).map(|member| Column { member, first: 0, extents: 20 }).collect();
    shape.add(Class::Data, Layout::Parity { width, parity, unit }, columns);
    assert!(shape.fits());
    SegmentLayout::new(&shape)
}

/// Product in GF(2^8) modulo 0x11d.
fn times(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b > 0 {
        if b & 1 == 1 {
            product ^= a;
        }
        a = a << 1 ^ if a & 0x80 == 0 { 0 } else { 0x1d };
        b >>= 1;
    }
    product
}

fn noise(length: usize) -> Vec<u8> {
    Random::new(1).bytes(length)
}

fn pieces(bytes: &[u8], step: usize) -> Vec<BufSlice> {
    let piece = |part: &[u8]| {
        let mut buf = Buf::zeroed(part.len());
        buf.bytes_mut()[..part.len()].copy_from_slice(part);
        BufSlice::new(buf, 0..part.len())
    };
    bytes.chunks(step).map(piece).collect()
}

/// Bytes that `split` puts on each column of a segment.
fn columns(stripe: &Stripe<'_>, bytes: &[u8], step: usize) -> Vec<Vec<u8>> {
    let mut bufs = BufPool::default();
    let split = Coders::default().split(stripe, pieces(bytes, step), &mut bufs);
    split.iter().map(|pieces| pieces.iter().flat_map(|piece| piece.bytes().to_vec()).collect()).collect()
}

#[test]
fn parity_is_that_of_the_turns() {
    for (width, parity, unit) in [(3u16, 1u8, 4096u32), (4, 2, 8192), (7, 2, 4096), (16, 2, 4096)] {
        let layout = layout(width, parity, unit);
        let stripe = layout.stripe(SegmentId(3)).unwrap();
        let (data, unit) = (stripe.data(), unit as usize);
        let bytes = noise(data * unit * 3);
        for step in [4096, 8192 + 4096, bytes.len()] {
            let columns = columns(&stripe, &bytes, step);
            let of_data = columns.iter().take(data).enumerate();
            assert!(of_data.clone().all(|(column, own)| {
                (0..3).all(|row| own[row * unit..(row + 1) * unit] == bytes[(row * data + column) * unit..][..unit])
            }));
            let coded = |at: usize| {
                of_data.clone().fold((0, 0, 1), |(p, q, factor), (_, own)| (p ^ own[at], q ^ times(factor, own[at]), times(factor, 2)))
            };
            let (mut p, mut q): (Vec<u8>, Vec<u8>) = (Vec::new(), Vec::new());
            for (byte, syndrome, _) in (0..unit * 3).map(coded) {
                p.push(byte);
                q.push(syndrome);
            }
            assert!(columns[data] == p && (parity == 1 || columns[data + 1] == q));
        }
    }
}

#[test]
fn any_lost_columns_are_computed_from_the_others() {
    for (width, parity, unit) in [(3u16, 1u8, 4096u32), (2, 1, 4096), (3, 2, 4096), (5, 2, 8192), (6, 1, 16384)] {
        let layout = layout(width, parity, unit);
        let stripe = layout.stripe(SegmentId(1)).unwrap();
        let bytes = noise(stripe.data() * unit as usize * 2);
        let on_columns = columns(&stripe, &bytes, 4096);
        let wants = [(0, PAGE), (PAGE, 2 * PAGE), (u64::from(unit) - PAGE, u64::from(unit) + PAGE), (0, bytes.len() as u64)];
        let mut wants: Vec<Want> =
            wants.into_iter().filter(|(_, to)| *to <= bytes.len() as u64).map(|(from, to)| Want::Bytes { from, to }).collect();
        let local = ByteRange { offset: PAGE / 2, length: PAGE };
        wants.extend((0..usize::from(width)).map(|column| Want::Column { column, local }));
        let mut seen = std::collections::BTreeSet::new();
        for missing in (0u32..1 << width).filter(|set| set.count_ones() <= u32::from(parity)) {
            for attempt in 0..answers(usize::from(width), stripe.parity, missing) {
                let erased = erased(usize::from(width), stripe.parity, missing, 0, attempt).unwrap();
                assert!(erased & missing == missing && erased.count_ones() <= u32::from(parity));
                seen.insert((missing, erased));
                for want in &wants {
                    let rebuild = Rebuild::new(&stripe, *want, erased);
                    let starts = stripe.columns();
                    let read: Vec<&[u8]> = rebuild
                        .reads(&stripe)
                        .iter()
                        .map(|(device, range)| {
                            let column = starts.iter().position(|(d, _)| d == device).unwrap();
                            assert!(erased & 1 << column == 0, "what is erased is not read");
                            let from = (range.offset - starts[column].1) as usize;
                            &on_columns[column][from..from + range.length as usize]
                        })
                        .collect();
                    let mut out = vec![0; rebuild.length()];
                    rebuild.assemble(&read, &mut Coders::default(), &mut out).unwrap();
                    match *want {
                        Want::Bytes { from, to } => assert!(out == bytes[from as usize..to as usize]),
                        Want::Column { column, local } => {
                            let from = local.offset as usize;
                            assert!(out == on_columns[column][from..from + local.length as usize]);
                        }
                    }
                }
            }
        }
        // with nothing missing, every set of columns that parity can replace is tried
        let sets = (0u32..1 << width).filter(|set| set.count_ones() <= u32::from(parity)).count();
        assert_eq!(seen.iter().filter(|(missing, _)| *missing == 0).count(), sets);
    }
}

#[test]
fn more_missing_than_parity_is_nothing() {
    assert_eq!(erased(4, 1, 0b11, 0, 0), None);
    assert_eq!(erased(4, 2, 0b11, 0, 5), Some(0b11));
}

/// The parity of ISA-L, of RAID-6 in Linux, and of pools is the same: a new version of a library
/// must not change it.
#[test]
fn parity_is_that_of_isa_l() {
    let lines = include_str!("isal.txt").lines().filter(|line| !line.starts_with('#'));
    let bytes = |hex: &str| -> Vec<u8> { (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect() };
    let mut seen = 0;
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (count, wanted) = (words[0].parse::<usize>().unwrap(), [bytes(words[1]), bytes(words[2])]);
        let byte = |column: usize, at: usize| ((at * 7 + column * 31 + at * at * column) % 251) as u8;
        let data: Vec<Vec<u8>> = (0..count).map(|column| (0..64).map(|at| byte(column, at)).collect()).collect();
        let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let mut parity = vec![vec![0; 64]; 2];
        let mut into: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        let mut coders = Coders::default();
        coders.of(count, 2).encode(&data, &mut into).unwrap();
        assert!(parity == wanted, "P and Q of {count} columns");
        let mut single = vec![0; 64];
        coders.of(count, 1).encode(&data, &mut [single.as_mut_slice()]).unwrap();
        assert!(single == wanted[0], "P alone of {count} columns");
        // and recover each pair of columns from the others
        let all: Vec<&[u8]> = data.iter().copied().chain(wanted.iter().map(Vec::as_slice)).collect();
        for (one, other) in (0..all.len()).flat_map(|one| (one + 1..all.len()).map(move |other| (one, other))) {
            let shards: Vec<Option<&[u8]>> =
                all.iter().enumerate().map(|(at, shard)| (at != one && at != other).then_some(*shard)).collect();
            let mut found = vec![vec![0; 64]; 2];
            let mut into: Vec<&mut [u8]> = found.iter_mut().map(Vec::as_mut_slice).collect();
            coders.of(count, 2).recover(&shards, &[one, other], &mut into).unwrap();
            assert!(found[0] == all[one] && found[1] == all[other], "columns {one} and {other} of {}", all.len());
        }
        seen += 1;
    }
    assert_eq!(seen, 5);
}
