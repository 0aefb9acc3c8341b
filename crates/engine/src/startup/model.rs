//! A small world of devices, hosts and what they remember, gone through exhaustively: no import that a daemon does by itself shows a state
//! older than a flush that was acknowledged.
//!
//! Devices are absent in any combination; they are given up in service and filled again, or replaced; hosts crash or stop at any point,
//! also between new
//! labels and what is remembered of them; the user takes what is there, older or not, and what was written since counts no more. Labels and
//! what is read of them are the real ones; of the engine its rules are here: the newest label holds,
//! labels that contradict each other are refused, and so is what another host has not closed.

use std::collections::{BTreeSet, VecDeque};

use millpond_block::MemberId;
use millpond_format::{Claim, Class, Column, DeviceId, Group, Holder, Label, Layout, Member, MemberState, PoolId, SegmentId, Shape};

use super::*;

const POOL: PoolId = PoolId([7; 16]);
const LIMIT: Duration = Duration::from_secs(30);
/// Flushes acknowledged at most: enough to tell states apart.
const FLUSHES: u8 = 3;

type Decide = fn(Option<&LabelsInForce>, Option<&Evidence>, Duration, Duration) -> Decision;

fn sound(memory: Option<&LabelsInForce>, found: Option<&Evidence>, waited: Duration, wait: Duration) -> Decision {
    ImportRules { wait, planted: None }.decide(memory, found, waited)
}

/// A flush: how often the user went back before it, and its number.
type Flush = (u8, u8);

#[derive(Clone, Debug)]
struct Device {
    shape: Shape,
    /// The member that it says it is; none of one that never was, or was replaced and has no label any more.
    member: Option<usize>,
    /// It waits to replace another.
    blank: bool,
    /// The last flush that it has everything of.
    version: Flush,
    /// The second claim: host, term, and whether it was released.
    claim: Option<(u8, u64, bool)>,
    /// A first claim of a later term: host and term.
    taker: Option<(u8, u64)>,
}

#[derive(Clone, Debug)]
struct World {
    devices: Vec<Device>,
    memories: Vec<Option<LabelsInForce>>,
    /// The host that has the pool, its devices, and the shape in force.
    serving: Option<(usize, BTreeSet<usize>, Shape)>,
    acknowledged: Flush,
    /// How often the user still takes what is there.
    by_hand: u8,
    /// Nothing else is imported by hand.
    hands: bool,
}

/// Counts of events, which show that the model reached all of them.
#[derive(Debug, Default)]
struct Seen {
    worlds: usize,
    imported: usize,
    degraded: usize,
    waited: usize,
    refused: usize,
    forked: usize,
}

fn id(at: usize) -> DeviceId {
    DeviceId(100 + at as u64)
}

pub(super) fn shape(devices: u16) -> Shape {
    let member = |at| Member {
        device: DeviceId(100 + u64::from(at)),
        extents: 4,
        state: MemberState::Present,
        replacement: None,
        leaving: false,
        down_since: 0,
    };
    let columns = (0..devices).map(MemberId).map(|member| Column { member, first: 0, extents: 4 }).collect();
    let group = Group { class: Class::Data, layout: Layout::Mirror { copies: devices }, first: SegmentId(0), columns };
    Shape {
        generation: 1,
        extent_bytes: 1 << 20,
        chunk_units: 512,
        next: SegmentId(4),
        members: (0..devices).map(member).collect(),
        groups: vec![group],
    }
}

fn in_force(shape: &Shape) -> LabelsInForce {
    let members = shape.numbered().filter(|(_, m)| m.state == MemberState::Present);
    let left_behind = shape.members.iter().any(|m| m.state == MemberState::Down);
    LabelsInForce { generation: shape.generation, current: members.map(|(at, m)| (at, m.device)).collect(), left_behind }
}

