//! Plans of removals: the segments that a pool gives up, and those that are made of remaining
//! extents.

use std::collections::{BTreeMap, BTreeSet};

use millpond_block::MemberId;
use millpond_format::{Class, Column, Group, Layout, MAX_PARITY_WIDTH, Member, MemberState, SegmentId, Shape};

use super::STEP_PART;

/// Most groups that a removal may leave: a label has room for few.
const MOST_GROUPS: usize = 24;
/// Runs of segments of a group that are left untouched; where there are more, all of them are given
/// up.
const MOST_KEPT: usize = 2;
/// Least gain (1/N of all segments) that justifies making segments of unused extents.
const LEAST_PART: u64 = 256;
/// Number of candidate sizes of a step.
const LENGTHS: usize = 64;

/// A removal: the segments that go with a member, and the shape afterwards.
#[derive(Debug)]
pub(crate) struct Removal {
    /// The member, and those that cannot be used without it.
    pub(crate) members: BTreeSet<MemberId>,
    pub(crate) segments: BTreeSet<SegmentId>,
    pub(crate) shape: Shape,
}

impl Removal {
    /// Plans to remove a member. `None` when nothing usable would be left, or a label has no room
    /// for the shape.
    pub(crate) fn plan(shape: &Shape, member: MemberId) -> Option<Removal> {
        let mut members = BTreeSet::from([member]);
        let mut segments = BTreeSet::new();
        let mut groups = Vec::new();
        let mut rest = Vec::new();
        for group in &shape.groups {
            if !group.columns.iter().any(|column| column.member == member) {
                groups.push(group.clone());
                continue;
            }
            let rows = rows_of(group);
            let stays = |parts: &[(MemberId, u32)]| parts.iter().all(|(at, _)| *at != member);
            let mut kept = runs(group, rows.iter().filter(|(_, parts)| stays(parts)));
            if kept.len() > MOST_KEPT || kept.len() + groups.len() > MOST_GROUPS / 2 {
                kept.clear();
            }
            let kept_ids: BTreeSet<u32> = kept.iter().flat_map(|g| g.first.0..g.first.0 + g.rows() as u32).collect();
            let mut freed: BTreeMap<MemberId, Vec<u32>> = BTreeMap::new();
            for (id, parts) in rows.iter().filter(|(id, _)| !kept_ids.contains(&id.0)) {
                segments.insert(*id);
                parts.iter().filter(|(at, _)| *at != member).for_each(|(at, extent)| freed.entry(*at).or_default().push(*extent));
            }
            groups.extend(kept);
            let columns: Vec<Column> = freed.into_iter().filter_map(|(at, extents)| longest(at, extents)).collect();
            match layout_over(group.layout, columns.len()) {
                Some(layout) => rest.push((group.class, layout, columns)),
                None => members.extend(columns.iter().map(|column| column.member)),
            }
        }
        let mut after = Shape { groups, ..shape.clone() };
        after.groups.sort_by_key(|group| group.first);
        rest.into_iter().for_each(|(class, layout, columns)| after.add(class, layout, columns));
        // members that serve in another group stay
        members.retain(|at| *at == member || !after.groups.iter().any(|group| group.columns.iter().any(|c| c.member == *at)));
        for (at, known) in after.numbered_mut() {
            if members.contains(&at) {
                known.state = MemberState::Gone;
            }
        }
        (has_targets(&after) && after.fits()).then_some(Removal { members, segments, shape: after })
    }

