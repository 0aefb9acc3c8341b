use std::collections::{BTreeMap, BTreeSet};

use millpond_format::{Lsn, SegmentId};
use millpond_testing::Random;

use super::{Fill, NOT_LOGGED, Pages, SegmentState, SegmentTable, Wanted};
use crate::space::AllocClass;

/// Three groups of 10, 20, and 31 segments of 16 pages.
fn table() -> SegmentTable {
    let mut table = SegmentTable::new();
    let group = |id: SegmentId| match id.0 {
        0..10 => SegmentId(0),
        10..30 => SegmentId(10),
        _ => SegmentId(30),
    };
    table.extend(61, |id| Some((AllocClass::Data, group(id), 16)));
    table
}

/// Wants `pages` of all classes.
fn of_all(pages: u64) -> Wanted {
    Wanted { pages, first: None }
}

fn prepare_all(table: &mut SegmentTable, wanted: Wanted) -> usize {
    let mut steps = 0;
    while let Some(id) = table.next_hole(wanted, true) {
        table.set_state(id, SegmentState::Preparing);
        table.prepared(id, true);
        steps += 1;
        assert!(steps <= 61, "more is prepared than there is");
    }
    steps
}

/// For each number of pages to be ready: what preparing made ready is not discarded, and what is
/// discarded leaves nothing to prepare.
#[test]
fn what_was_prepared_is_not_given_back() {
    for wanted in 16..=61 * 16 {
        let mut table = table();
        assert!(prepare_all(&mut table, of_all(wanted)) > 0);
        assert_eq!(table.last_ready(1, of_all(wanted)), [], "{wanted} pages wanted");
        prepare_all(&mut table, of_all(61 * 16));
        let ready = |table: &SegmentTable| table.pages().ready;
        loop {
            let found = table.last_ready(64, of_all(wanted));
            if found.is_empty() {
                break;
            }
            for id in &found {
                table.set_state(*id, SegmentState::Discarding);
            }
            for id in &found {
                table.set_state(*id, SegmentState::Free);
            }
        }
        // each share is rounded down to pages, and up to segments
        assert!(ready(&table) + 3 > wanted && ready(&table) < wanted + 3 * 16, "{} pages of {wanted}", ready(&table));
        assert_eq!(prepare_all(&mut table, of_all(wanted)), 0, "{wanted} pages wanted");
    }
}

/// Eight segments of class `log` beside a hundred times as many of class `data`.
#[test]
fn a_small_log_is_prepared_first_and_given_back_last() {
    let mut table = SegmentTable::new();
    let home = |id: SegmentId| if id.0 < 800 { (AllocClass::Data, SegmentId(0), 16) } else { (AllocClass::Log, SegmentId(800), 16) };
    table.extend(808, |id| Some(home(id)));
    let wanted = |segments: u64| Wanted { pages: segments * 16, first: Some(AllocClass::Log) };
    assert_eq!(prepare_all(&mut table, wanted(6)), 6);
    assert_eq!((table.ready_pages(Some(AllocClass::Log)), table.ready_pages(None)), (6 * 16, 6 * 16));
    // without an order among the classes the log has no segment of as many
    assert_eq!(prepare_all(&mut table, of_all(6 * 16)), 6);
    assert_eq!(table.ready_pages(Some(AllocClass::Data)), 6 * 16);
    assert_eq!(prepare_all(&mut table, wanted(20)), 2 + 6, "the log whole, and of the data what is left");
    while let [id, ..] = table.last_ready(16, wanted(8))[..] {
        assert!(id.0 < 800, "{id} of the log is given back");
        table.set_state(id, SegmentState::Discarding);
        table.set_state(id, SegmentState::Free);
    }
    assert_eq!((table.ready_pages(Some(AllocClass::Log)), table.ready_pages(None)), (8 * 16, 8 * 16));
}

/// A segment as the twin knows it.
#[derive(Clone, Debug)]
struct Plain {
    state: SegmentState,
    backed: bool,
    kept: bool,
    leaving: bool,
    emptying: bool,
    unclean: bool,
    pins: u32,
    uses: u32,
    emptied: Lsn,
    /// Class, first segment of the group, and pages; `None` for an id without a segment.
    home: Option<(AllocClass, SegmentId, u32)>,
}

impl Plain {
    /// Order of free segments of a group: first those with space that is kept anyway, then others
    /// with space, then holes.
    fn rank(&self) -> u32 {
        match (self.backed, self.kept) {
            (true, true) => 0,
            (true, false) => 1,
            (false, _) => 2,
        }
    }