impl World {
    fn new(size: Size) -> World {
        // made by the first host and closed; a pool is remembered from when it was made or imported by hand, whole
        let label = shape(size.devices);
        let mut memories = vec![None; size.hosts];
        memories[0] = Some(in_force(&label));
        let member = |at: usize| Some(at).filter(|at| *at < usize::from(size.devices));
        let device = |member: Option<usize>| Device {
            shape: label.clone(),
            member,
            blank: member.is_none(),
            version: (0, 0),
            claim: member.map(|_| (0, 1, true)),
            taker: None,
        };
        let devices = (0..usize::from(size.devices) + size.blank).map(|at| device(member(at))).collect();
        World { devices, memories, serving: None, acknowledged: (0, 0), by_hand: size.by_hand, hands: size.by_hand > 0 }
    }

    /// A device as the shape describes it.
    fn state(&self, shape: &Shape, at: usize) -> MemberState {
        let known = self.devices[at].member.map(|member| &shape.members[member]);
        known.filter(|known| known.device == id(at)).map_or(MemberState::Gone, |known| known.state)
    }

    fn looked(&self, at: usize) -> Option<Looked<usize>> {
        let device = &self.devices[at];
        let member = MemberId::at(device.member?);
        let label = Label {
            pool: POOL,
            name: "tank".to_owned(),
            device: id(at),
            member,
            shape: device.shape.clone(),
            features: millpond_format::FeatureSet::default(),
            feature_names: millpond_format::FeatureNames::default(),
            notes: Vec::new(),
        };
        let claim = |(host, term, released): (u8, u64, bool)| Claim {
            pool: POOL,
            holder: Holder { host: [host; 16], name: host.to_string(), session: [0; 16] },
            term,
            heartbeat: 0,
            time: 0,
            lease: 1000,
            released,
        };
        let taker = device.taker.map(|(host, term)| claim((host, term, false)));
        Some(Looked { place: at, label, claim: device.claim.map(claim), taker, seen: None, unread_claim: false })
    }

    fn labelled(&self, there: &BTreeSet<usize>) -> Option<Labelled<usize>> {
        Labelled::group(there.iter().filter_map(|at| self.looked(*at)).collect()).pop()
    }

    /// Returns the shape of the pool after the engine imported the devices `there`; `None` if it refuses.
    fn engine(&self, host: usize, there: &BTreeSet<usize>, degraded: bool, force: bool) -> Option<Shape> {
        let claim = there.iter().filter_map(|at| self.devices[*at].claim).max_by_key(|(_, term, released)| (*term, !released));
        if !force && claim.is_some_and(|(owner, _, released)| usize::from(owner) != host && !released) {
            return None;
        }
        let newest = there.iter().map(|at| &self.devices[*at].shape).max_by_key(|shape| shape.generation)?.clone();
        let apart = |at: &usize| {
            let own = &self.devices[*at].shape;
            let parted = self.devices[*at].member.is_some_and(|member| newest.parted_from(own, MemberId::at(member)));
            (own.generation == newest.generation && *own != newest) || parted
        };
        if there.iter().any(apart) {
            return None;
        }
        let mut after = newest.clone();
        for (member, known) in newest.members.iter().enumerate() {
            let found = there.iter().any(|at| self.devices[*at].member == Some(member) && id(*at) == known.device);
            match (found, known.state) {
                (true, MemberState::Down) => after.members[member].state = MemberState::Filling,
                (false, MemberState::Present | MemberState::Filling) if !degraded => return None,
                (false, _) => after.lose(MemberId::at(member)),
                (true, _) => {}
            }
        }
        let whole = there.iter().any(|at| self.state(&after, *at) == MemberState::Present);
        let behind = there.iter().any(|at| self.devices[*at].shape.generation != newest.generation);
        after.generation += u64::from(after != newest || behind);
        whole.then_some(after)
    }

