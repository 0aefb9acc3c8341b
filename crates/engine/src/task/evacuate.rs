//! Evacuation: a device leaves the pool, of whatever layout, while it is in use.
//!
//! Segments with a part on it are not handed out any more, and the cleaner moves what lives in the others; maps never change for it (I7).
//! Objects of checkpoints are written anew by the next one. When nothing needs those segments, the shape does without them: what is
//! left of the devices that shared them becomes new segments, and nothing remembers the device but its place in the table.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use millpond_block::Tag;
use millpond_format::{Class, Column, Encoder, Group, Layout, MemberState, SegmentId, Shape};

use super::reserve::Purse;
use crate::io::Health;
use crate::log::{BatchKind, OpenBatch, SMALL};
use crate::pool::Pool;
use crate::space::{Rows, Segment, SegmentState};
use crate::{CommandError, JobInfo, JobKind, PoolState, Time};

/// Groups that a removal may leave behind: a label has room for few.
const MOST_GROUPS: usize = 24;
/// Milliseconds between looks at all segments that are to be given up.
const LOOK_MILLIS: u64 = 100;

/// Which segments go with a member, and what the shape is afterwards.
#[derive(Debug)]
pub(crate) struct Removal {
    /// The member, and those that are of no use without it.
    pub(crate) members: BTreeSet<u16>,
    pub(crate) segments: BTreeSet<SegmentId>,
    pub(crate) shape: Shape,
}

/// An evacuation on its way.
#[derive(Debug)]
pub(crate) struct Evacuation {
    /// Who leaves; nobody when it is rows that special devices left behind.
    member: Option<u16>,
    removal: Removal,
    total: u64,
    /// Segments that the cleaner is to empty, as of the last look at all of them.
    todo: VecDeque<SegmentId>,
    /// Segments that were not given up at the last look, and when it was.
    left: u64,
    looked: Time,
}

impl Evacuation {
    /// Is there something for the cleaner to do?
    pub(crate) fn has_more(&self) -> bool {
        !self.todo.is_empty()
    }
}

impl Removal {
    /// Plans to do without a member. `None` when the shape could not be told in a label.
    pub(crate) fn plan(shape: &Shape, member: u16) -> Option<Removal> {
        let mut members = BTreeSet::from([member]);
        let mut segments = BTreeSet::new();
        let mut groups = Vec::new();
        let mut rest = Vec::new();
        for group in &shape.groups {
            if !group.columns.iter().any(|column| column.member == member) {
                groups.push(group.clone());
                continue;
            }
            let mut rows: Vec<(SegmentId, Vec<(u16, u32)>)> = Vec::new();
            let mut id = group.first.0;
            group.for_each_row(|parts| {
                rows.push((SegmentId(id), parts.to_vec()));
                id += 1;
            });
            let stays = |parts: &[(u16, u32)]| parts.iter().all(|(at, _)| *at != member);
            let mut kept = runs(group, rows.iter().filter(|(_, parts)| stays(parts)));
            if kept.len() + groups.len() > MOST_GROUPS / 2 {
                kept.clear();
            }
            let kept_ids: BTreeSet<u32> = kept.iter().flat_map(|g| g.first.0..g.first.0 + g.rows() as u32).collect();
            let mut freed: BTreeMap<u16, Vec<u32>> = BTreeMap::new();
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
        // who serves in another group stays
        members.retain(|at| *at == member || !after.groups.iter().any(|group| group.columns.iter().any(|c| c.member == *at)));
        for (at, known) in (0u16..).zip(&mut after.members) {
            if members.contains(&at) {
                known.state = MemberState::Gone;
            }
        }
        (has_homes(&after) && after.fits()).then_some(Removal { members, segments, shape: after })
    }

    /// Plans to do without rows for nodes whose special devices are lost: one copy is left of them, on a device for data, and what is moved
    /// from there has as many as data. Their extents become segments for data. `None` when there are no such rows.
    pub(crate) fn plan_left_behind(shape: &Shape) -> Option<Removal> {
        let members = |class: Class| shape.groups.iter().filter(move |g| g.class == class).flat_map(|g| g.columns.iter().map(|c| c.member));
        let data: BTreeSet<u16> = members(Class::Data).collect();
        let left_behind =
            |group: &&Group| group.class == Class::Special && group.columns.iter().all(|column| data.contains(&column.member));
        let (mut segments, mut freed) = (BTreeSet::new(), BTreeMap::<u16, Vec<u32>>::new());
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
        for group in shape.groups.iter().filter(|group| group.class == Class::Data) {
            let own = group.columns.iter().filter_map(|column| Some((column.member, freed.remove(&column.member)?)));
            let columns: Vec<Column> = own.filter_map(|(member, extents)| longest(member, extents)).collect();
            if let Some(layout) = layout_over(group.layout, columns.len()) {
                after.add(Class::Data, layout, columns);
            }
        }
        after.fits().then_some(Removal { members: BTreeSet::new(), segments, shape: after })
    }
}

/// The same layout over so many columns; nothing when they are too few for it.
fn layout_over(layout: Layout, columns: usize) -> Option<Layout> {
    match layout {
        _ if columns == 0 => None,
        Layout::Stripe { width, unit } => Some(Layout::Stripe { width: width.min(columns as u16), unit }),
        // fewer copies than were asked for are none
        Layout::Mirror { copies } if usize::from(copies) > columns => None,
        Layout::Parity { parity, .. } if columns <= usize::from(parity) => None,
        Layout::Parity { width, parity, unit } => Some(Layout::Parity { width: width.min(columns as u16), parity, unit }),
        same => Some(same),
    }
}

/// Is there a place for everything that is written?
fn has_homes(shape: &Shape) -> bool {
    let has = |pick: &dyn Fn(&Group) -> bool| shape.groups.iter().any(pick);
    let parity = |group: &Group| group.class == Class::Data && matches!(group.layout, Layout::Parity { .. });
    has(&|group| group.class == Class::Data) && (!has(&parity) || has(&|group| group.class == Class::Log))
}

/// Rows as groups: those that follow each other on the same members, extent by extent.
pub(crate) fn runs<'a>(group: &Group, rows: impl Iterator<Item = &'a (SegmentId, Vec<(u16, u32)>)>) -> Vec<Group> {
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
                    parity @ Layout::Parity { .. } => parity,
                };
                let columns = parts.iter().map(|(member, first)| Column { member: *member, first: *first, extents: 1 }).collect();
                found.push(Group { class: group.class, layout, first: *id, columns });
            }
        }
    }
    found
}