    /// Plans a step of a removal that cannot be done at once: gives up the first segments of the
    /// member's groups, as many as `can_go` allows. Their remaining extents become segments without
    /// the member, which make room for the next step. `None` when that leads nowhere.
    pub(super) fn plan_step(shape: &Shape, member: MemberId, can_go: impl Fn(&BTreeSet<SegmentId>) -> bool) -> Option<Removal> {
        let mut segments = BTreeSet::new();
        let (mut groups, mut rest) = (Vec::new(), Vec::new());
        for group in &shape.groups {
            let may = |rows: &[Row]| can_go(&rows.iter().map(|(id, _)| *id).chain(segments.iter().copied()).collect());
            let Some((kept, rows)) = cut(group, member, may) else {
                groups.push(group.clone());
                continue;
            };
            groups.extend(Some(kept).filter(|group| !group.columns.is_empty()));
            segments.extend(rows.iter().map(|(id, _)| *id));
            let mut freed: BTreeMap<MemberId, Vec<u32>> = BTreeMap::new();
            let parts = rows.iter().flat_map(|(_, parts)| parts).filter(|(at, _)| *at != member);
            parts.for_each(|(at, extent)| freed.entry(*at).or_default().push(*extent));
            let columns: Vec<Column> = freed.into_iter().filter_map(|(at, extents)| longest(at, extents)).collect();
            if let Some(layout) = layout_over(group.layout, columns.len()) {
                add_rest(&mut rest, group.class, layout, columns);
            }
        }
        let mut after = Shape { groups, ..shape.clone() };
        rest.into_iter().for_each(|(class, layout, columns)| after.add(class, layout, columns));
        let fits = after.groups.len() <= MOST_GROUPS && after.fits();
        (fits && !segments.is_empty()).then_some(Removal { members: BTreeSet::new(), segments, shape: after })
    }

    /// Plans to give up segments for nodes whose special devices are lost: only one copy of them is
    /// left, on a data device, while moved chunks have as many copies as data. Their extents become
    /// data segments, or those of the log beside a bucket. `None` when there are no such segments.
    pub(crate) fn plan_left_behind(shape: &Shape) -> Option<Removal> {
        let members = |class: Class| shape.groups.iter().filter(move |g| g.class == class).flat_map(|g| g.columns.iter().map(|c| c.member));
        let local = shape.local_class();
        let data: BTreeSet<MemberId> = members(local).collect();
        let left_behind =
            |group: &&Group| group.class == Class::Special && group.columns.iter().all(|column| data.contains(&column.member));
        let (mut segments, mut freed) = (BTreeSet::new(), BTreeMap::<MemberId, Vec<u32>>::new());
        for group in shape.groups.iter().filter(left_behind) {
            let mut id = group.first.0;
            group.for_each_row(|parts| {
                segments.insert(SegmentId(id));
                parts.iter().for_each(|(member, extent)| freed.entry(*member).or_default().push(*extent));
                id += 1;
            });
        }
        if segments.is_empty() {
            return None;
        }
        let groups: Vec<Group> = shape.groups.iter().filter(|group| !left_behind(group)).cloned().collect();
        let mut after = Shape { groups, ..shape.clone() };
        for group in shape.groups.iter().filter(|group| group.class == local) {
            let own = group.columns.iter().filter_map(|column| Some((column.member, freed.remove(&column.member)?)));
            let columns: Vec<Column> = own.filter_map(|(member, extents)| longest(member, extents)).collect();
            if let Some(layout) = layout_over(group.layout, columns.len()) {
                after.add(local, layout, columns);
            }
        }
        after.fits().then_some(Removal { members: BTreeSet::new(), segments, shape: after })
    }

    /// Plans to use extents again that a stopped removal took out of segments. They become segments
    /// of their own where the layout allows it. Otherwise segments over the other members, which
    /// the steps made, are widened with them: the first ones, as many as `can_go` allows. `None`
    /// when nothing is gained, or too few segments may go now.
    pub(crate) fn plan_rejoin(shape: &Shape, can_go: impl Fn(&BTreeSet<SegmentId>) -> bool) -> Option<Removal> {
        let unused = unused_extents(shape);
        let classes = if unused.is_empty() { &[][..] } else { &[Class::Data, Class::Log] };
        classes.iter().find_map(|class| {
            let unused = serving(shape, *class, &unused);
            rejoin_alone(shape, *class, &unused).or_else(|| rejoin_rows(shape, *class, &unused, &can_go))
        })
    }
}