    /// A host finds some devices, and may die while it claims them. `Err`: an acknowledged flush is not in what it shows.
    fn start(&self, host: usize, there: &BTreeSet<usize>, waited: Duration, decide: Decide, seen: &mut Seen) -> Result<Vec<World>, String> {
        let whole = || (0..self.devices.len()).all(|at| self.devices[at].member.is_none() || there.contains(&at));
        // a host that remembers nothing imports nothing by itself: this is the user's first import of the whole
        if self.memories[host].is_none() && (self.hands || !whole()) {
            return Ok(Vec::new());
        }
        let Some(labelled) = self.labelled(there) else { return Ok(Vec::new()) };
        let evidence = Some(labelled.evidence(Some([host as u8; 16])));
        let there = &labelled.devices().into_iter().collect();
        let degraded = match decide(self.memories[host].as_ref(), evidence.as_ref(), waited, LIMIT) {
            Decision::Import => false,
            Decision::ImportDegraded { .. } => true,
            Decision::WaitUntil(_) => {
                seen.waited += 1;
                return Ok(Vec::new());
            }
            Decision::Refuse(_) => {
                seen.refused += 1;
                return Ok(Vec::new());
            }
        };
        let Some(shape) = self.engine(host, there, degraded, false) else { return Ok(Vec::new()) };
        *if degraded { &mut seen.degraded } else { &mut seen.imported } += 1;
        let shown = self.shown(there, &shape);
        if shown < Some(self.acknowledged) {
            return Err(format!("host {host} with {there:?} shows {shown:?} of {:?}: {self:#?}", self.acknowledged));
        }
        let mut all = self.half_claimed(host, there, &shape);
        let served = self.in_service_on(host, there, shape);
        all.push(if self.memories[host].is_none() { served.by_hand_on(host) } else { served });
        Ok(all)
    }

    /// A host died when its first claims were on all of these devices that are whole, and its second one on one of them. Others get no
    /// claim yet.
    fn half_claimed(&self, host: usize, there: &BTreeSet<usize>, shape: &Shape) -> Vec<World> {
        let term = self.next_term();
        let whole: Vec<usize> = there.iter().copied().filter(|at| self.state(shape, *at) == MemberState::Present).collect();
        let claimed = |second: &usize| {
            let mut next = self.clone();
            whole.iter().for_each(|at| next.devices[*at].taker = Some((host as u8, term)));
            (next.devices[*second].claim, next.devices[*second].taker) = (Some((host as u8, term, false)), None);
            next
        };
        whole.iter().filter(|_| whole.len() > 1).map(claimed).collect()
    }

    /// A term above all that there are.
    fn next_term(&self) -> u64 {
        let second = self.devices.iter().filter_map(|device| device.claim).map(|(_, term, _)| term);
        second.chain(self.devices.iter().filter_map(|device| device.taker).map(|(_, term)| term)).max().unwrap_or(0) + 1
    }

    /// The last flush that whoever reads sees everything of.
    fn shown(&self, there: &BTreeSet<usize>, shape: &Shape) -> Option<Flush> {
        there.iter().filter(|at| self.state(shape, **at) == MemberState::Present).map(|at| self.devices[*at].version).min()
    }

    /// The user takes what is there, whatever is missing and whoever had it last, and the other hosts have to forget the pool where it
    /// is not all.
    fn take(&self, host: usize, there: &BTreeSet<usize>, seen: &mut Seen) -> Option<World> {
        let labelled = self.labelled(there).filter(|_| self.by_hand > 0)?;
        let there: BTreeSet<usize> = labelled.devices().into_iter().collect();
        let shape = self.engine(host, &there, true, true)?;
        let shown = self.shown(&there, &shape)?;
        let evidence = labelled.evidence(Some([host as u8; 16]));
        let mut next = World { by_hand: self.by_hand - 1, ..self.clone() };
        if shown < self.acknowledged {
            seen.forked += 1;
            next.acknowledged = (self.acknowledged.0 + 1, shown.1);
            for at in there.iter().filter(|at| self.state(&shape, **at) == MemberState::Present) {
                next.devices[*at].version = next.acknowledged;
            }
        }
        if shown < self.acknowledged || !evidence.is_whole() {
            next.memories.iter_mut().enumerate().filter(|(other, _)| *other != host).for_each(|(_, memory)| *memory = None);
        }
        Some(next.in_service_on(host, &there, shape).by_hand_on(host))
    }

