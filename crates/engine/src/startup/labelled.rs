//! [`Labelled`]: a pool as the labels found on devices tell it.

use std::collections::BTreeMap;

use millpond_block::MemberId;
use millpond_format::{
    AREA_BYTES, CLAIM_OFFSET, Claim, Class, DeviceId, DeviceNote, FEATURES, Feature, FormatError, Label, Member, MemberState, PoolId,
    SECTOR_BYTES, Shape, Unknown, second_area,
};

use super::Evidence;

/// A pool as its labels tell it: the newest of them. `P` is where a device is: a path, for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labelled<P> {
    /// Identity.
    pub id: PoolId,
    /// Name.
    pub name: String,
    /// Where each member was found, by its place in the table; `None` when it is missing or was removed.
    pub members: Vec<Option<P>>,
    /// Where devices were found that are taking members' places.
    pub replacements: Vec<P>,
    /// Members that were not found, and were there when the newest label was written.
    pub missing: Vec<MemberId>,
    /// Those of them that are special devices and nothing else: a rebuild does without them.
    pub special: Vec<MemberId>,
    /// Members that were not found, and that the newest label calls down, or that are not needed (cache, spares).
    pub down: Vec<MemberId>,
    /// Devices found that an import does not need: the pool's cache and spares.
    pub asides: Vec<P>,
    /// Generation of the newest label.
    pub generation: u64,
    /// Devices that have a label of this generation.
    pub newest_on: Vec<DeviceId>,
    /// Members and devices that have one, and that it calls present.
    pub current: Vec<(MemberId, DeviceId)>,
    /// Devices found that the newest label calls present members, and the generation of their own.
    pub held: Vec<(DeviceId, u64)>,
    /// Devices found that are taking the places of present members according to the newest label
    /// and to their own, and the generation of their own.
    pub taking: Vec<(DeviceId, u64)>,
    /// Devices that the newest label calls present members, or that are taking the places of those, whatever label they have themselves.
    pub present: Vec<DeviceId>,
    /// Devices that the newest label knows as members, present or not, or that are taking the places of those.
    pub known: Vec<DeviceId>,
    /// Devices by the history that their labels tell, when it is not one: the newest label's first.
    pub sides: Vec<Vec<P>>,
    /// How members looked when they were last seen, as the newest label has it.
    pub looks: BTreeMap<MemberId, DeviceNote>,
    /// All devices found.
    pub ids: Vec<DeviceId>,
    /// Newest claim on the devices: the host that has the pool, or had it last.
    pub claim: Option<Claim>,
    /// Devices with a claim that cannot be read: another host may have the pool.
    pub unread_claims: Vec<P>,
    /// Devices found with labels of this pool that this program does not know, and why; added by the
    /// caller of [`Labelled::group`].
    pub foreign: Vec<(P, FormatError)>,
    /// Devices found with features that this program does not know and would have to know to write to
    /// the pool, and these features.
    pub unknown: Vec<(P, Unknown)>,
    /// A host that began to take the pool after that: its claim is the newest, and not in force on the devices found.
    pub taker: Option<Claim>,
    /// When whoever has the pool was last seen alive: milliseconds since the Unix epoch; nothing when it was given back.
    pub seen: Option<u64>,
}

/// Label and claims that were read from a device of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Looked<P> {
    /// Where it is.
    pub place: P,
    /// Its label.
    pub label: Label,
    /// The claim on it, released or not.
    pub claim: Option<Claim>,
    /// The claim of a later import that began to take the pool, and may be in force on other devices.
    pub taker: Option<Claim>,
    /// When its holder was last seen alive: milliseconds since the Unix epoch; nothing when it was given back.
    pub seen: Option<u64>,
    /// A claim on it cannot be read: it may be that of another host.
    pub unread_claim: bool,
}

impl<P> Looked<P> {
    /// Returns the label of a device of `size` usable bytes, the one that counts of its intact copies
    /// ([`Label::or_newer`]), and the claim on it; `None` when it is of no pool, or either copy is of a
    /// later version, except for a second one of another pool. `sector` reads one at an offset in
    /// bytes.
    ///
    /// # Errors
    /// Those of `sector`, if the other label is not intact either.
    pub fn read<E>(place: P, size: u64, sector: impl FnMut(u64) -> Result<[u8; SECTOR_BYTES], E>) -> Result<Option<Looked<P>>, E> {
        Looked::read_knowing(place, size, FEATURES, sector)
    }