/// The longest run among extents of a member.
fn longest(member: u16, mut extents: Vec<u32>) -> Option<Column> {
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

impl Pool {
    /// Begins to do without a member.
    pub(crate) fn remove_member(&mut self, member: u16, dry_run: bool) -> Result<(), CommandError> {
        let known = self.config.shape.members.get(usize::from(member)).filter(|m| m.state != MemberState::Gone);
        let Some(known) = known else { return Err(CommandError::NotFound(format!("member {member}"))) };
        if self.config.shape.is_aside(member) {
            return self.remove_aside(member, dry_run);
        }
        if known.successor.is_some() || self.filler.jobs().next().is_some() || self.evacuation.is_some() || self.relabeler.busy() {
            return Err(CommandError::Busy("devices are just being changed; try again when 'pool jobs' is empty".into()));
        }
        let Some(removal) = Removal::plan(&self.config.shape, member) else {
            return Err(CommandError::Invalid(
                "the pool needs this device: nothing would be left, or it could not be told in a label".into(),
            ));
        };
        let after = self.core.space.usable_without(&removal.segments);
        let live = self.core.space.live_units();
        if live > after {
            let missing = (live - after) * 512;
            return Err(CommandError::Invalid(format!(
                "what is on this device does not fit on the others: {} MiB more are needed; add a device or destroy something first",
                missing.div_ceil(1 << 20)
            )));
        }
        // what was begun goes on: it had room then
        if !known.leaving && self.is_short_without(&removal.segments) {
            return Err(CommandError::Invalid(
                "too little of what is free is on other devices, so there is no room to move to; add a device or destroy something first"
                    .into(),
            ));
        }
        if dry_run {
            return Ok(());
        }
        self.begin_evacuation(Some(member), removal);
        if let Some(known) = self.config.shape.members.get_mut(usize::from(member)).filter(|known| !known.leaving) {
            known.leaving = true;
            self.relabel(None);
        }
        Ok(())
    }

    fn begin_evacuation(&mut self, member: Option<u16>, removal: Removal) {
        let total = removal.segments.iter().filter(|id| self.core.space.segments.get(**id).is_some_and(|s| s.live > 0)).count() as u64;
        self.core.space.leave_segments(&removal.segments);
        self.leave_open_segments();
        self.evacuation = Some(Evacuation { member, removal, total, todo: VecDeque::new(), left: total, looked: Time(0) });
    }

    /// Gives up rows that special devices left behind: the shape says that there are some, until it does without them.
    fn give_up_left_behind(&mut self) {
        if self.filler.jobs().next().is_some() || self.relabeler.busy() || self.now.0 < self.left_behind_looked.0 + LOOK_MILLIS {
            return;
        }
        self.left_behind_looked = self.now;
        if let Some(removal) = Removal::plan_left_behind(&self.config.shape) {
            self.begin_evacuation(None, removal);
        }
    }

    /// The member that the labels say is to leave.
    fn member_leaving(&self) -> Option<u16> {
        (0u16..).zip(&self.config.shape.members).find(|(_, known)| known.leaving).map(|(at, _)| at)
    }

    /// Goes on with what an import found begun. What does not fit any more stays.
    fn go_on_removing(&mut self) {
        let Some(member) = self.member_leaving() else { return self.give_up_left_behind() };
        if self.filler.jobs().next().is_some() || self.relabeler.busy() {
            return;
        }
        if self.evacuation.is_none() && self.remove_member(member, false).is_err() {
            self.config.shape.members.iter_mut().for_each(|known| known.leaving = false);
            self.relabel(None);
        }
    }

    /// Ends an evacuation: what was moved stays where it is, and the device can be filled again.
    pub(crate) fn stop_removing(&mut self) -> Result<(), CommandError> {
        if self.member_leaving().is_none() {
            return Err(CommandError::NotFound("a removal".into()));
        }
        let evacuation = self.evacuation.take();
        if let Some(evacuation) = evacuation {
            self.core.space.stay(&evacuation.removal.segments);
        }
        self.config.shape.members.iter_mut().for_each(|known| known.leaving = false);
        self.relabel(None);
        Ok(())
    }

    /// What is done and to be done.
    pub(crate) fn evacuation_job(&self) -> Option<JobInfo> {
        if let Some(member) = self.relabeler.left.keys().next() {
            return Some(JobInfo { kind: JobKind::Remove, member: Some(*member), done: 1, total: 1, errors: 0, rate: 0 });
        }
        let Some(evacuation) = &self.evacuation else {
            // after an import, until it is its turn
            let member = self.member_leaving()?;
            return Some(JobInfo { kind: JobKind::Remove, member: Some(member), done: 0, total: 1, errors: 0, rate: 0 });
        };
        let extent = self.config.shape.extent_bytes;
        let (left, total) = (evacuation.left, evacuation.total.max(evacuation.left));
        let space = &self.core.space.segments;
        let unreadable = |id: &&SegmentId| space.get(**id).is_some_and(|s| s.left_until > self.now.0);
        let errors = evacuation.removal.segments.iter().filter(unreadable).count() as u64;
        let (done, total) = ((total - left) * extent, total * extent);
        Some(JobInfo { kind: JobKind::Remove, member: evacuation.member, done, total, errors, rate: 0 })
    }

    /// Goes on with an evacuation. True when it wants another turn soon.
    pub(crate) fn step_evacuation(&mut self) -> bool {
        if self.state != PoolState::Online {
            return false;
        }
        if self.evacuation.is_none() {
            self.go_on_removing();
            return false;
        }
        self.hop_over_leaving();
        let Some(evacuation) = &mut self.evacuation else { return false };
        if evacuation.has_more() {
            return !self.cleaner.is_reading() && self.jobs_may_go_on();
        }
        if self.now.0 < evacuation.looked.0 + LOOK_MILLIS || !self.cleaner.idle() {
            return false;
        }
        evacuation.looked = self.now;
        let (space, mut waits) = (&self.core.space.segments, false);
        evacuation.left = 0;
        for id in &evacuation.removal.segments {
            let Some(s) = space.get(*id).filter(|s| s.state != SegmentState::Absent) else { continue };
            evacuation.left += 1;
            match s.state {
                SegmentState::Sealed if s.left_until > self.now.0 => {}
                SegmentState::Sealed if s.objects == 0 && s.placed > 0 => evacuation.todo.push_back(*id),
                // only a checkpoint frees those
                SegmentState::Sealed | SegmentState::Resting(_) => waits = true,
                _ => {}
            }
        }
        if evacuation.left > 0 {
            self.checkpointer.forced |= waits && !evacuation.has_more() && !self.checkpointer.running();
            return true;
        }
        // streams of an older root may begin in what is given up
        let segments = &evacuation.removal.segments;
        let begins = self.legs.iter().any(|leg| leg.streams.iter().any(|s| segments.contains(&s.segment) || segments.contains(&s.next)));
        if begins || self.checkpointer.running() {
            self.checkpointer.forced |= begins && !self.checkpointer.running();
            return false;
        }
        self.end_evacuation();
        false
    }

    /// Streams leave segments that are to be given up, those that they have been promised too: a batch of nothing leads replay on.
    pub(super) fn hop_over_leaving(&mut self) {
        let meta = [self.checkpointer.nodes_at, self.checkpointer.objects_at];
        if !self.checkpointer.running() && meta.iter().flatten().any(|cursor| self.is_leaving(Some(cursor.segment))) {
            self.leave_open_segments();
        }
        for stream in 0..self.log.streams.len() {
            let (at, next) = self.log.streams.get(stream).map_or((None, None), |s| (s.cursor.map(|c| c.segment), s.next));
            if self.is_leaving(at) {
                self.leave_open_segments();
            }
            if !self.is_leaving(next) {
                continue;
            }
            self.seal_all();
            if let Some(cursor) = self.log.streams.get_mut(stream).and_then(|s| s.cursor.take()) {
                self.close_stream_chunk(stream);
                self.core.space.segments.set_state(cursor.segment, SegmentState::Sealed);
                self.core.space.settle(cursor.segment);
            }
            let Ok(cursor) = self.make_room(stream, Purse::Cleaner, 1, 0) else { return };
            let items = if stream == SMALL { Encoder::default() } else { self.log.notes.take() };
            let batch = OpenBatch::new(BatchKind::Exclusive, cursor.page, 1, 0, items);
            let header = self.header(stream, cursor.segment, &batch, 0);
            self.submit_batch(stream, &header, batch, Vec::new());
            self.leave_open_segments();
        }
    }

    fn is_leaving(&self, id: Option<SegmentId>) -> bool {
        id.is_some_and(|id| self.core.space.segments.get(id).is_some_and(Segment::is_given_up))
    }

    /// Nothing needs the segments any more: the shape does without them.
    fn end_evacuation(&mut self) {
        let Some(evacuation) = self.evacuation.take() else { return };
        let Removal { members, segments, shape } = evacuation.removal;
        let class = |at: &u16| (*at, self.config.shape.class_of(*at).unwrap_or(Class::Data));
        self.relabeler.left.extend(members.iter().map(class));
        (self.config.shape.groups, self.config.shape.next) = (shape.groups, shape.next);
        for (at, known) in (0u16..).zip(&mut self.config.shape.members) {
            if members.contains(&at) {
                (known.state, known.successor, known.leaving) = (MemberState::Gone, None, false);
            }
        }
        for id in segments {
            if let Some(segment) = self.core.space.segments.get_mut(id) {
                segment.leaving = false;
            }
        }
        self.io.health = Health::of(&self.config.shape);
        self.core.space.rows = Rows::new(&self.config.shape);
        self.relabel(None);
    }

    /// The labels say who has left: their devices are nobody's from now on.
    pub(crate) fn let_go(&mut self) {
        for at in std::mem::take(&mut self.relabeler.left).into_keys() {
            self.io.set_position(at, u16::MAX);
            if let Some(size) = self.config.sizes.get_mut(usize::from(at)) {
                *size = 0;
            }
        }
    }

    /// A command that begins or ends a job is answered at once: the job goes on.
    pub(crate) fn answer_job(&mut self, tag: Tag, outcome: Result<(), CommandError>) {
        self.replies.push_back((tag, outcome.map(|()| crate::Reply::Done)));
    }

    /// The next segment that an evacuation wants emptied.
    pub(crate) fn next_leaving(&mut self) -> Option<SegmentId> {
        let evacuation = self.evacuation.as_mut()?;
        while let Some(id) = evacuation.todo.pop_front() {
            let ready = self.core.space.segments.get(id).is_some_and(|s| {
                s.state == SegmentState::Sealed
                    && s.placed > 0
                    && s.objects == 0
                    && s.left_until <= self.now.0
                    && !self.log.is_in_flight(id)
            });
            if ready {
                return Some(id);
            }
        }
        None
    }
}
