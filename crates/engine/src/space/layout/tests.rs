//! Compares segments with lists of pages that are dealt out one by one.

use millpond_block::MemberId;
use millpond_format::{Column, DeviceId, Member, MemberState};

use super::*;
use millpond_testing::Random;

/// Pages of an extent: 64 KiB, the least that a shape allows.
const EXTENT_PAGES: u64 = 16;
const DEVICES: u16 = 8;

/// A page on a device.
type PageAt = (MemberId, u64);

/// A segment as the twin knows it: its extents, and the place of each page of each copy.
#[derive(Debug, Default)]
struct Plain {
    class: Option<AllocClass>,
    first: SegmentId,
    extents: Vec<PageAt>,
    copies: Vec<Vec<PageAt>>,
    /// Number of copies that are read in turn.
    front: usize,
    /// Number of devices that may be lost.
    spare: usize,
    /// Pages of a stripe with parity, else 1.
    quantum: u32,
    /// Pages of each column with parity, parity included.
    columns: Vec<Vec<PageAt>>,
    in_bucket: bool,
}

fn extent(part: (MemberId, u32)) -> PageAt {
    (part.0, AREA_BYTES / PAGE + u64::from(part.1) * EXTENT_PAGES)
}

/// The pages of an extent.
fn pages_of(part: (MemberId, u32)) -> Vec<PageAt> {
    let (device, start) = extent(part);
    (start..start + EXTENT_PAGES).map(|page| (device, page)).collect()
}

/// Deals out the pages of columns in turns of `unit` bytes.
fn deal(columns: &[Vec<PageAt>], unit: u32) -> Vec<PageAt> {
    let turns = columns.iter().map(|column| column.chunks(unit as usize / PAGE as usize).collect::<Vec<_>>()).collect::<Vec<_>>();
    let mut pages = Vec::new();
    for turn in 0..turns.first().map_or(0, Vec::len) {
        turns.iter().for_each(|column| pages.extend_from_slice(column[turn]));
    }
    pages
}

/// The segments of a shape.
fn plain_rows(shape: &Shape) -> Vec<Plain> {
    let of_data = |member: MemberId| {
        let groups = shape.groups.iter().filter(|group| matches!(group.class, Class::Data | Class::Log));
        groups.flat_map(|group| &group.columns).any(|column| column.member == member)
    };
    let mut all: Vec<Plain> = Vec::new();
    for group in shape.groups.iter().filter(|group| !group.class.is_auxiliary()) {
        all.resize_with(group.first.0 as usize, Plain::default);
        let mixed = group.columns.iter().any(|column| of_data(column.member));
        let class = match group.class {
            _ if group.layout.is_bucket() => AllocClass::Bucket,
            Class::Log if shape.groups.iter().all(|group| !group.layout.is_bucket()) => AllocClass::Log,
            Class::Special if mixed => AllocClass::Nodes,
            Class::Special => AllocClass::Special,
            _ => AllocClass::Data,
        };
        group.for_each_row(|parts| {
            let columns: Vec<Vec<PageAt>> = parts.iter().map(|part| pages_of(*part)).collect();
            let fast = parts.iter().filter(|(member, _)| class != AllocClass::Nodes || !of_data(*member)).count();
            let plain = Plain {
                class: Some(class),
                first: group.first,
                extents: parts.iter().map(|part| extent(*part)).collect(),
                front: fast,
                quantum: 1,
                ..Plain::default()
            };
            all.push(match group.layout {
                Layout::Linear => Plain { copies: columns, ..plain },
                Layout::Stripe { unit, .. } => Plain { copies: vec![deal(&columns, unit)], ..plain },
                Layout::Mirror { copies } => Plain { copies: columns, spare: usize::from(copies) - 1, ..plain },
                Layout::Bucket { .. } => Plain { in_bucket: true, ..plain },
                Layout::Parity { width, parity, unit } => {
                    let data = usize::from(width) - usize::from(parity);
                    let quantum = data as u32 * (unit / PAGE as u32);
                    Plain { copies: vec![deal(&columns[..data], unit)], spare: usize::from(parity), quantum, columns, ..plain }
                }
            });
        });
    }
    all.resize_with(shape.next.0 as usize, Plain::default);
    all
}