    fn is(&self, state: SegmentState) -> bool {
        self.home.is_some() && self.state == state
    }

    fn generation(&self) -> Option<u64> {
        match self.state {
            SegmentState::Retained(generation) if self.home.is_some() => Some(generation),
            _ => None,
        }
    }

    fn is_there(&self) -> bool {
        self.home.is_some() && self.state != SegmentState::Absent
    }

    fn is_empty(&self) -> bool {
        [SegmentState::Free, SegmentState::Discarding, SegmentState::Preparing].iter().any(|state| self.is(*state))
            || self.generation().is_some()
    }

    fn pages(&self) -> u64 {
        self.home.map_or(0, |(_, _, pages)| u64::from(pages))
    }
}

/// Segments of three classes in five groups, with a gap in the middle.
fn home(id: SegmentId) -> Option<(AllocClass, SegmentId, u32)> {
    match id.0 {
        0..9 => Some((AllocClass::Data, SegmentId(0), 16)),
        9..12 => None,
        12..15 => Some((AllocClass::Log, SegmentId(12), 4)),
        15..34 => Some((AllocClass::Data, SegmentId(15), 32)),
        34..35 => Some((AllocClass::Data, SegmentId(34), 8)),
        _ => Some((AllocClass::Nodes, SegmentId(35), 16)),
    }
}

/// All segment ids, the last of which are added later.
const ALL: u32 = 41;

/// A table, and a list of segments from which each answer is computed anew.
struct Twin {
    table: SegmentTable,
    plain: Vec<Plain>,
    /// Allocations that each group still has to provide.
    credit: BTreeMap<SegmentId, i64>,
    spared: BTreeSet<SegmentId>,
    /// Segments that became empty since the log was last stamped.
    emptied: BTreeSet<SegmentId>,
    random: Random,
}

impl Twin {
    fn extend(&mut self, count: u32) {
        self.table.extend(count, home);
        for id in (self.plain.len() as u32..count).map(SegmentId) {
            let state = if home(id).is_some() { SegmentState::Free } else { SegmentState::Absent };
            let uses = u32::from(home(id).is_some());
            self.plain.push(Plain {
                state,
                backed: false,
                kept: false,
                leaving: false,
                emptying: false,
                unclean: true,
                pins: 0,
                uses,
                emptied: NOT_LOGGED,
                home: home(id),
            });
        }
    }

    fn any(&mut self) -> SegmentId {
        SegmentId(self.random.small(self.plain.len() as u32))
    }

    fn at(&mut self, id: SegmentId) -> &mut Plain {
        &mut self.plain[id.0 as usize]
    }

    /// Changes the state of the plain segment.
    fn enter(&mut self, id: SegmentId, state: SegmentState) {
        let plain = self.at(id);
        let gone = plain.home.is_none() && !matches!(state, SegmentState::Reserved | SegmentState::Open | SegmentState::Sealed);
        let state = match state {
            SegmentState::Free if plain.leaving => SegmentState::Absent,
            SegmentState::Free if plain.emptying => SegmentState::Discarding,
            _ if gone => SegmentState::Absent,
            _ => state,
        };
        plain.state = state;
        if plain.home.is_none() {
            return;
        }
        match state {
            SegmentState::Free => plain.uses += 1,
            SegmentState::Retained(_) => (plain.backed, plain.emptied) = (true, NOT_LOGGED),
            SegmentState::Discarding => plain.backed = false,
            SegmentState::Open | SegmentState::Sealed => plain.backed = true,
            SegmentState::Reserved | SegmentState::Preparing | SegmentState::Absent => {}
        }
        if matches!(state, SegmentState::Retained(_)) {
            self.emptied.insert(id);
        }
    }

    fn set(&mut self, id: SegmentId, state: SegmentState) {
        self.table.set_state(id, state);
        self.enter(id, state);
    }

    /// Ids of the segments for which `pick` is true.
    fn ids(&self, pick: impl Fn(&Plain) -> bool) -> Vec<SegmentId> {
        (0u32..).zip(&self.plain).filter(|(_, plain)| pick(plain)).map(|(id, _)| SegmentId(id)).collect()
    }

    fn pages_of(&self, pick: impl Fn(&Plain) -> bool) -> u64 {
        self.plain.iter().filter(|plain| pick(plain)).map(Plain::pages).sum()
    }

