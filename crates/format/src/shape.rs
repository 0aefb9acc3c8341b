//! The shape of a pool: its members, and how their extents make up segments.
//!
//! All places follow from the shape, so a segment id means certain extents as soon as one label is
//! read. Segment ids are never reused for other extents, so a removed group leaves a gap.

use std::collections::BTreeSet;

use millpond_block::MemberId;

use crate::codec::{Decoder, Encoder, FormatError};
use crate::{Class, DeviceId, Layout, MAX_OBJECT_BYTES, SegmentId};

#[cfg(test)]
mod tests;

/// Maximum number of members of a pool, removed members included.
pub const MAX_DEVICES: usize = 64;
/// Maximum number of groups.
pub const MAX_GROUPS: usize = 32;
/// Maximum bytes of an encoded shape, so that it fits into the sector of a label with the name.
pub const MAX_SHAPE_BYTES: usize = 3900;
/// Maximum extents of a group: one petabyte at the largest extent size.
const MAX_EXTENTS: u64 = 1 << 24;
/// Maximum segments of a group in a bucket: 256 TiB at the largest object.
pub const MAX_BUCKET_SEGMENTS: u32 = MAX_EXTENTS as u32;
/// Maximum segments, gaps included: a table in memory has an entry for each.
const MAX_SEGMENTS: u32 = 1 << 25;
/// Maximum copies of a mirror.
pub const MAX_COPIES: u16 = 8;
/// Maximum devices of a stripe with parity.
pub const MAX_PARITY_WIDTH: u16 = 16;

/// State of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// In service.
    Present,
    /// Missing or failed: its content is out of date.
    Down,
    /// In service, but some of the data that it should hold is still missing (resilvering).
    Filling,
    /// Removed for good.
    Gone,
}

/// A device of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Identity of the device.
    pub device: DeviceId,
    /// Number of extents.
    pub extents: u32,
    /// State of the device in the pool.
    pub state: MemberState,
    /// The device that is replacing it.
    pub replacement: Option<DeviceId>,
    /// True while its data is moved off so that it can be removed.
    pub leaving: bool,
    /// Generation of the shape that last marked it [`Down`](MemberState::Down), kept when it is
    /// back in service; 0 when it was never down.
    pub down_since: u64,
}

/// Flag in the encoded state: the member is being removed.
const LEAVING: u8 = 1 << 7;

/// A range of extents of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// The member.
    pub member: MemberId,
    /// First extent.
    pub first: u32,
    /// Number of extents.
    pub extents: u32,
}

/// Extents that make up segments with one layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Purpose of its segments.
    pub class: Class,
    /// Layout of its segments.
    pub layout: Layout,
    /// First segment; the others follow it.
    pub first: SegmentId,
    /// The extents of each of its members; none in a bucket, which is no member.
    pub columns: Vec<Column>,
}

/// The shape of a pool.
///
/// | field | bytes | meaning |
/// |---|---|---|
/// | generation | 8 | one more for every change; of several labels the newest is valid |
/// | extent bytes | 8 | bytes of a segment on one device |
/// | chunk units | 4 | longest chunk in 512-byte units |
/// | next segment | 4 | lowest segment id that was never used |
/// | members | 4 + n (8 + 4 + 1 + 8 + 8) | device, extents, state, replacement or 0, down since |
/// | groups | 4 + n (1 + 1 + 2 + 4 + 4) | class, layout, width or copies, unit, first segment |
/// | columns of each | 4 + n (2 + 4 + 4) | member, first extent, extents |
///
/// State: bits 0 to 6 the state, bit 7: the member is being removed. Down since: generation that
/// last called the member down, or 0. Class: 0 data, 1 special, 2 log, 3 cache, 4 spare. Layout:
/// 0 linear, 1 stripe, 2 mirror, 3 and 4 parity of one and two, 5 bucket. A group in a bucket has
/// class data, no columns, and the number of its segments as its unit; a pool with such groups has
/// no others of class data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// One more for every change.
    pub generation: u64,
    /// Bytes of a segment on one device.
    pub extent_bytes: u64,
    /// Longest chunk in units.
    pub chunk_units: u32,
    /// Lowest segment id that was never used.
    pub next: SegmentId,
    /// Members. A place in this table is never given to another member.
    pub members: Vec<Member>,
    /// Groups, in order of their segments.
    pub groups: Vec<Group>,
}

