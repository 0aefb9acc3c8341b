//! State of the members of a pool: which can be read and written, and which the pool can do
//! without.

use millpond_block::MemberId;
use millpond_format::{MemberState, SegmentId, Shape};
use smallvec::SmallVec;

use super::parity::Columns;
use crate::space::{SegmentLayout, Stripe};

/// Members of a group, and how many of them may be lost without loss of data.
#[derive(Debug)]
struct Set {
    members: Vec<MemberId>,
    spare: usize,
}

/// State of a pool's members.
#[derive(Debug, Default)]
pub(crate) struct Health {
    states: Vec<MemberState>,
    sets: Vec<Set>,
    /// Auxiliary members, which the pool does not wait for: cache devices and spares.
    asides: Vec<MemberId>,
    /// Members that have not answered for a while: they are read only when no other device has the
    /// data.
    silent: Vec<MemberId>,
}

impl Health {
    /// The state that a shape describes.
    pub(crate) fn of(shape: &Shape) -> Health {
        let set = |group: &millpond_format::Group| {
            let mut members: Vec<MemberId> = group.columns.iter().map(|column| column.member).collect();
            members.sort_unstable();
            members.dedup();
            Set { members, spare: usize::from(group.layout.spare()) }
        };
        // a pool can do without all of its cache devices and spares
        let needed = shape.groups.iter().filter(|group| !group.class.is_auxiliary());
        let asides = shape.ids().filter(|member| shape.is_auxiliary(*member)).collect();
        Health { states: shape.members.iter().map(|m| m.state).collect(), sets: needed.map(set).collect(), asides, silent: Vec::new() }
    }

    /// All members usable: for devices whose labels were not read yet.
    pub(crate) fn all(members: usize) -> Health {
        Health { states: vec![MemberState::Present; members], ..Health::default() }
    }

    fn state(&self, member: MemberId) -> MemberState {
        self.states.get(member.index()).copied().unwrap_or(MemberState::Gone)
    }

    /// True when a member can be read and written.
    pub(crate) fn is_up(&self, member: MemberId) -> bool {
        matches!(self.state(member), MemberState::Present | MemberState::Filling)
    }

    /// True when a member is in service but incomplete.
    pub(super) fn is_filling(&self, member: MemberId) -> bool {
        self.state(member) == MemberState::Filling
    }

    /// True when a member is a cache device or a spare, in whatever state.
    pub(super) fn is_auxiliary(&self, member: MemberId) -> bool {
        self.asides.contains(&member)
    }

    /// Sets the members that have not answered for a while.
    pub(super) fn set_silent(&mut self, silent: Vec<MemberId>) {
        self.silent = silent;
    }

    /// True when a member has not answered for a while.
    pub(super) fn is_silent(&self, member: MemberId) -> bool {
        self.silent.contains(&member)
    }

    /// True when all devices of a segment are complete and answer.
    pub(crate) fn has_all(&self, layout: &SegmentLayout, segment: SegmentId) -> bool {
        self.lacking(layout, segment).next().is_none()
    }

    /// Devices of a segment that are incomplete or do not answer.
    pub(crate) fn lacking(&self, layout: &SegmentLayout, segment: SegmentId) -> impl Iterator<Item = MemberId> {
        let lacks = |member: &MemberId| self.state(*member) != MemberState::Present || self.is_silent(*member);
        let found: SmallVec<[MemberId; 4]> = layout.extents(segment).map(|(member, _)| member).filter(lacks).collect();
        found.into_iter()
    }

    /// Sets the state of a member.
    pub(crate) fn set(&mut self, member: MemberId, state: MemberState) {
        if let Some(place) = self.states.get_mut(member.index()) {
            *place = state;
        }
    }

    /// True when all data would still be there without `member`. An incomplete member can always be
    /// spared, because data does not depend on it.
    pub(crate) fn can_spare(&self, member: MemberId) -> bool {
        self.can_spare_beside(member, &[])
    }

    /// True when all data would still be there without `member` and `others`.
    pub(super) fn can_spare_beside(&self, member: MemberId, others: &[MemberId]) -> bool {
        let whole = |m: &&MemberId| **m == member || (self.state(**m) == MemberState::Present && !others.contains(m));
        self.sets.iter().filter(|set| set.members.contains(&member)).all(|set| {
            let unusable = set.members.len() - set.members.iter().filter(whole).count();
            unusable < set.spare
        })
    }

    /// Columns of a segment with parity whose devices are incomplete.
    pub(crate) fn missing(&self, stripe: &Stripe<'_>) -> Columns {
        let lacks = |(_, (device, _)): &(usize, (MemberId, u64))| self.state(*device) != MemberState::Present;
        stripe.columns().into_iter().enumerate().filter(lacks).fold(0, |set, (column, _)| set | 1 << column)
    }

    /// The same columns, and those whose devices have not answered for a while.
    pub(super) fn missing_or_silent(&self, stripe: &Stripe<'_>) -> Columns {
        let silent = |(_, (device, _)): &(usize, (MemberId, u64))| self.is_silent(*device);
        stripe.columns().into_iter().enumerate().filter(silent).fold(self.missing(stripe), |set, (column, _)| set | 1 << column)
    }

    /// Columns of a segment with parity whose devices are complete.
    pub(crate) fn whole_columns(&self, stripe: &Stripe<'_>) -> Vec<usize> {
        let missing = self.missing(stripe);
        (0..stripe.width()).filter(|column| missing & 1 << column == 0).collect()
    }

    /// Copies of a segment whose devices are complete.
    pub(crate) fn whole_copies(&self, layout: &SegmentLayout, segment: SegmentId) -> SmallVec<[usize; 4]> {
        let whole = |(_, member): &(usize, MemberId)| self.state(*member) == MemberState::Present;
        layout.copies(segment).enumerate().filter(whole).map(|(copy, _)| copy).collect()
    }

    /// Copies of a segment in the order in which reads try them, so that complete copies share the
    /// reads; empty when the layout is not a mirror.
    pub(super) fn order(&self, layout: &SegmentLayout, segment: SegmentId, page: u32) -> SmallVec<[usize; 4]> {
        let copies = layout.copies(segment);
        let count = copies.len();
        let mut order = SmallVec::new();
        if count == 0 {
            return order;
        }
        let states: SmallVec<[(MemberState, bool); 4]> = copies.map(|member| (self.state(member), self.is_silent(member))).collect();
        // neighbouring pages are read from one device, other regions from other devices
        let start = (page >> 8) as usize + segment.0 as usize;
        let front = layout.front(segment).clamp(1, count);
        for wanted in
            [(MemberState::Present, false), (MemberState::Present, true), (MemberState::Filling, false), (MemberState::Filling, true)]
        {
            let in_turn = (0..front).map(|at| (start + at) % front).chain(front..count);
            order.extend(in_turn.filter(|at| states.get(*at) == Some(&wanted)));
        }
        order
    }
}