/// Returns the extents that are in no group, of members that hold segments, as runs by member.
pub(crate) fn unused_extents(shape: &Shape) -> BTreeMap<MemberId, Vec<Column>> {
    let serves = |(at, known): &(MemberId, &Member)| known.state == MemberState::Present && !shape.is_auxiliary(*at);
    let of_member = |(member, known): (MemberId, &Member)| {
        let own = shape.groups.iter().flat_map(|group| &group.columns).filter(|column| column.member == member);
        let mut used: Vec<(u32, u32)> = own.map(|column| (column.first, column.first + column.extents)).collect();
        used.sort_unstable();
        used.push((known.extents, known.extents));
        let begins = [0].into_iter().chain(used.iter().map(|(_, end)| *end));
        let gaps = begins.zip(used.iter().map(|(first, _)| *first)).filter(|(first, end)| first < end);
        let runs: Vec<Column> = gaps.map(|(first, end)| Column { member, first, extents: end - first }).collect();
        (member, runs)
    };
    shape.numbered().filter(serves).map(of_member).filter(|(_, runs)| !runs.is_empty()).collect()
}

/// Returns the unused extents of members that serve a class: in one of its groups, or in no group
/// if the pool has no other class. So extents of a device for the log or for small blocks never
/// hold data, nor the other way round; but the log of a pool with parity is on its data devices.
fn serving(shape: &Shape, class: Class, unused: &BTreeMap<MemberId, Vec<Column>>) -> BTreeMap<MemberId, Vec<Column>> {
    let classes = |member: MemberId| {
        let own = shape.groups.iter().filter(move |group| group.columns.iter().any(|column| column.member == member));
        own.map(|group| group.class).collect::<Vec<_>>()
    };
    let all = || shape.ids().map(classes);
    let shared = all().any(|own| own.contains(&Class::Log) && own.contains(&Class::Data));
    let fits = |own: &Class| *own == class || (shared && matches!((own, class), (Class::Log, Class::Data) | (Class::Data, Class::Log)));
    let on_devices = |group: &&Group| !group.class.is_auxiliary() && !group.layout.is_bucket();
    let alone = shape.groups.iter().filter(on_devices).all(|group| fits(&group.class));
    let serves = |member: MemberId| {
        let own = classes(member);
        if own.is_empty() { alone } else { own.iter().any(fits) }
    };
    unused.iter().filter(|(member, _)| serves(**member)).map(|(member, runs)| (*member, runs.clone())).collect()
}

/// Returns the shape with one more group. `None` when a label has no room for it.
fn with_group(shape: &Shape, groups: Vec<Group>, class: Class, layout: Layout, columns: Vec<Column>) -> Option<Shape> {
    let mut after = Shape { groups, ..shape.clone() };
    after.add(class, layout, columns);
    (after.groups.len() <= MOST_GROUPS && after.fits()).then_some(after)
}

/// Returns whether `rows` more segments justify a group, of which a label has few.
fn is_worth(shape: &Shape, rows: u64) -> bool {
    rows > 0 && rows * LEAST_PART >= shape.groups.iter().map(Group::rows).sum()
}

/// Returns the capacity of segments with these widths, in extents.
fn held(layout: Layout, rows: impl Iterator<Item = usize>) -> usize {
    let of_row = |parts: usize| match layout {
        Layout::Linear | Layout::Mirror { .. } | Layout::Bucket { .. } => 1,
        Layout::Stripe { .. } => parts,
        Layout::Parity { parity, .. } => parts - usize::from(parity),
    };
    rows.map(of_row).sum()
}

/// Returns the layouts that segments over `columns` members with unused extents may have. With
/// parity they must not be narrower than existing ones.
fn layouts_alone(shape: &Shape, class: Class, columns: usize) -> impl Iterator<Item = Layout> {
    let is_wide = move |group: &&Group| match group.layout {
        Layout::Linear | Layout::Bucket { .. } => false,
        Layout::Stripe { .. } | Layout::Mirror { .. } => true,
        Layout::Parity { width, .. } => columns >= usize::from(width),
    };
    let models = shape.groups.iter().filter(move |group| group.class == class).filter(is_wide);
    models.filter_map(move |model| layout_over(model.layout, columns))
}