impl Shape {
    /// Appends the shape.
    pub fn encode(&self, e: &mut Encoder) {
        e.u64(self.generation);
        e.u64(self.extent_bytes);
        e.u32(self.chunk_units);
        e.u32(self.next.0);
        e.count(self.members.len());
        for member in &self.members {
            e.u64(member.device.0);
            e.u32(member.extents);
            let state = match member.state {
                MemberState::Present => 0,
                MemberState::Down => 1,
                MemberState::Filling => 2,
                MemberState::Gone => 3,
            };
            e.u8(state | if member.leaving { LEAVING } else { 0 });
            e.u64(member.replacement.map_or(0, |id| id.0));
            e.u64(member.down_since);
        }
        e.count(self.groups.len());
        for group in &self.groups {
            e.u8(match group.class {
                Class::Data => 0,
                Class::Special => 1,
                Class::Log => 2,
                Class::Cache => 3,
                Class::Spare => 4,
            });
            let (kind, width, unit) = match group.layout {
                Layout::Linear => (0, 1, 0),
                Layout::Stripe { width, unit } => (1, width, unit),
                Layout::Mirror { copies } => (2, copies, 0),
                Layout::Parity { width, parity, unit } => (2 + parity, width, unit),
                Layout::Bucket { segments } => (5, 0, segments),
            };
            e.u8(kind);
            e.u16(width);
            e.u32(unit);
            e.u32(group.first.0);
            e.count(group.columns.len());
            for column in &group.columns {
                e.u16(column.member.0);
                e.u32(column.first);
                e.u32(column.extents);
            }
        }
    }

    /// Decodes a shape.
    ///
    /// # Errors
    /// [`FormatError`] when it is cut off or its numbers are out of range.
    pub fn decode(d: &mut Decoder<'_>) -> Result<Shape, FormatError> {
        let (generation, extent_bytes, chunk_units) = (d.counter("generation")?, d.u64()?, d.u32()?);
        let next = SegmentId(d.u32()?);
        let members = (0..d.count(29)?).map(|_| member(d)).collect::<Result<Vec<_>, _>>()?;
        let groups = (0..d.count(16)?).map(|_| group(d)).collect::<Result<Vec<_>, _>>()?;
        let shape = Shape { generation, extent_bytes, chunk_units, next, members, groups };
        shape.check()?;
        Ok(shape)
    }

    /// Checks bounds. Extent sizes are powers of two, so that offsets are shifts; chunks fit into a
    /// slot number and into an extent; no extent is in two segments, or beyond the end of its
    /// device. A pool has its data in a bucket or on devices, not both.
    ///
    /// # Errors
    /// Names the field that is out of range.
    pub fn check(&self) -> Result<(), FormatError> {
        // the checks that enumerate segments run only after the layouts were checked
        let sound: [(&dyn Fn() -> bool, &str); 11] = [
            (&|| (1..=MAX_DEVICES).contains(&self.members.len()), "devices"),
            (&|| (1..=MAX_GROUPS).contains(&self.groups.len()), "groups"),
            (&|| self.members.iter().all(|m| m.extents > 0), "extents"),
            (&|| self.extent_bytes.is_power_of_two() && (64 << 10..=64 << 20).contains(&self.extent_bytes), "extent bytes"),
            (&|| self.chunk_units.is_multiple_of(8) && (16..=8192).contains(&self.chunk_units), "chunk units"),
            (&|| u64::from(self.chunk_units) * 512 <= self.extent_bytes, "chunk units"),
            (&|| self.groups.iter().all(|group| self.layout_fits(group)), "layout"),
            (&|| !self.has_bucket() || self.groups.iter().all(|g| g.class != Class::Data || g.layout.is_bucket()), "class"),
            (&|| self.columns_are_apart(), "columns"),
            (&|| self.auxiliaries_are_apart(), "class"),
            (&|| self.segments_are_apart(), "segments"),
        ];
        sound.iter().find(|(ok, _)| !ok()).map_or(Ok(()), |(_, field)| Err(FormatError::Field(field)))
    }

    fn layout_fits(&self, group: &Group) -> bool {
        match group.layout {
            Layout::Linear => true,
            _ if group.class.is_auxiliary() => false,
            Layout::Bucket { segments } => {
                let is_one = group.class == Class::Data && group.columns.is_empty();
                is_one && (1..=MAX_BUCKET_SEGMENTS).contains(&segments) && self.extent_bytes <= MAX_OBJECT_BYTES
            }
            Layout::Stripe { width, unit } => {
                width > 0 && unit > 0 && u64::from(unit) % 4096 == 0 && self.extent_bytes.is_multiple_of(u64::from(unit))
            }
            Layout::Mirror { copies } => (2..=MAX_COPIES).contains(&copies),
            Layout::Parity { width, parity, unit } => {
                let turns = unit > 0 && u64::from(unit) % 4096 == 0 && self.extent_bytes.is_multiple_of(u64::from(unit));
                turns && (u16::from(parity) + 1..=MAX_PARITY_WIDTH).contains(&width)
            }
        }
    }