    /// Records that the pool was imported by hand.
    fn by_hand_on(mut self, host: usize) -> World {
        self.memories[host] = self.memories[host].take().map(LabelsInForce::by_hand);
        self
    }

    fn in_service_on(&self, host: usize, there: &BTreeSet<usize>, shape: Shape) -> World {
        let mut next = self.clone();
        let term = self.next_term();
        for at in there {
            (next.devices[*at].claim, next.devices[*at].taker) = (Some((host as u8, term, false)), None);
        }
        next.label(there, &shape);
        next.remember(host, &shape);
        next.serving = Some((host, there.clone(), shape));
        next
    }

    fn remember(&mut self, host: usize, shape: &Shape) {
        self.memories[host] = Some(in_force(shape).after(self.memories[host].as_ref()));
    }

    fn label(&mut self, on: &BTreeSet<usize>, shape: &Shape) {
        for at in on {
            if matches!(self.state(shape, *at), MemberState::Present | MemberState::Filling) {
                self.devices[*at].shape = shape.clone();
            }
        }
    }

    /// Returns the worlds that can follow while a host has the pool in service.
    fn in_service(&self, host: usize, on: &BTreeSet<usize>, shape: &Shape) -> Vec<World> {
        let mut all = Vec::new();
        let crashed = World { serving: None, ..self.clone() };
        let mut stopped = crashed.clone();
        on.iter().for_each(|at| stopped.devices[*at].claim.iter_mut().for_each(|claim| claim.2 = true));
        all.extend([crashed, stopped]);
        if self.acknowledged.1 < FLUSHES {
            let mut flushed = self.clone();
            flushed.acknowledged.1 += 1;
            for at in on.iter().filter(|at| self.state(shape, **at) == MemberState::Present) {
                flushed.devices[*at].version = flushed.acknowledged;
            }
            all.push(flushed);
        }
        for at in on {
            let mut after = shape.clone();
            let mut left = on.clone();
            let mut changed = self.clone();
            let Some(member) = self.devices[*at].member else { continue };
            match self.state(shape, *at) {
                MemberState::Filling => {
                    after.members[member].state = MemberState::Present;
                    changed.devices[*at].version = self.acknowledged;
                }
                _ if on.iter().any(|other| other != at && self.state(shape, *other) == MemberState::Present) => {
                    after.lose(MemberId::at(member));
                    left.remove(at);
                }
                _ => continue,
            }
            after.generation += 1;
            // the power goes while labels are written, or before the daemon has noted them
            for labelled in left.iter().map(|one| BTreeSet::from([*one])).chain([left.clone()]) {
                let mut crashed = changed.clone();
                crashed.label(&labelled, &after);
                crashed.serving = None;
                all.push(crashed);
            }
            changed.label(&left, &after);
            changed.remember(host, &after);
            changed.serving = Some((host, left, after));
            all.push(changed);
        }
        all.extend(self.replaced(host, on, shape));
        all
    }

    /// Each member replaced by a device that waits for it, which has everything then. The old one has no label any more, when it is there.
    fn replaced(&self, host: usize, on: &BTreeSet<usize>, shape: &Shape) -> Vec<World> {
        let Some(blank) = self.devices.iter().position(|device| device.blank) else { return Vec::new() };
        let replaced = |member: usize| {
            let mut next = self.clone();
            let (mut after, mut left) = (shape.clone(), on.clone());
            // the new device is filled first, which the labels say
            after.generation += 2;
            let known = &mut after.members[member];
            (known.device, known.state) = (id(blank), MemberState::Present);
            if let Some(old) = on.iter().find(|at| self.devices[**at].member == Some(member)) {
                left.remove(old);
                next.devices[*old].member = None;
            }
            left.insert(blank);
            let new = &mut next.devices[blank];
            (new.member, new.blank, new.version, new.claim) = (Some(member), false, self.acknowledged, self.devices[*on.first()?].claim);
            next.label(&left, &after);
            next.remember(host, &after);
            next.serving = Some((host, left, after));
            Some(next)
        };
        (0..shape.members.len()).filter_map(replaced).collect()
    }