    /// The same for a program that knows these features: see [`Tuning::features`](crate::Tuning::features).
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_knowing<E>(
        place: P,
        size: u64,
        features: &[Feature],
        mut sector: impl FnMut(u64) -> Result<[u8; SECTOR_BYTES], E>,
    ) -> Result<Option<Looked<P>>, E> {
        let (mut found, mut unread): (Option<Label>, Option<E>) = (None, None);
        for area in areas(size) {
            match (sector(area).map(|bytes| (Label::decode_knowing(&bytes, features), bytes)), found.take()) {
                (Ok((Ok(label), _)), None) => found = Some(label),
                (Ok((Ok(label), _)), Some(before)) => found = Some(before.or_newer(label)),
                (Ok((Err(_), bytes)), Some(before)) if before.is_beside_another_pool(&bytes) => found = Some(before),
                // INV-LABEL-3: the other copy may be older than the change that made this one
                (Ok((Err(why), _)), _) if why.is_newer_label() => return Ok(None),
                (Ok((Err(_), _)), before) => found = before,
                (Err(error), before) => (found, unread) = (before, Some(error)),
            }
        }
        let Some(label) = found else { return unread.map_or(Ok(None), Err) };
        // one that cannot be read says nothing, and is looked at again by the import; the second one says who took the pool
        let claims: Vec<Result<[u8; SECTOR_BYTES], E>> = areas(size).map(|area| sector(area + CLAIM_OFFSET)).collect();
        let unread_claim = claims.iter().any(Result::is_err);
        let decoded = || claims.iter().flatten().filter_map(|sector| Claim::decode(sector).ok()).filter(|claim| claim.pool == label.pool);
        let claim = decoded().next_back();
        let term = claim.as_ref().map(|claim| claim.term);
        let taker = decoded().next().filter(|first| term.is_some_and(|term| first.term > term));
        let held = claim.as_ref().is_some_and(|claim| !claim.released);
        let seen = decoded().map(|claim| claim.time).max().filter(|_| held);
        Ok(Some(Looked { place, label, claim, taker, seen, unread_claim }))
    }
}

/// Offsets of the two areas of a device of `size` bytes; none when it is too small for a pool.
fn areas(size: u64) -> impl Iterator<Item = u64> {
    (size >= 2 * AREA_BYTES).then(|| [0, second_area(size)]).into_iter().flatten()
}

impl<P: Clone + PartialEq> Labelled<P> {
    /// All devices found.
    pub fn devices(&self) -> Vec<P> {
        self.members.iter().flatten().chain(&self.replacements).cloned().collect()
    }

    /// Returns the facts in the labels for the decision on an automatic import; `me`: this host.
    pub fn evidence(&self, me: Option<[u8; 16]>) -> Evidence {
        let others = |claim: &&Claim| me.is_some_and(|me| claim.holder.host != me);
        let (other, taker) = (self.claim.as_ref().filter(others), self.taker.as_ref().filter(others));
        Evidence {
            generation: self.generation,
            newest_on: self.newest_on.clone(),
            current: self.current.clone(),
            held: self.held.clone(),
            taking: self.taking.clone(),
            present: self.present.clone(),
            known: self.known.clone(),
            apart: !self.sides.is_empty(),
            foreign: self.foreign.first().map(|(_, why)| *why),
            devices: self.ids.clone(),
            missing: self.missing.clone(),
            down: self.down.clone(),
            other_host: other.map(|claim| claim.holder.name.clone()),
            taker: taker.map(|claim| claim.holder.name.clone()),
        }
    }

    /// Puts the pools together from what was read.
    pub fn group(looked: Vec<Looked<P>>) -> Vec<Labelled<P>> {
        let mut found: BTreeMap<PoolId, Vec<Looked<P>>> = BTreeMap::new();
        for device in looked {
            let known = found.entry(device.label.pool).or_default();
            if known.iter().all(|other| other.place != device.place) {
                known.push(device);
            }
        }
        found.values().filter_map(|devices| Labelled::of(devices)).collect()
    }