    fn columns_are_apart(&self) -> bool {
        let mut all: Vec<(MemberId, u64, u64)> = self
            .groups
            .iter()
            .flat_map(|group| &group.columns)
            .map(|c| (c.member, u64::from(c.first), u64::from(c.first) + u64::from(c.extents)))
            .collect();
        all.sort_unstable();
        let inside = |(member, _, end): &(MemberId, u64, u64)| {
            self.member(*member).is_some_and(|m| *end <= u64::from(m.extents) && m.state != MemberState::Gone)
        };
        all.iter().all(inside) && all.iter().zip(all.iter().skip(1)).all(|(a, b)| a.0 != b.0 || a.2 <= b.1)
    }

    /// True when each cache or spare device is auxiliary as a whole.
    fn auxiliaries_are_apart(&self) -> bool {
        let of = |auxiliary: bool| self.groups.iter().filter(move |group| group.class.is_auxiliary() == auxiliary);
        of(true).flat_map(|group| &group.columns).all(|own| {
            let whole = self.member(own.member).is_some_and(|m| own.first == 0 && own.extents == m.extents);
            whole && of(false).flat_map(|group| &group.columns).all(|other| other.member != own.member)
        })
    }

    /// Checks that groups have disjoint segments in order. A group has at most as many segments as
    /// extents, or the number that a bucket gives.
    fn segments_are_apart(&self) -> bool {
        let mut next = 0;
        let apart = self.groups.iter().all(|group| {
            let extents = match group.layout {
                Layout::Bucket { segments } => u64::from(segments),
                _ => group.columns.iter().map(|c| u64::from(c.extents)).sum(),
            };
            let first = u64::from(group.first.0);
            let apart = (1..=MAX_EXTENTS).contains(&extents) && first >= next && first + extents < u64::from(u32::MAX);
            next = first + if apart { group.rows() } else { 0 };
            apart
        });
        apart && next <= u64::from(self.next.0) && self.next.0 <= MAX_SEGMENTS
    }

    /// True when the shape fits into a label and passes [`check`](Shape::check).
    pub fn fits(&self) -> bool {
        let mut e = Encoder::with_capacity(MAX_SHAPE_BYTES);
        let counts = self.members.len() <= MAX_DEVICES && self.groups.len() <= MAX_GROUPS;
        counts && self.check().is_ok() && {
            self.encode(&mut e);
            e.len() <= MAX_SHAPE_BYTES
        }
    }

    /// Returns the numbers of all members, removed ones included, in order.
    pub fn ids(&self) -> impl Iterator<Item = MemberId> + Clone + use<> {
        (0..).map(MemberId).take(self.members.len())
    }

    /// Returns all members, removed ones included, with their numbers, in order.
    pub fn numbered(&self) -> impl Iterator<Item = (MemberId, &Member)> + Clone {
        self.ids().zip(&self.members)
    }

    /// Returns all members as [`numbered`](Shape::numbered) does.
    pub fn numbered_mut(&mut self) -> impl Iterator<Item = (MemberId, &mut Member)> {
        self.ids().zip(&mut self.members)
    }

    /// Returns a member; `None` for a number that is not in the table.
    pub fn member(&self, member: MemberId) -> Option<&Member> {
        self.members.get(member.index())
    }

    /// Returns a member; `None` for a number that is not in the table.
    pub fn member_mut(&mut self, member: MemberId) -> Option<&mut Member> {
        self.members.get_mut(member.index())
    }

    /// Marks a member as down, from the next generation on. A member that is down keeps its time.
    pub fn lose(&mut self, member: MemberId) {
        let next = self.generation + 1;
        let known = self.member_mut(member).filter(|m| !matches!(m.state, MemberState::Down | MemberState::Gone));
        if let Some(known) = known {
            (known.state, known.down_since) = (MemberState::Down, next);
        }
    }