/// Plans to make segments of unused extents alone.
fn rejoin_alone(shape: &Shape, class: Class, unused: &BTreeMap<MemberId, Vec<Column>>) -> Option<Removal> {
    let columns: Vec<Column> = unused.values().filter_map(|runs| runs.iter().max_by_key(|run| run.extents).copied()).collect();
    layouts_alone(shape, class, columns.len()).find_map(|layout| {
        let group = Group { class, layout, first: shape.next, columns: columns.clone() };
        let after = with_group(shape, shape.groups.clone(), class, layout, columns.clone()).filter(|_| is_worth(shape, group.rows()))?;
        Some(Removal { members: BTreeSet::new(), segments: BTreeSet::new(), shape: after })
    })
}

/// Returns the members that have unused extents, those with most of them first.
fn joining(unused: &BTreeMap<MemberId, Vec<Column>>) -> impl Iterator<Item = MemberId> {
    let mut joining: Vec<(u32, MemberId)> =
        unused.iter().map(|(member, runs)| (runs.iter().map(|run| run.extents).sum(), *member)).collect();
    joining.sort_unstable();
    joining.into_iter().rev().map(|(_, member)| member)
}

/// Returns groups without a member whose segments can be widened with its extents; those with the
/// same layout over the same members together.
fn partners(shape: &Shape, class: Class, member: MemberId) -> Vec<Vec<&Group>> {
    let members = |group: &Group| group.columns.iter().map(|column| column.member).collect::<BTreeSet<MemberId>>();
    let without = |group: &&Group| {
        let width = match group.layout {
            Layout::Mirror { copies } => copies,
            Layout::Parity { width, .. } => width,
            Layout::Linear | Layout::Stripe { .. } | Layout::Bucket { .. } => return false,
        };
        let filled = group.columns.iter().filter(|column| column.extents > 0).count();
        group.class == class && filled >= usize::from(width) && group.columns.iter().all(|column| column.member != member)
    };
    let mut kinds: Vec<Vec<&Group>> = Vec::new();
    for group in shape.groups.iter().filter(without) {
        let same = |kind: &&mut Vec<&Group>| kind.iter().take(1).all(|f| f.layout == group.layout && members(f) == members(group));
        match kinds.iter_mut().find(same) {
            Some(kind) => kind.push(group),
            None => kinds.push(vec![group]),
        }
    }
    kinds
}

/// Returns the number of segments of a group of mirrors or with parity. Each segment takes its
/// extents from the columns with most left, so there are as many as the columns could ever give.
pub(crate) fn count_rows(group: &Group) -> u32 {
    let width = match group.layout {
        Layout::Mirror { copies } => copies,
        Layout::Parity { width, .. } => width,
        Layout::Linear | Layout::Stripe { .. } | Layout::Bucket { .. } => return 0,
    };
    let extents = |most: u32| group.columns.iter().map(|column| u64::from(column.extents.min(most))).sum::<u64>();
    let all: u64 = group.columns.iter().map(|column| u64::from(column.extents)).sum();
    let most = all.checked_div(u64::from(width)).unwrap_or(0).saturating_add(1);
    let (mut rows, mut too_many) = (0, u32::try_from(most).unwrap_or(u32::MAX));
    while rows + 1 < too_many {
        let some = u32::midpoint(rows, too_many);
        if extents(some) >= u64::from(some) * u64::from(width) { rows = some } else { too_many = some }
    }
    rows
}

/// Returns whether unused extents can become segments of their own, and which groups have segments
/// that can be widened with them.
pub(crate) fn joinable(shape: &Shape) -> (bool, Vec<Vec<&Group>>) {
    let unused = unused_extents(shape);
    let (mut alone, mut kinds) = (false, Vec::<Vec<&Group>>::new());
    for class in [Class::Data, Class::Log] {
        let unused = serving(shape, class, &unused);
        alone |= layouts_alone(shape, class, unused.len()).next().is_some();
        for kind in joining(&unused).flat_map(|member| partners(shape, class, member)) {
            let first = |groups: &Vec<&Group>| groups.first().map(|group| group.first);
            if kinds.iter().all(|known| first(known) != first(&kind)) {
                kinds.push(kind);
            }
        }
    }
    (alone, kinds)
}