    fn next(&self, decide: Decide, seen: &mut Seen) -> Result<Vec<World>, String> {
        if let Some((host, on, shape)) = &self.serving {
            return Ok(self.in_service(*host, on, shape));
        }
        let mut all = Vec::new();
        for host in 0..self.memories.len() {
            for bits in 1..1usize << self.devices.len() {
                let there: BTreeSet<usize> = (0..self.devices.len()).filter(|at| bits & (1 << at) != 0).collect();
                if there.iter().any(|at| self.devices[*at].member.is_none()) {
                    continue;
                }
                all.extend(self.take(host, &there, seen));
                for waited in [Duration::ZERO, LIMIT] {
                    all.extend(self.start(host, &there, waited, decide, seen)?);
                }
            }
        }
        Ok(all)
    }

    /// The same for worlds that differ in nothing that counts: terms by their order.
    fn key(&self) -> String {
        let terms: BTreeSet<u64> = self
            .devices
            .iter()
            .flat_map(|device| [device.claim.map(|(_, term, _)| term), device.taker.map(|(_, term)| term)])
            .flatten()
            .collect();
        let rank = |term: u64| terms.iter().position(|other| *other == term);
        let device = |device: &Device| {
            let members: Vec<_> = device.shape.members.iter().map(|m| (m.device, m.state, m.down_since)).collect();
            let claim = device.claim.map(|(host, term, released)| (host, rank(term), released));
            let taker = device.taker.map(|(host, term)| (host, rank(term)));
            (device.member, device.blank, device.shape.generation, members, device.version, claim, taker)
        };
        let devices: Vec<_> = self.devices.iter().map(device).collect();
        let memories: Vec<_> = self
            .memories
            .iter()
            .map(|memory| {
                memory.as_ref().map(|m| (m.generation, m.current.iter().map(|(_, device)| device).collect::<Vec<_>>(), m.left_behind))
            })
            .collect();
        let serving = self.serving.as_ref().map(|(host, on, _)| (host, on));
        format!("{devices:?}{memories:?}{serving:?}{:?}{}", self.acknowledged, self.by_hand)
    }
}

/// How large a world is.
#[derive(Clone, Copy, Debug)]
struct Size {
    devices: u16,
    /// Devices that may replace one of those.
    blank: usize,
    hosts: usize,
    by_hand: u8,
}

/// Goes through all worlds that so many steps lead to.
fn explore(devices: u16, hosts: usize, steps: usize, decide: Decide) -> Result<Seen, String> {
    explore_sized(Size { devices, blank: 0, hosts, by_hand: 0 }, steps, decide)
}

fn explore_sized(size: Size, steps: usize, decide: Decide) -> Result<Seen, String> {
    explore_from(World::new(size), steps, decide)
}

fn explore_from(first: World, steps: usize, decide: Decide) -> Result<Seen, String> {
    let mut known = BTreeSet::from([first.key()]);
    let mut queue = VecDeque::from([(first, 0)]);
    let mut seen = Seen::default();
    while let Some((world, depth)) = queue.pop_front() {
        seen.worlds += 1;
        if depth == steps {
            continue;
        }
        for next in world.next(decide, &mut seen)? {
            if known.insert(next.key()) {
                queue.push_back((next, depth + 1));
            }
        }
    }
    Ok(seen)
}

#[test]
fn no_import_by_itself_shows_less_than_what_was_acknowledged() {
    for (devices, hosts, steps) in [(2, 1, 12), (2, 2, 9), (3, 1, 7), (3, 2, 6)] {
        let seen = explore(devices, hosts, steps, sound).unwrap_or_else(|why| panic!("{why}"));
        assert!(seen.worlds > 500 && seen.imported > 0 && seen.degraded > 0 && seen.waited > 0 && seen.refused > 0, "{seen:?}");
    }
}