    /// True when a device with the shape `theirs` was in use as `member` without members that were
    /// in service here at that time: its history is not part of this pool's history. In one history
    /// each change of the shape has a generation of its own, so a newer shape knows all losses of
    /// the older one, each with the same generation or a later one, and lists no other before the
    /// generation of the older one. A member that a shape cannot spare goes down only after another
    /// one has become complete.
    ///
    /// Histories that agree in all of this cannot be distinguished: after several losses in a row
    /// their generations may agree by chance.
    pub fn parted_from(&self, theirs: &Shape, member: MemberId) -> bool {
        let state = |shape: &Shape| shape.member(member).map(|m| m.state);
        if theirs.generation >= self.generation || state(theirs) != Some(MemberState::Present) || state(self) != Some(MemberState::Down) {
            return false;
        }
        let since = self.member(member).map_or(0, |m| m.down_since);
        let changes = theirs.changes_before_loss(member);
        if changes > 0 && since <= theirs.generation.saturating_add(changes) {
            return true;
        }
        let contradicts = |(at, then, now): (MemberId, u64, u64)| {
            let unknown_there = at != member && now > then && now < theirs.generation;
            then > now || then > 0 && then >= since || unknown_there
        };
        let losses = theirs.numbered().zip(&self.members).map(|((at, then), now)| (at, then.down_since, now.down_since));
        losses.into_iter().any(contradicts)
    }

    /// Returns the least number of changes of the shape before the pool can go on without a member.
    /// 0 when its redundancy suffices. Otherwise the group must go, as the rest of a special group
    /// whose other devices were lost does, or an incomplete member of the group must become complete
    /// or leave the group; it must begin to be filled, replaced or removed before that.
    fn changes_before_loss(&self, member: MemberId) -> u64 {
        let of_group = |group: &Group| {
            let members: BTreeSet<MemberId> = group.columns.iter().map(|column| column.member).collect();
            let others = members.iter().filter(|at| **at != member).filter_map(|at| self.member(*at));
            let incomplete: Vec<&Member> = others.filter(|other| other.state != MemberState::Present).collect();
            let begun = |other: &&Member| other.state == MemberState::Filling || other.replacement.is_some() || other.leaving;
            let spared = !members.contains(&member) || incomplete.len() < usize::from(group.layout.spare());
            if spared { 0 } else { 2 - u64::from(incomplete.is_empty() || incomplete.iter().any(begun)) }
        };
        self.groups.iter().filter(|group| !group.class.is_auxiliary()).map(of_group).max().unwrap_or(0)
    }

    /// True when a member is in a group of `class`.
    pub fn is_of(&self, member: MemberId, class: Class) -> bool {
        self.groups.iter().any(|group| group.class == class && group.columns.iter().any(|column| column.member == member))
    }

    /// Returns the group that decides a member's purpose: its group of class data if it has one,
    /// else its first group; `None` for a member without groups.
    pub fn group_of(&self, member: MemberId) -> Option<&Group> {
        let own = || self.groups.iter().filter(|group| group.columns.iter().any(|column| column.member == member));
        own().find(|group| group.class == Class::Data).or_else(|| own().next())
    }

    /// Returns the class of [`group_of`](Shape::group_of).
    pub fn class_of(&self, member: MemberId) -> Option<Class> {
        self.group_of(member).map(|group| group.class)
    }

    /// True when a member is a cache device.
    pub fn is_cache(&self, member: MemberId) -> bool {
        self.is_of(member, Class::Cache)
    }

    /// True when a member is a spare.
    pub fn is_spare(&self, member: MemberId) -> bool {
        self.is_of(member, Class::Spare)
    }

    /// True when a member is a cache device or a spare: it holds no segments and no roots.
    pub fn is_auxiliary(&self, member: MemberId) -> bool {
        self.is_cache(member) || self.is_spare(member)
    }

    /// True when there is a group of `class`.
    pub fn has(&self, class: Class) -> bool {
        self.groups.iter().any(|group| group.class == class)
    }

    /// True when the pool has its data in a bucket.
    pub fn has_bucket(&self) -> bool {
        self.groups.iter().any(|group| group.layout.is_bucket())
    }

    /// Returns the class of the devices that hold all data which is on devices: data, or the log
    /// beside a bucket.
    pub fn local_class(&self) -> Class {
        if self.has_bucket() { Class::Log } else { Class::Data }
    }

    /// Removes an auxiliary member. Its place in the table is not used again.
    pub fn drop_auxiliary(&mut self, member: MemberId) {
        self.groups.iter_mut().filter(|group| group.class.is_auxiliary()).for_each(|g| g.columns.retain(|column| column.member != member));
        // a group in a bucket has no columns either
        self.groups.retain(|group| !group.class.is_auxiliary() || !group.columns.is_empty());
        if let Some(known) = self.member_mut(member) {
            known.state = MemberState::Gone;
        }
    }

    /// Adds a group, which gets the next segment ids.
    pub fn add(&mut self, class: Class, layout: Layout, columns: Vec<Column>) {
        let group = Group { class, layout, first: self.next, columns };
        self.next = SegmentId(u32::try_from(u64::from(self.next.0) + group.rows()).unwrap_or(u32::MAX));
        self.groups.push(group);
    }
}