/// Plans to widen segments of groups without a member that has unused extents; members with most of
/// them are tried first.
fn rejoin_rows(
    shape: &Shape,
    class: Class,
    unused: &BTreeMap<MemberId, Vec<Column>>,
    can_go: &impl Fn(&BTreeSet<SegmentId>) -> bool,
) -> Option<Removal> {
    joining(unused).find_map(|member| {
        let kinds = partners(shape, class, member);
        kinds.into_iter().find_map(|partners| {
            let kind = *partners.first()?;
            let columns = || partners.iter().flat_map(|group| &group.columns);
            let range = columns().map(|column| column.first).min()?..columns().map(|column| column.first + column.extents).max()?;
            let joined: Vec<Column> = unused.values().filter_map(|runs| run_beside(runs, &range)).collect();
            let joined: Vec<Column> = joined.into_iter().filter(|run| columns().all(|column| column.member != run.member)).collect();
            let most = joined.iter().map(|run| run.extents).max()?;
            widen(shape, kind, &partners, &joined, most, can_go)
        })
    })
}

/// Returns the run that overlaps most with a range of extents, else the longest one.
fn run_beside(runs: &[Column], range: &std::ops::Range<u32>) -> Option<Column> {
    let common = |run: &Column| (run.first + run.extents).min(range.end).saturating_sub(run.first.max(range.start));
    runs.iter().max_by_key(|run| (common(run), run.extents)).copied()
}

/// Plans segments over the members of `partners` and the `joined` columns: they replace the first
/// segments of `partners`, and take up to `most` extents of each joined column.
fn widen(
    shape: &Shape,
    kind: &Group,
    partners: &[&Group],
    joined: &[Column],
    most: u32,
    can_go: &impl Fn(&BTreeSet<SegmentId>) -> bool,
) -> Option<Removal> {
    let all: usize = partners.iter().map(|group| group.rows() as usize).sum();
    let (mut kept, mut rows) = (Vec::new(), Vec::<Row>::new());
    let mut freed: BTreeMap<MemberId, Vec<u32>> = BTreeMap::new();
    for group in partners {
        let may = |more: &[Row]| {
            let height = tallest(rows.iter().chain(more));
            height <= most && can_go(&rows.iter().chain(more).map(|(id, _)| *id).collect())
        };
        let Some((rest, taken)) = cut_first(group, may) else { break };
        taken.iter().flat_map(|(_, parts)| parts).for_each(|(at, extent)| freed.entry(*at).or_default().push(*extent));
        rows.extend(taken);
        if rest.rows() > 0 {
            kept.push(rest);
            break;
        }
        // extents of longer columns beyond the segments are in no segment either, and lie between
        // those of groups that follow each other
        rest.columns.iter().for_each(|column| freed.entry(column.member).or_default().extend(column.first..column.first + column.extents));
    }
    if rows.is_empty() || rows.len() * STEP_PART < all {
        return None;
    }
    let taken: BTreeSet<SegmentId> = rows.iter().map(|(id, _)| *id).collect();
    let mut columns: Vec<Column> = freed.into_iter().filter_map(|(at, extents)| longest(at, extents)).collect();
    let (height, before) = (columns.iter().map(|column| column.extents).max()?, columns.len());
    let beside = columns.iter().map(|column| column.first).min()?;
    columns.extend(joined.iter().map(|run| {
        let extents = run.extents.min(height);
        Column { first: beside.clamp(run.first, run.first + run.extents - extents), extents, ..*run }
    }));
    columns.sort_by_key(|column| column.member);
    let layout = wider(shape, kind, before, columns.len());
    let touched = |group: &&Group| partners.iter().any(|partner| partner.first == group.first) && taken.contains(&group.first);
    let mut groups: Vec<Group> = shape.groups.iter().filter(|group| !touched(group)).cloned().collect();
    groups.extend(kept);
    groups.sort_by_key(|group| group.first);
    let group = Group { class: kind.class, layout, first: shape.next, columns: columns.clone() };
    let mut widths = Vec::new();
    group.for_each_row(|parts| widths.push(parts.len()));
    let before = held(kind.layout, rows.iter().map(|(_, parts)| parts.len()));
    let gains = is_worth(shape, held(layout, widths.into_iter()).saturating_sub(before) as u64);
    let after = with_group(shape, groups, kind.class, layout, columns).filter(|_| gains)?;
    Some(Removal { members: BTreeSet::new(), segments: taken, shape: after })
}