/// The pages of byte ranges, one by one.
fn pages_in(places: impl IntoIterator<Item = (MemberId, ByteRange)>) -> Vec<PageAt> {
    let pages = |(device, range): (MemberId, ByteRange)| {
        assert!(range.offset % PAGE == 0 && range.length % PAGE == 0 && range.length > 0, "{range:?}");
        (range.offset / PAGE..(range.offset + range.length) / PAGE).map(move |page| (device, page))
    };
    places.into_iter().flat_map(pages).collect()
}

fn compare(rows: &SegmentLayout, plain: &[Plain], random: &mut Random) {
    assert_eq!(rows.count() as usize, plain.len());
    for (id, plain) in (0u32..).map(SegmentId).zip(plain) {
        let size = if plain.in_bucket { EXTENT_PAGES as usize } else { plain.copies.first().map_or(0, Vec::len) };
        let is_mirror = plain.columns.is_empty() && plain.spare > 0;
        assert_eq!(rows.is_gap(id), plain.class.is_none(), "{id}");
        assert_eq!(rows.alloc_class(id), plain.class.unwrap_or(AllocClass::Data), "{id}");
        assert_eq!(rows.home(id), plain.class.map(|class| (class, plain.first, size as u32)), "{id}");
        assert_eq!((rows.pages(id) as usize, rows.spare(id), rows.front(id)), (size, plain.spare, plain.front), "{id}");
        let copies: Vec<MemberId> = plain.extents.iter().filter(|_| is_mirror).map(|(device, _)| *device).collect();
        assert!(rows.copies(id).eq(copies), "{id}");
        assert_eq!(rows.quantum(id), plain.quantum.max(1), "{id}");
        assert_eq!(rows.is_in_bucket(id), plain.in_bucket, "{id}");
        assert_eq!(rows.is_written_whole(id), plain.in_bucket || !plain.columns.is_empty(), "{id}");
        assert!(!plain.in_bucket || rows.map(id, 0, size as u32, 0).is_empty(), "{id}");
        for device in (0..DEVICES).map(MemberId) {
            assert_eq!(rows.has(id, device), plain.extents.iter().any(|(of, _)| *of == device), "{device:?} in {id}");
        }
        let extents: Vec<PageAt> = rows.extents(id).map(|(device, range)| (device, range.offset / PAGE)).collect();
        assert_eq!(extents, plain.extents, "{id}");
        for _ in 0..12 {
            let from = random.below(size as u64 + 1) as usize;
            let count = random.below((size - from) as u64 + 1) as usize;
            for (copy, pages) in plain.copies.iter().enumerate() {
                let found = pages_in(rows.map(id, from as u32, count as u32, copy));
                assert_eq!(found, pages[from..from + count], "{count} pages from {from} of {id}");
            }
        }
        compare_stripe(rows, id, plain, random);
    }
    let (odd, all) = (rows.count_extents(usize::from(DEVICES), |id| id.0 % 2 == 1), 0..DEVICES);
    for (device, count) in all.map(MemberId).zip(odd) {
        let extents = plain.iter().skip(1).step_by(2).flat_map(|plain| &plain.extents);
        assert_eq!(count as usize, extents.filter(|(of, _)| *of == device).count(), "{device:?}");
    }
}

/// Compares the columns of a segment with parity.
fn compare_stripe(rows: &SegmentLayout, id: SegmentId, plain: &Plain, random: &mut Random) {
    let Some(stripe) = rows.stripe(id) else {
        assert!(plain.columns.is_empty(), "{id}");
        return;
    };
    assert_eq!((stripe.width(), stripe.parity), (plain.columns.len(), plain.spare), "{id}");
    assert_eq!(stripe.data(), plain.columns.len() - plain.spare, "{id}");
    let starts: Vec<PageAt> = stripe.columns().iter().map(|(device, start)| (*device, start / PAGE)).collect();
    assert_eq!(starts, plain.extents, "{id}");
    let unit = (stripe.unit / PAGE) as usize;
    let stripes = EXTENT_PAGES as usize / unit;
    let from = random.below(stripes as u64) as usize;
    let count = 1 + random.below((stripes - from) as u64) as usize;
    for (column, pages) in plain.columns.iter().enumerate() {
        let (page, count_pages) = (from as u32 * plain.quantum, count as u32 * plain.quantum);
        let found = pages_in(stripe.column(column, page, count_pages));
        assert_eq!(found, pages[from * unit..(from + count) * unit], "column {column} of {id}");
    }
    assert_eq!(stripe.column(plain.columns.len(), 0, plain.quantum), None, "{id}");
}