impl Group {
    /// Number of its segments, as [`for_each_row`](Group::for_each_row) enumerates them.
    pub fn rows(&self) -> u64 {
        if let Layout::Bucket { segments } = self.layout {
            return u64::from(segments);
        }
        let mut rows = 0;
        self.for_each_row(|_| rows += 1);
        rows
    }

    /// Calls `row` for each segment in order, with the member and extent of each column of the
    /// segment.
    ///
    /// - `linear`: all extents of the first column, then of the next, one extent per segment.
    /// - `stripe` and `mirror`: each segment takes its extents from the columns with the most
    ///   unused extents, so devices of different sizes are used up together. Near the end a stripe
    ///   gets narrower; a mirror and parity end when too few columns are left.
    /// - parity: the last columns hold it. The columns of a segment are rotated left by the
    ///   segment's id, so that parity is spread over all devices.
    /// - `bucket`: segments without columns.
    ///
    /// Caches and spares have no segments.
    pub fn for_each_row(&self, mut row: impl FnMut(&[(MemberId, u32)])) {
        if self.class.is_auxiliary() {
            return;
        }
        let (width, least) = match self.layout {
            Layout::Linear => {
                for column in &self.columns {
                    (column.first..column.first + column.extents).for_each(|at| row(&[(column.member, at)]));
                }
                return;
            }
            Layout::Bucket { segments } => return (0..segments).for_each(|_| row(&[])),
            Layout::Stripe { width, .. } => (usize::from(width), 1),
            Layout::Mirror { copies: all } | Layout::Parity { width: all, .. } => (usize::from(all), usize::from(all)),
        };
        let turns = matches!(self.layout, Layout::Parity { .. });
        let mut id = self.first.0 as usize;
        let mut used: Vec<u32> = vec![0; self.columns.len()];
        let mut order: Vec<usize> = Vec::with_capacity(self.columns.len());
        let mut parts = Vec::with_capacity(width);
        loop {
            let left = |at: usize| {
                let column = self.columns.get(at)?;
                Some((column, column.extents - used.get(at)?)).filter(|(_, left)| *left > 0)
            };
            order.clear();
            order.extend((0..self.columns.len()).filter(|at| left(*at).is_some()));
            if width == 0 || order.len() < least.max(1) {
                return;
            }
            order.sort_by_key(|at| (std::cmp::Reverse(left(*at).map_or(0, |(_, left)| left)), *at));
            order.truncate(width);
            order.sort_unstable();
            parts.clear();
            for at in &order {
                if let (Some(column), Some(used)) = (self.columns.get(*at), used.get_mut(*at)) {
                    parts.push((column.member, column.first + *used));
                    *used += 1;
                }
            }
            if turns {
                parts.rotate_left(id % width);
            }
            id += 1;
            row(&parts);
        }
    }
}

fn member(d: &mut Decoder<'_>) -> Result<Member, FormatError> {
    let (device, extents) = (DeviceId(d.u64()?), d.u32()?);
    let code = d.u8()?;
    let state = match code & !LEAVING {
        0 => MemberState::Present,
        1 => MemberState::Down,
        2 => MemberState::Filling,
        3 => MemberState::Gone,
        _ => return Err(FormatError::Field("member")),
    };
    let replacement = Some(d.u64()?).filter(|id| *id != 0).map(DeviceId);
    let down_since = d.counter("generation")?;
    Ok(Member { device, extents, state, replacement, leaving: code & LEAVING != 0, down_since })
}

fn group(d: &mut Decoder<'_>) -> Result<Group, FormatError> {
    let class = match d.u8()? {
        0 => Class::Data,
        1 => Class::Special,
        2 => Class::Log,
        3 => Class::Cache,
        4 => Class::Spare,
        _ => return Err(FormatError::Field("class")),
    };
    let (kind, width, unit) = (d.u8()?, d.u16()?, d.u32()?);
    let layout = match kind {
        0 => Layout::Linear,
        1 => Layout::Stripe { width, unit },
        2 => Layout::Mirror { copies: width },
        3 | 4 => Layout::Parity { width, parity: kind - 2, unit },
        5 if width == 0 => Layout::Bucket { segments: unit },
        _ => return Err(FormatError::Field("layout")),
    };
    let first = SegmentId(d.u32()?);
    let column = |d: &mut Decoder<'_>| Ok(Column { member: MemberId(d.u16()?), first: d.u32()?, extents: d.u32()? });
    let columns = (0..d.count(10)?).map(|_| column(d)).collect::<Result<Vec<_>, FormatError>>()?;
    Ok(Group { class, layout, first, columns })
}