    /// Groups of a class, or of all.
    fn groups(&self, alloc_class: Option<AllocClass>) -> BTreeSet<SegmentId> {
        let targets = self.plain.iter().filter_map(|plain| plain.home);
        targets.filter(|(of, _, _)| alloc_class.is_none_or(|alloc_class| alloc_class == *of)).map(|(_, group, _)| group).collect()
    }

    /// Free segments of a group in the order of allocation.
    fn free_of(&self, group: SegmentId) -> Vec<SegmentId> {
        let mut free = self.ids(|plain| plain.is(SegmentState::Free) && plain.home.is_some_and(|home| home.1 == group));
        free.sort_by_key(|id| (self.plain[id.0 as usize].rank(), *id));
        free
    }

    fn reserve(&mut self, alloc_class: AllocClass, moved: bool) -> Option<SegmentId> {
        let mut groups: Vec<SegmentId> =
            self.groups(Some(alloc_class)).into_iter().filter(|group| !self.free_of(*group).is_empty()).collect();
        if moved && groups.iter().any(|group| !self.spared.contains(group)) {
            groups.retain(|group| !self.spared.contains(group));
        }
        let mut all = 0;
        for group in &groups {
            let free = self.free_of(*group).len() as i64;
            *self.credit.entry(*group).or_default() += free;
            all += free;
        }
        let most = groups.iter().map(|group| self.credit[group]).max()?;
        let group = *groups.iter().find(|group| self.credit[*group] == most)?;
        *self.credit.entry(group).or_default() -= all;
        self.free_of(group).first().copied()
    }

    /// Returns whether a group belongs to the class that comes first.
    fn comes_first(&self, group: SegmentId, wanted: Wanted) -> bool {
        self.plain[group.0 as usize].home.is_some_and(|home| Some(home.0) == wanted.first)
    }

    /// Share of a group in the wanted pages, in proportion to its free pages.
    fn share(&self, group: SegmentId, wanted: Wanted) -> u64 {
        let free = |group: SegmentId| self.free_of(group).iter().map(|id| self.plain[id.0 as usize].pages()).sum::<u64>();
        let of_first = self.pages_of(|plain| plain.is(SegmentState::Free) && plain.home.is_some_and(|home| Some(home.0) == wanted.first));
        let others = self.pages_of(|plain| plain.is(SegmentState::Free)) - of_first;
        let taken = wanted.pages.min(of_first);
        let (pages, all) = if self.comes_first(group, wanted) { (taken, of_first) } else { (wanted.pages - taken, others) };
        (pages * free(group)).checked_div(all).unwrap_or(0)
    }

    fn next_hole(&self, wanted: Wanted, fills: bool) -> Option<SegmentId> {
        let mut best: Option<((bool, u64), SegmentId)> = None;
        for group in self.groups(None) {
            let free = self.free_of(group);
            let (ready, holes): (Vec<SegmentId>, Vec<SegmentId>) = free.iter().partition(|id| self.plain[id.0 as usize].backed);
            let ready: u64 = ready.iter().map(|id| self.plain[id.0 as usize].pages()).sum();
            let share = self.share(group, wanted);
            let Some(hole) = holes.first().filter(|_| ready < if fills { share } else { share / 2 }) else { continue };
            let part = (!self.comes_first(group, wanted), ready * 1024 / share.max(1));
            if best.is_none_or(|(least, _)| part < least) {
                best = Some((part, *hole));
            }
        }
        best.map(|(_, hole)| hole)
    }

    fn last_ready(&self, pages: u64, wanted: Wanted) -> Vec<SegmentId> {
        let mut best: Option<(u64, Vec<SegmentId>, u64)> = None;
        for group in self.groups(None) {
            let free = self.free_of(group);
            let Some(each) = free.first().map(|id| self.plain[id.0 as usize].pages()) else { continue };
            let ready = free.iter().filter(|id| self.plain[id.0 as usize].backed).count() as u64;
            let surplus: Vec<SegmentId> = free.iter().copied().filter(|id| self.plain[id.0 as usize].rank() == 1).collect();
            let spare = (surplus.len() as u64).min(ready.saturating_sub(self.share(group, wanted).div_ceil(each)));
            if spare > 0 && best.as_ref().is_none_or(|(most, ..)| spare * each >= *most) {
                best = Some((spare * each, surplus, (pages / each).clamp(1, spare)));
            }
        }
        let Some((_, surplus, count)) = best else { return Vec::new() };
        let highest = *surplus.last().expect("a surplus is not empty");
        let mut found = Vec::new();
        while (found.len() as u64) < count
            && found.len() as u32 <= highest.0
            && surplus.contains(&SegmentId(highest.0 - found.len() as u32))
        {
            found.push(SegmentId(highest.0 - found.len() as u32));
        }
        found
    }