    fn of(devices: &[Looked<P>]) -> Option<Labelled<P>> {
        // a cache may have been away, and nobody missed it: it is asked last
        let cache = |label: &Label| label.shape.is_cache(label.member);
        let labels = || devices.iter().map(|device| &device.label);
        let newest = labels().max_by_key(|label| (!cache(label), label.shape.generation, !label.shape.is_auxiliary(label.member)))?;
        let of_newest = labels().filter(|label| !cache(label) && label.shape.generation == newest.shape.generation);
        let present = |label: &Label| {
            let member = label.member_in(&newest.shape);
            let known = newest.shape.member(member)?;
            let present = known.state == MemberState::Present && known.device == label.device && !newest.shape.is_auxiliary(member);
            present.then_some((member, label.device))
        };
        let in_table = |may: fn(MemberState) -> bool| {
            let members = newest.shape.numbered().filter(|(at, known)| may(known.state) && !newest.shape.is_auxiliary(*at));
            members.flat_map(|(_, known)| [Some(known.device), known.replacement]).flatten().collect::<Vec<_>>()
        };
        let look = |known: &Member| newest.notes.iter().find(|note| note.device == known.device && known.state != MemberState::Gone);
        let mut found = Labelled {
            id: newest.pool,
            name: newest.name.clone(),
            members: vec![None; newest.shape.members.len()],
            replacements: Vec::new(),
            missing: Vec::new(),
            special: Vec::new(),
            down: Vec::new(),
            asides: Vec::new(),
            generation: newest.shape.generation,
            newest_on: of_newest.clone().map(|label| label.device).collect(),
            current: of_newest.filter_map(present).collect(),
            held: labels().filter_map(|label| Some((present(label)?.1, label.shape.generation))).collect(),
            taking: labels().filter(|label| is_taking(label, &newest.shape)).map(|label| (label.device, label.shape.generation)).collect(),
            present: in_table(|state| state == MemberState::Present),
            known: in_table(|state| state != MemberState::Gone),
            sides: sides(newest, devices),
            looks: newest.shape.numbered().filter_map(|(at, known)| Some((at, look(known)?.clone()))).collect(),
            ids: labels().map(|label| label.device).collect(),
            claim: devices.iter().filter_map(|device| device.claim.clone()).max_by_key(|claim| (claim.term, !claim.released)),
            taker: devices.iter().filter_map(|device| device.taker.clone()).max_by_key(|claim| claim.term),
            seen: None,
            unread_claims: devices.iter().filter(|device| device.unread_claim).map(|device| device.place.clone()).collect(),
            foreign: Vec::new(),
            unknown: devices.iter().filter_map(|device| Some((device.place.clone(), device.label.unknown_to_writers(FEATURES)?))).collect(),
        };
        let in_force = found.claim.as_ref().map(|claim| (claim.term, !claim.released));
        found.taker = found.taker.filter(|taker| in_force.is_none_or(|(term, _)| taker.term > term));
        found.seen = devices.iter().filter_map(|device| device.seen).max().filter(|_| in_force.is_some_and(|(_, held)| held));
        for Looked { place, label, .. } in devices {
            let member = label.member_in(&newest.shape);
            let Some(known) = newest.shape.member(member).filter(|known| known.state != MemberState::Gone) else { continue };
            if known.replacement == Some(label.device) {
                found.replacements.push(place.clone());
            } else if known.device == label.device
                && let Some(known_place) = found.members.get_mut(member.index())
                && known_place.is_none()
            {
                *known_place = Some(place.clone());
                found.asides.extend(newest.shape.is_auxiliary(member).then(|| place.clone()));
            }
        }
        for ((at, known), place) in newest.shape.numbered().zip(&found.members) {
            match known.state {
                _ if place.is_some() || known.state == MemberState::Gone => {}
                _ if newest.shape.is_auxiliary(at) => found.down.push(at),
                MemberState::Down => found.down.push(at),
                _ => found.missing.push(at),
            }
        }
        found.special = found.missing.iter().copied().filter(|at| is_special(&newest.shape, *at)).collect();
        Some(found)
    }
}

/// Returns whether a member is only in groups of special devices.
fn is_special(shape: &Shape, member: MemberId) -> bool {
    let mut groups = shape.groups.iter().filter(|group| group.columns.iter().any(|column| column.member == member));
    groups.all(|group| group.class == Class::Special)
}

/// Returns whether a device is taking the place of a present member according to its own label and
/// to the newest one.
fn is_taking(label: &Label, newest: &Shape) -> bool {
    let is_in = |shape: &Shape| {
        let known = shape.member(label.member_in(newest));
        known.is_some_and(|known| known.state == MemberState::Present && known.replacement == Some(label.device))
    };
    is_in(newest) && is_in(&label.shape)
}

/// Devices by the history that their labels tell: that of the newest label, those of other labels of its generation, and of devices that
/// were written to
/// without the others, as the engine sees it. Empty when it is one history. Spares and caches hold nothing that the pool needs, and do not
/// count.
fn sides<P: Clone>(newest: &Label, devices: &[Looked<P>]) -> Vec<Vec<P>> {
    let mut sides: Vec<(&Label, Vec<P>)> = vec![(newest, Vec::new())];
    for Looked { place, label, .. } in devices {
        let member = label.member_in(&newest.shape);
        if label.shape.is_auxiliary(label.member) || newest.shape.is_auxiliary(member) {
            continue;
        }
        let is = |known: &Member| known.device == label.device && known.state != MemberState::Gone;
        let is_member = newest.shape.member(member).is_some_and(is);
        let apart = is_member && newest.shape.parted_from(&label.shape, member);
        match sides.iter_mut().find(|(side, _)| (&side.shape, side.features) == (&label.shape, label.features)) {
            Some((_, places)) => places.push(place.clone()),
            None if apart || label.shape.generation == newest.shape.generation => sides.push((label, vec![place.clone()])),
            None => {}
        }
    }
    let sides: Vec<Vec<P>> = sides.into_iter().map(|(_, places)| places).collect();
    if sides.len() > 1 { sides } else { Vec::new() }
}
