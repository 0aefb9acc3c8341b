//! A small world of devices, hosts and what they remember, gone through exhaustively: no import that a daemon does by itself shows a state
//! older than a flush that was acknowledged.
//!
//! Devices are absent in any combination; they are given up in service and filled again; hosts crash or stop at any point, also between new labels
//! and what is remembered of them. Labels and what is read of them are the real ones; of the engine its rules are here: the newest label holds,
//! labels that contradict each other are refused, and so is what another host has not closed.

use std::collections::{BTreeSet, VecDeque};

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

#[derive(Clone, Debug)]
struct Device {
    shape: Shape,
    /// The last flush that it has everything of.
    version: u8,
    claim: Option<(u8, u64, bool)>,
}

#[derive(Clone, Debug)]
struct World {
    devices: Vec<Device>,
    memories: Vec<Option<LabelsInForce>>,
    /// The host that has the pool, its devices, and the shape in force.
    serving: Option<(usize, BTreeSet<usize>, Shape)>,
    acknowledged: u8,
}

/// What happened, to tell that everything was reached.
#[derive(Debug, Default)]
struct Seen {
    worlds: usize,
    imported: usize,
    degraded: usize,
    waited: usize,
    refused: usize,
}

fn shape(devices: u16) -> Shape {
    let member = |at| Member {
        device: DeviceId(100 + u64::from(at)),
        extents: 4,
        state: MemberState::Present,
        successor: None,
        leaving: false,
        down_since: 0,
    };
    let columns = (0..devices).map(|member| Column { member, first: 0, extents: 4 }).collect();
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

fn state(shape: &Shape, at: usize) -> MemberState {
    shape.members[at].state
}

fn in_force(shape: &Shape) -> LabelsInForce {
    let members = (0u16..).zip(&shape.members).filter(|(_, m)| m.state == MemberState::Present);
    LabelsInForce { generation: shape.generation, current: members.map(|(at, m)| (at, m.device)).collect() }
}

impl World {
    fn new(devices: u16, hosts: usize) -> World {
        // made by the first host and closed; a pool is remembered from when it was made or imported by hand, whole
        let device = Device { shape: shape(devices), version: 0, claim: Some((0, 1, true)) };
        let mut memories = vec![None; hosts];
        memories[0] = Some(in_force(&device.shape));
        World { devices: vec![device; usize::from(devices)], memories, serving: None, acknowledged: 0 }
    }

    fn looked(&self, at: usize) -> Looked<usize> {
        let device = &self.devices[at];
        let member = u16::try_from(at).expect("few");
        let label = Label { pool: POOL, name: "tank".to_owned(), device: DeviceId(100 + at as u64), member, shape: device.shape.clone() };
        let claim = device.claim.map(|(host, term, released)| Claim {
            pool: POOL,
            holder: Holder { host: [host; 16], name: host.to_string(), session: [0; 16] },
            term,
            beat: 0,
            time: 0,
            lease: 1000,
            released,
        });
        Looked { place: at, label, claim, seen: None }
    }

    /// What the engine makes of the devices there: the shape from then on; `None` when it refuses.
    fn engine(&self, host: usize, there: &BTreeSet<usize>, degraded: bool) -> Option<Shape> {
        let claim = there.iter().filter_map(|at| self.devices[*at].claim).max_by_key(|(_, term, released)| (*term, !released));
        if claim.is_some_and(|(owner, _, released)| usize::from(owner) != host && !released) {
            return None;
        }
        let newest = there.iter().map(|at| &self.devices[*at].shape).max_by_key(|shape| shape.generation)?.clone();
        let apart = |at: &usize| {
            let own = &self.devices[*at].shape;
            (own.generation == newest.generation && *own != newest) || newest.parted_from(own, *at)
        };
        if there.iter().any(apart) {
            return None;
        }
        let mut after = newest.clone();
        for at in 0..self.devices.len() {
            match (there.contains(&at), state(&newest, at)) {
                (true, MemberState::Down) => after.members[at].state = MemberState::Filling,
                (false, MemberState::Present | MemberState::Filling) if !degraded => return None,
                (false, _) => after.lose(at),
                (true, _) => {}
            }
        }
        let whole = there.iter().any(|at| state(&after, *at) == MemberState::Present);
        let behind = there.iter().any(|at| self.devices[*at].shape.generation != newest.generation);
        after.generation += u64::from(after != newest || behind);
        whole.then_some(after)
    }

    /// A host finds some devices. `Err`: an acknowledged flush is not in what it shows.
    fn start(
        &self,
        host: usize,
        there: &BTreeSet<usize>,
        waited: Duration,
        decide: Decide,
        seen: &mut Seen,
    ) -> Result<Option<World>, String> {
        if self.memories[host].is_none() && there.len() < self.devices.len() {
            return Ok(None);
        }
        let labelled = Labelled::group(there.iter().map(|at| self.looked(*at)).collect());
        let evidence = labelled.first().map(|found| found.evidence(Some([host as u8; 16])));
        let degraded = match decide(self.memories[host].as_ref(), evidence.as_ref(), waited, LIMIT) {
            Decision::Import => false,
            Decision::ImportDegraded { .. } => true,
            Decision::WaitUntil(_) => {
                seen.waited += 1;
                return Ok(None);
            }
            Decision::Refuse(_) => {
                seen.refused += 1;
                return Ok(None);
            }
        };
        let Some(shape) = self.engine(host, there, degraded) else { return Ok(None) };
        *if degraded { &mut seen.degraded } else { &mut seen.imported } += 1;
        let shown = there.iter().filter(|at| state(&shape, **at) == MemberState::Present).map(|at| self.devices[*at].version).min();
        if shown < Some(self.acknowledged) {
            return Err(format!("host {host} with {there:?} shows {shown:?} of {}: {self:#?}", self.acknowledged));
        }
        let mut next = self.clone();
        let term = self.devices.iter().filter_map(|device| device.claim).map(|(_, term, _)| term).max().unwrap_or(0) + 1;
        for at in there {
            next.devices[*at].claim = Some((host as u8, term, false));
        }
        next.label(there, &shape);
        next.memories[host] = Some(in_force(&shape));
        next.serving = Some((host, there.clone(), shape));
        Ok(Some(next))
    }

    fn label(&mut self, on: &BTreeSet<usize>, shape: &Shape) {
        for at in on.iter().filter(|at| matches!(state(shape, **at), MemberState::Present | MemberState::Filling)) {
            self.devices[*at].shape = shape.clone();
        }
    }

    /// What may happen while a host has the pool.
    fn in_service(&self, host: usize, on: &BTreeSet<usize>, shape: &Shape) -> Vec<World> {
        let mut all = Vec::new();
        let crashed = World { serving: None, ..self.clone() };
        let mut stopped = crashed.clone();
        on.iter().for_each(|at| stopped.devices[*at].claim.iter_mut().for_each(|claim| claim.2 = true));
        all.extend([crashed, stopped]);
        if self.acknowledged < FLUSHES {
            let mut flushed = self.clone();
            flushed.acknowledged += 1;
            for at in on.iter().filter(|at| state(shape, **at) == MemberState::Present) {
                flushed.devices[*at].version = flushed.acknowledged;
            }
            all.push(flushed);
        }
        for at in on {
            let mut after = shape.clone();
            let mut left = on.clone();
            let mut changed = self.clone();
            match state(shape, *at) {
                MemberState::Filling => {
                    after.members[*at].state = MemberState::Present;
                    changed.devices[*at].version = self.acknowledged;
                }
                _ if on.iter().any(|other| other != at && state(shape, *other) == MemberState::Present) => {
                    after.lose(*at);
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
            changed.memories[host] = Some(in_force(&after));
            changed.serving = Some((host, left, after));
            all.push(changed);
        }
        all
    }

    fn next(&self, decide: Decide, seen: &mut Seen) -> Result<Vec<World>, String> {
        if let Some((host, on, shape)) = &self.serving {
            return Ok(self.in_service(*host, on, shape));
        }
        let mut all = Vec::new();
        for host in 0..self.memories.len() {
            for bits in 1..1usize << self.devices.len() {
                let there = (0..self.devices.len()).filter(|at| bits & (1 << at) != 0).collect();
                for waited in [Duration::ZERO, LIMIT] {
                    all.extend(self.start(host, &there, waited, decide, seen)?);
                }
            }
        }
        Ok(all)
    }

    /// The same for worlds that differ in nothing that counts: terms by their order.
    fn key(&self) -> String {
        let terms: BTreeSet<u64> = self.devices.iter().filter_map(|device| device.claim).map(|(_, term, _)| term).collect();
        let rank = |term: u64| terms.iter().position(|other| *other == term);
        let device = |device: &Device| {
            let members: Vec<_> = device.shape.members.iter().map(|m| (m.state, m.down_since)).collect();
            (device.shape.generation, members, device.version, device.claim.map(|(host, term, released)| (host, rank(term), released)))
        };
        let devices: Vec<_> = self.devices.iter().map(device).collect();
        let memories: Vec<_> = self
            .memories
            .iter()
            .map(|memory| memory.as_ref().map(|m| (m.generation, m.current.iter().map(|(at, _)| at).collect::<Vec<_>>())))
            .collect();
        let serving = self.serving.as_ref().map(|(host, on, _)| (host, on));
        format!("{devices:?}{memories:?}{serving:?}{}", self.acknowledged)
    }
}

/// Goes through all worlds that so many steps lead to.
fn explore(devices: u16, hosts: usize, steps: usize, decide: Decide) -> Result<Seen, String> {
    let first = World::new(devices, hosts);
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
        let memory = memory
            .map(|memory| LabelsInForce { current: (0..9).map(|at| (at, DeviceId(100 + u64::from(at)))).collect(), ..memory.clone() });
        sound(memory.as_ref(), found, waited, limit)
    };
    assert!(explore(2, 2, 12, by_number).is_err() || explore(3, 1, 9, by_number).is_err());
    // nor may a host do without what another one may have written to
    let alone: Decide = |memory, found, waited, limit| {
        let found = found.map(|found| Evidence { other_host: None, ..found.clone() });
        sound(memory, found.as_ref(), waited, limit)
    };
    assert!(explore(2, 2, 9, alone).is_err());
}