/// Returns the largest number of extents that one member has in `rows`.
fn tallest<'a>(rows: impl Iterator<Item = &'a Row>) -> u32 {
    let mut counts: BTreeMap<MemberId, u32> = BTreeMap::new();
    rows.flat_map(|(_, parts)| parts).for_each(|(at, _)| *counts.entry(*at).or_default() += 1);
    counts.into_values().max().unwrap_or(0)
}

/// Returns the layout of widened segments: as wide as other groups of its kind, or over all columns
/// if it was so before.
fn wider(shape: &Shape, kind: &Group, before: usize, columns: usize) -> Layout {
    let Layout::Parity { width, parity, unit } = kind.layout else { return kind.layout };
    let same = |group: &&Group| group.class == kind.class && matches!(group.layout, Layout::Parity { parity: own, .. } if own == parity);
    let widths = shape.groups.iter().filter(same).map(|group| if let Layout::Parity { width, .. } = group.layout { width } else { 0 });
    let over_all = if usize::from(width) >= before { columns as u16 } else { width };
    let widest = widths.max().unwrap_or(width).max(over_all).min(columns as u16).min(MAX_PARITY_WIDTH);
    Layout::Parity { width: widest, parity, unit }
}

/// A segment and its parts: members and extents.
type Row = (SegmentId, Vec<(MemberId, u32)>);

/// Returns the segments of a group.
fn rows_of(group: &Group) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut id = group.first.0;
    group.for_each_row(|parts| {
        rows.push((SegmentId(id), parts.to_vec()));
        id += 1;
    });
    rows
}

/// Cuts the first segments off a group, as many as may go when a member leaves; returns the rest of
/// the group and the segments. The rest has the same segments as before: they follow from the
/// remaining columns.
fn cut(group: &Group, member: MemberId, may: impl Fn(&[Row]) -> bool) -> Option<(Group, Vec<Row>)> {
    let others = group.columns.iter().filter(|column| column.member != member).count();
    // giving up segments of a linear group makes no new ones
    let makes_room =
        matches!(group.class, Class::Data | Class::Log) && group.layout != Layout::Linear && layout_over(group.layout, others).is_some();
    if others == group.columns.len() || !makes_room {
        return None;
    }
    cut_first(group, may)
}

/// Cuts the first segments off a group, as many as may go; returns the rest of the group and the
/// segments.
fn cut_first(group: &Group, may: impl Fn(&[Row]) -> bool) -> Option<(Group, Vec<Row>)> {
    let mut rows = rows_of(group);
    let counts: Vec<usize> = (1..=rows.len()).step_by((rows.len() / LENGTHS).max(1)).collect();
    let fitting = counts.partition_point(|count| rows.get(..*count).is_some_and(&may));
    rows.truncate(*counts.get(..fitting)?.last()?);
    let mut kept = Group { first: SegmentId(group.first.0 + rows.len() as u32), ..group.clone() };
    for column in &mut kept.columns {
        let own = |(at, extent): &&(MemberId, u32)| *at == column.member && (column.first..column.first + column.extents).contains(extent);
        let taken = rows.iter().flat_map(|(_, parts)| parts).filter(own).count() as u32;
        (column.first, column.extents) = (column.first + taken, column.extents - taken);
    }
    kept.columns.retain(|column| column.extents > 0);
    Some((kept, rows))
}