    fn step(&mut self, now: u64) {
        let id = self.any();
        match self.random.below(16) {
            0 => self.set(id, SegmentState::Free),
            1 => self.set(id, SegmentState::Open),
            2 => self.set(id, SegmentState::Sealed),
            3 | 4 => {
                let generation = now / 100 + self.random.below(3);
                self.set(id, SegmentState::Retained(generation));
            }
            5 => {
                let state = self.random.pick([SegmentState::Discarding, SegmentState::Preparing, SegmentState::Absent].into_iter());
                self.set(id, state.expect("one of three"));
            }
            6 | 7 => {
                let (alloc_class, moved) = (self.random.pick(AllocClass::ALL.into_iter()).expect("one of four"), self.random.once_in(2));
                let twin = self.reserve(alloc_class, moved);
                assert_eq!(self.table.reserve(alloc_class, moved), twin, "{alloc_class:?}, moved: {moved}");
                twin.into_iter().for_each(|id| self.enter(id, SegmentState::Reserved));
            }
            8 | 9 => {
                let (backed, kept) = (self.random.once_in(2), self.random.once_in(3));
                self.table.set_backed(id, backed, kept);
                (self.at(id).backed, self.at(id).kept) = (backed, kept);
            }
            10 => {
                let backed = self.random.once_in(2);
                self.table.prepared(id, backed);
                if self.at(id).state == SegmentState::Preparing {
                    self.at(id).backed |= backed;
                    self.enter(id, SegmentState::Free);
                }
            }
            11 => self.wipe(id),
            12 => {
                let leaving = !self.at(id).leaving;
                self.at(id).leaving = leaving;
                self.table.get_mut(id).expect("it is one of the table").leaving = leaving;
                match self.at(id).state {
                    SegmentState::Free => self.set(id, SegmentState::Absent),
                    SegmentState::Absent => self.set(id, SegmentState::Free),
                    _ => {}
                }
            }
            13 => {
                let groups = self.groups(None);
                self.spared = groups.into_iter().filter(|_| self.random.once_in(3)).collect();
                self.table.spare_groups(&self.spared.iter().copied().collect::<Vec<_>>());
            }
            14 => {
                self.table.stamp_emptied(Lsn(now));
                for id in std::mem::take(&mut self.emptied) {
                    self.at(id).emptied = Lsn(now);
                }
            }
            _ => {
                let pins = self.random.small(2);
                self.at(id).pins = pins;
                self.table.get_mut(id).expect("it is one of the table").pins = pins;
            }
        }
    }

    /// Begins a wipe of a segment, cancels it, or ends it.
    fn wipe(&mut self, id: SegmentId) {
        if self.at(id).home.is_none() {
            return;
        }
        match self.random.below(3) {
            0 => {
                self.table.empty_out(id);
                self.at(id).emptying = true;
                if self.at(id).state == SegmentState::Free {
                    self.enter(id, SegmentState::Discarding);
                }
            }
            1 => {
                self.table.keep(id);
                self.at(id).emptying = false;
                if self.at(id).state == SegmentState::Discarding {
                    self.at(id).backed = true;
                    self.enter(id, SegmentState::Free);
                }
            }
            _ if self.at(id).state == SegmentState::Discarding => {
                let backed = self.random.once_in(2);
                self.table.cleaned(id, backed);
                (self.at(id).emptying, self.at(id).unclean, self.at(id).backed) = (false, false, backed);
                self.enter(id, SegmentState::Free);
            }
            _ => {}
        }
    }