/// Returns columns on some of the devices, whose next free extents are `next`.
fn columns(random: &mut Random, next: &mut [u32], devices: std::ops::Range<u16>, least: usize) -> Vec<Column> {
    let mut columns = Vec::new();
    for member in devices.clone() {
        let still = usize::from(devices.end - member) + columns.len() <= least;
        if still || random.once_in(2) {
            let (first, extents) = (next[usize::from(member)] + random.small(2), 1 + random.small(6));
            next[usize::from(member)] = first + extents;
            columns.push(Column { member: MemberId(member), first, extents });
        }
    }
    columns
}

/// Adds a group of any class and layout. Devices 5 and 6 are never of class data. Beside a bucket all
/// data on devices is a log.
fn add_group(shape: &mut Shape, random: &mut Random, next: &mut [u32]) {
    let unit = 4096u32 << random.below(5);
    let (class, layout, devices, least) = match random.below(7) {
        0 => (Class::Data, Layout::Linear, 0..5, 1),
        1 => (Class::Data, Layout::Stripe { width: 1 + random.small(4) as u16, unit }, 0..5, 2),
        2 => (Class::Data, Layout::Mirror { copies: 2 + random.small(2) as u16 }, 0..5, 3),
        3 => (Class::Data, Layout::Parity { width: 3, parity: 1, unit }, 0..5, 3),
        4 => (Class::Data, Layout::Parity { width: 5, parity: 2, unit }, 0..5, 5),
        5 => (Class::Log, Layout::Mirror { copies: 2 }, 0..4, 2),
        _ if random.once_in(2) => (Class::Special, Layout::Mirror { copies: 2 }, 4..7, 2),
        _ => (Class::Special, Layout::Stripe { width: 2, unit }, 5..7, 1),
    };
    let columns = columns(random, next, devices, least);
    shape.add(if class == Class::Data { shape.local_class() } else { class }, layout, columns);
}

/// Compares layouts of any shape with lists of pages: with all groups at once, and with groups
/// added one by one and lost.
#[test]
fn segments_are_lists_of_pages() {
    for seed in 0..30 {
        let random = &mut Random::new(seed);
        let member = |device| Member {
            device: DeviceId(device + 1),
            extents: 200,
            state: MemberState::Present,
            replacement: None,
            leaving: false,
            down_since: 0,
        };
        let members = (0..u64::from(DEVICES)).map(member).collect();
        let extent_bytes = EXTENT_PAGES * PAGE;
        let mut shape = Shape { generation: 1, extent_bytes, chunk_units: 64, next: SegmentId(0), members, groups: Vec::new() };
        let mut next = [0; DEVICES as usize];
        if seed % 3 == 0 {
            shape.add(Class::Data, Layout::Bucket { segments: 1 + random.small(9) }, Vec::new());
        }
        // device 4 is of class data, or log beside a bucket, and 7 a cache
        shape.add(shape.local_class(), Layout::Linear, vec![Column { member: MemberId(4), first: 199, extents: 1 }]);
        shape.add(Class::Cache, Layout::Linear, vec![Column { member: MemberId(7), first: 0, extents: 200 }]);
        let mut grown = SegmentLayout::new(&shape);
        for _ in 0..6 {
            add_group(&mut shape, random, &mut next);
            assert!(shape.check().is_ok(), "{shape:?}");
            grown.extend(&shape);
            let plain = plain_rows(&shape);
            compare(&SegmentLayout::new(&shape), &plain, random);
            compare(&grown, &plain, random);
        }
        while !shape.groups.is_empty() {
            shape.groups.remove(random.below(shape.groups.len() as u64) as usize);
            compare(&SegmentLayout::new(&shape), &plain_rows(&shape), random);
        }
    }
}