/// Adds a future group; joins it to one that it continues, because a label has room for few.
fn add_rest(rest: &mut Vec<(Class, Layout, Vec<Column>)>, class: Class, layout: Layout, columns: Vec<Column>) {
    let follows = |before: &[Column]| {
        let goes_on = |(a, b): (&Column, &Column)| a.member == b.member && a.first + a.extents == b.first;
        before.len() == columns.len() && before.iter().zip(&columns).all(goes_on)
    };
    match rest.iter_mut().find(|(c, l, before)| (*c, *l) == (class, layout) && follows(before)) {
        Some((_, _, before)) => before.iter_mut().zip(&columns).for_each(|(column, more)| column.extents += more.extents),
        None => rest.push((class, layout, columns)),
    }
}

/// Returns the same layout over `columns` columns; `None` when they are too few for it.
fn layout_over(layout: Layout, columns: usize) -> Option<Layout> {
    match layout {
        _ if columns == 0 => None,
        Layout::Stripe { width, unit } => Some(Layout::Stripe { width: width.min(columns as u16), unit }),
        // with fewer columns than copies there is no mirror
        Layout::Mirror { copies } if usize::from(copies) > columns => None,
        Layout::Parity { parity, .. } if columns <= usize::from(parity) => None,
        Layout::Parity { width, parity, unit } => Some(Layout::Parity { width: width.min(columns as u16), parity, unit }),
        same => Some(same),
    }
}

/// Returns whether every kind of data has a class to go to.
fn has_targets(shape: &Shape) -> bool {
    let needs_log = shape.groups.iter().any(|group| group.layout.is_written_whole());
    shape.has(Class::Data) && (!needs_log || shape.has(Class::Log))
}

/// Groups segments into runs that follow each other on the same members, extent by extent.
pub(crate) fn runs<'a>(group: &Group, rows: impl Iterator<Item = &'a (SegmentId, Vec<(MemberId, u32)>)>) -> Vec<Group> {
    let mut found: Vec<Group> = Vec::new();
    for (id, parts) in rows {
        let mut parts = parts.clone();
        if matches!(group.layout, Layout::Parity { .. }) {
            let turned = id.0 as usize % parts.len().max(1);
            parts.rotate_right(turned);
        }
        let goes_on = found.last().is_some_and(|run| {
            let length = run.columns.first().map_or(0, |column| column.extents);
            run.first.0 + length == id.0
                && run.columns.len() == parts.len()
                && run.columns.iter().zip(&parts).all(|(column, (at, extent))| column.member == *at && column.first + length == *extent)
        });
        match found.last_mut().filter(|_| goes_on) {
            Some(run) => run.columns.iter_mut().for_each(|column| column.extents += 1),
            None => {
                let width = parts.len() as u16;
                let layout = match group.layout {
                    Layout::Linear => Layout::Linear,
                    Layout::Stripe { unit, .. } => Layout::Stripe { width, unit },
                    Layout::Mirror { .. } => Layout::Mirror { copies: width },
                    same @ (Layout::Parity { .. } | Layout::Bucket { .. }) => same,
                };
                let columns = parts.iter().map(|(member, first)| Column { member: *member, first: *first, extents: 1 }).collect();
                found.push(Group { class: group.class, layout, first: *id, columns });
            }
        }
    }
    found
}

/// Returns the longest run among extents of a member.
fn longest(member: MemberId, mut extents: Vec<u32>) -> Option<Column> {
    extents.sort_unstable();
    let mut best: Option<Column> = None;
    let mut run: Option<Column> = None;
    for extent in extents {
        run = match run {
            Some(column) if column.first + column.extents == extent => Some(Column { extents: column.extents + 1, ..column }),
            _ => Some(Column { member, first: extent, extents: 1 }),
        };
        if run.map(|column| column.extents) > best.map(|column| column.extents) {
            best = run;
        }
    }
    best
}

#[cfg(test)]
mod tests;