    /// Compares the counts that the table keeps.
    fn compare_counts(&self) {
        let table = &self.table;
        for alloc_class in AllocClass::ALL {
            let in_alloc_class = |plain: &Plain| plain.home.is_some_and(|home| home.0 == alloc_class);
            assert_eq!(table.free_in(alloc_class), self.ids(|plain| in_alloc_class(plain) && plain.is(SegmentState::Free)).len());
            assert_eq!(table.count_in(alloc_class), self.ids(|plain| in_alloc_class(plain) && plain.is_there()).len());
            assert_eq!(table.pages_in(alloc_class), self.pages_of(|plain| in_alloc_class(plain) && plain.is_there()));
            assert_eq!(table.retained_in(alloc_class), self.ids(|plain| in_alloc_class(plain) && plain.generation().is_some()).len());
            let fills = self.groups(Some(alloc_class)).into_iter().filter_map(|first| {
                let there = self.ids(|plain| plain.is_there() && plain.home.is_some_and(|home| home.1 == first));
                let used = there.iter().filter(|id| !self.plain[id.0 as usize].is_empty()).count();
                let (_, _, pages) = home(*there.first()?)?;
                Some(Fill { first, used, there: there.len(), pages })
            });
            assert!(table.fills(alloc_class).eq(fills), "{alloc_class:?}");
        }
        let free = |rank: u32| self.pages_of(|plain| plain.is(SegmentState::Free) && plain.rank() == rank);
        let retained = self.pages_of(|plain| plain.generation().is_some());
        assert_eq!(table.pages(), Pages { kept: free(0), ready: free(1), holes: free(2), retained });
        assert_eq!(table.all_pages(), self.pages_of(Plain::is_there));
        assert_eq!(table.used_pages(), self.pages_of(|plain| plain.is_there() && !plain.is_empty()));
        assert_eq!(table.discarding(), self.ids(|plain| plain.is(SegmentState::Discarding)).len());
        assert_eq!(table.preparing(), self.ids(|plain| plain.is(SegmentState::Preparing)).len());
    }

    fn compare(&mut self) {
        assert_eq!(self.table.ids().len(), self.plain.len());
        for (id, plain) in (0u32..).map(SegmentId).zip(&self.plain) {
            let segment = self.table.get(id).expect("it is one of the table");
            assert_eq!((segment.state, segment.uses, segment.emptied), (plain.state, plain.uses, plain.emptied), "{id}");
            assert_eq!((segment.backed, segment.kept, segment.unclean), (plain.backed, plain.kept, plain.unclean), "{id}");
            assert_eq!(segment.is_unclean(), plain.unclean && plain.is_there(), "{id}");
            assert_eq!(segment.is_given_up(), plain.leaving || plain.emptying, "{id}");
            assert_eq!(self.table.group_of(id), plain.home.map(|home| home.1), "{id}");
        }
        self.compare_counts();
        let mut retained: Vec<(u64, SegmentId)> =
            self.ids(|_| true).into_iter().filter_map(|id| Some((self.at(id).generation()?, id))).collect();
        retained.sort_unstable();
        assert_eq!(self.table.retained_count(), retained.len());
        assert!(self.table.retained().eq(retained.iter().map(|(generation, id)| (*id, *generation))));
        assert_eq!(self.table.retained_since(), retained.last().map(|(generation, _)| *generation));
        let (durable, keep) = (self.random.below(40), self.random.below(4));
        let ripe = retained.iter().find(|(generation, id)| generation + keep < durable && self.plain[id.0 as usize].pins == 0);
        assert_eq!(self.table.retention_over(durable, keep), ripe.map(|(generation, id)| (*id, *generation)));
        let (pages, fills) = (self.random.below(100), self.random.once_in(2));
        let first = self.random.once_in(2).then(|| self.random.pick(AllocClass::ALL.into_iter())).flatten();
        let wanted = Wanted { pages: self.random.below(900), first };
        assert_eq!(self.table.next_hole(wanted, fills), self.next_hole(wanted, fills), "{wanted:?}, {fills}");
        assert_eq!(self.table.last_ready(pages, wanted), self.last_ready(pages, wanted), "{pages} of {wanted:?}");
        let in_first = |plain: &Plain| plain.home.is_some_and(|home| first.is_none_or(|first| home.0 == first));
        let ready = self.pages_of(|plain| plain.is(SegmentState::Free) && plain.backed && in_first(plain));
        assert_eq!(self.table.ready_pages(first), ready, "{first:?}");
        let hole = |plain: &Plain| plain.is(SegmentState::Free) && !plain.backed && in_first(plain);
        assert_eq!(self.table.has_holes(first), self.plain.iter().any(hole), "{first:?}");
    }
}

/// Compares a table with a list of segments that has neither counts nor indexes.
#[test]
fn a_table_is_a_list_of_segments() {
    for seed in 0..4 {
        let (credit, spared, emptied) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        let mut twin = Twin { table: SegmentTable::new(), plain: Vec::new(), credit, spared, emptied, random: Random::new(seed) };
        twin.extend(20);
        for now in 0..1000 {
            if now == 300 {
                // in the middle of a group
                twin.extend(37);
            }
            if now == 500 {
                twin.extend(ALL);
                twin.table.trust_all();
                twin.plain.iter_mut().for_each(|plain| plain.unclean = false);
            }
            twin.step(now);
            twin.compare();
        }
    }
}