#[test]
fn the_model_finds_decisions_that_are_too_bold() {
    // as a daemon did that remembered nothing
    let bold: Decide =
        |_, found, _, _| found.map_or(Decision::Refuse(Refusal::NothingFound), |_| Decision::ImportDegraded { without: Vec::new() });
    assert!(explore(2, 1, 8, bold).is_err());
    // the generation alone does not tell two histories apart that have the same number
    let by_number: Decide = |memory, found, waited, limit| {
        let memory = memory.map(|memory| LabelsInForce {
            current: (0..9).map(|at| (MemberId(at), DeviceId(100 + u64::from(at)))).collect(),
            ..memory.clone()
        });
        sound(memory.as_ref(), found, waited, limit)
    };
    assert!(explore(2, 2, 12, by_number).is_err() || explore(3, 1, 9, by_number).is_err());
    // nor may a host do without what another one may have written to
    let alone: Decide = |memory, found, waited, limit| {
        let found = found.map(|found| Evidence { other_host: None, ..found.clone() });
        sound(memory, found.as_ref(), waited, limit)
    };
    assert!(explore(2, 2, 9, alone).is_err());
    // or began to take, and died when it had claimed one device
    let half: Decide = |memory, found, waited, limit| {
        let found = found.map(|found| Evidence { taker: None, ..found.clone() });
        sound(memory, found.as_ref(), waited, limit)
    };
    assert!(explore(2, 2, 9, half).is_err());
}

/// A host takes an older device by the user's word; on the other one the pool is whole without it.
const FORKED: Size = Size { devices: 2, blank: 1, hosts: 2, by_hand: 2 };

#[test]
fn what_was_left_behind_is_not_imported_by_itself_whole_or_not() {
    let seen = explore_sized(FORKED, 7, sound).unwrap_or_else(|why| panic!("{why}"));
    assert!(seen.forked > 0 && seen.imported > 0 && seen.degraded > 0 && seen.refused > 0, "{seen:?}");
    // as it was before that devices were left behind was remembered
    let forgetful: Decide = |memory, found, waited, limit| {
        let memory = memory.map(|memory| LabelsInForce { left_behind: false, ..memory.clone() });
        sound(memory.as_ref(), found, waited, limit)
    };
    assert!(explore_sized(FORKED, 7, forgetful).is_err());
}

/// A host took each half of a mirror in turn by the user's word, and made a whole pool of it with another device: of devices 0 and 2, and of
/// devices 1 and 3. The other host knows nothing of either.
fn two_wholes() -> World {
    let mut world = World::new(Size { devices: 2, blank: 2, hosts: 2, by_hand: 3 });
    for half in [0, 1] {
        world = world.take(1, &BTreeSet::from([half]), &mut Seen::default()).expect("taken");
        let (host, on, shape) = world.serving.clone().expect("in service");
        world = world.in_service(host, &on, &shape).swap_remove(2);
        assert_eq!((world.acknowledged.1, world.serving.is_some()), (1, true), "flushed");
        world = world.replaced(host, &on, &shape).swap_remove(1 - half);
        let (host, on, shape) = world.serving.clone().expect("in service");
        world = world.in_service(host, &on, &shape).swap_remove(1);
        assert!(world.serving.is_none() && world.devices.iter().all(|device| device.claim.is_none_or(|claim| claim.2)), "closed");
    }
    world
}

#[test]
fn what_was_left_behind_elsewhere_is_not_imported_by_itself() {
    let seen = explore_from(two_wholes(), 5, sound).unwrap_or_else(|why| panic!("{why}"));
    assert!(seen.imported > 0 && seen.refused > 0, "{seen:?}");
    // as it was before that the user's word was remembered
    let forgetful: Decide = |memory, found, waited, limit| {
        let down = |memory: &LabelsInForce| memory.current.len() < 2;
        let memory = memory.map(|memory| LabelsInForce { left_behind: down(memory), ..memory.clone() });
        sound(memory.as_ref(), found, waited, limit)
    };
    assert!(explore_from(two_wholes(), 5, forgetful).is_err());
}
