use millpond_testing::Random;

use super::*;

/// Pages in a row on one device.
const UNIT: u32 = 16;

fn in_one_place(_: SegmentId, page: u32, pages: u32) -> bool {
    page / UNIT == (page + pages - 1) / UNIT
}

/// Blocks at these places, in the order of a request, with neighbours in that order joined, as a
/// read plans them.
fn runs_of(places: &[(SegmentId, u32)]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (segment, page) in places {
        match runs.last_mut() {
            Some(last)
                if last.segment == *segment && last.page + last.pages == *page && in_one_place(*segment, last.page, last.pages + 1) =>
            {
                last.pages += 1;
            }
            _ => runs.push(Run { segment: *segment, page: *page, pages: 1, part: runs.len() as u32 }),
        }
    }
    runs
}

/// The same by brute force: two runs are read together when their places are near, or when other
/// runs lie between them.
fn slow_join(runs: &[Run]) -> Vec<Vec<u32>> {
    let near = |a: &Run, b: &Run| {
        let (a, b) = if a.page <= b.page { (a, b) } else { (b, a) };
        let (first_end, end) = (a.page + a.pages, (a.page + a.pages).max(b.page + b.pages));
        a.segment == b.segment && b.page.saturating_sub(first_end) <= GAP_PAGES && in_one_place(a.segment, a.page, end - a.page)
    };
    let mut groups: Vec<Vec<Run>> = runs.iter().map(|run| vec![*run]).collect();
    while let Some((i, j)) = (0..groups.len())
        .flat_map(|i| (i + 1..groups.len()).map(move |j| (i, j)))
        .find(|(i, j)| groups[*i].iter().any(|a| groups[*j].iter().any(|b| near(a, b))))
    {
        let other = groups.swap_remove(j);
        groups[i].extend(other);
    }
    let mut parts: Vec<Vec<u32>> = groups
        .into_iter()
        .map(|group| {
            let mut parts: Vec<u32> = group.iter().map(|run| run.part).collect();
            parts.sort_unstable();
            parts
        })
        .collect();
    parts.sort();
    parts
}

/// `count` different places of `segments` segments of `pages` pages, in random order.
fn places(rng: &mut Random, segments: u32, pages: u32, count: usize) -> Vec<(SegmentId, u32)> {
    let mut all: Vec<(SegmentId, u32)> = (0..segments).flat_map(|id| (0..pages).map(move |page| (SegmentId(id), page))).collect();
    (0..count.min(all.len())).map(|_| all.swap_remove(rng.index(all.len()))).collect()
}

/// Pages of packed blocks, some of which share a page, in random order.
fn packed(rng: &mut Random, count: usize) -> Vec<Run> {
    let mut unit = 0;
    let mut runs: Vec<Run> = Vec::new();
    for _ in 0..count {
        let units = 1 + rng.index(8) as u32;
        unit += if rng.index(4) == 0 { rng.index(40) as u32 } else { 0 };
        let (page, end) = (unit / 8, (unit + units).div_ceil(8));
        runs.push(Run { segment: SegmentId(0), page, pages: end - page, part: 0 });
        unit += units;
    }
    let mut shuffled: Vec<Run> = (0..count).map(|_| runs.swap_remove(rng.index(runs.len()))).collect();
    (0u32..).zip(&mut shuffled).for_each(|(part, run)| run.part = part);
    shuffled
}

/// Compares with brute force. Parts are those of `runs`, by position.
fn check(runs: &[Run]) {
    let mut parts: Vec<Vec<u32>> = Vec::new();
    for read in join(&mut runs.to_vec(), in_one_place) {
        assert!(read.parts.len() == 1 || in_one_place(read.segment, read.page, read.pages), "{read:?}");
        let mut mine = read.parts.to_vec();
        for part in &mine {
            let run = runs[*part as usize];
            let inside = run.page >= read.page && run.page + run.pages <= read.page + read.pages;
            assert!(run.segment == read.segment && inside, "{run:?} is not in {read:?}");
        }
        mine.sort_unstable();
        parts.push(mine);
    }
    parts.sort();
    assert_eq!(parts, slow_join(runs), "{runs:?}");
}

#[test]
fn runs_are_joined_as_by_brute_force() {
    let mut rng = Random::new(7);
    for nth in 0..2000 {
        let count = 1 + nth % 40;
        check(&runs_of(&places(&mut rng, 1 + nth as u32 % 3, 16 << (nth % 4), count.min(16))));
        check(&packed(&mut rng, count.min(16)));
    }
}

#[test]
fn a_scattered_request_takes_fewer_device_reads() {
    // a volume of 4 MiB was overwritten in random order in segments of 1 MiB: requests of 1 MiB
    let mut rng = Random::new(1);
    let layout = places(&mut rng, 4, 256, 1024);
    let (mut before, mut after) = (0, 0);
    for request in layout.chunks(256) {
        let mut runs: Vec<Run> = Vec::new();
        for (segment, page) in request {
            match runs.last_mut() {
                Some(last) if last.segment == *segment && last.page + last.pages == *page => last.pages += 1,
                _ => runs.push(Run { segment: *segment, page: *page, pages: 1, part: runs.len() as u32 }),
            }
        }
        before += runs.len();
        after += join(&mut runs, |_, _, _| true).len();
    }
    assert!(before > 1000 && after < before / 2, "{before} reads, then {after}");
}
