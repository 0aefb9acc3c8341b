//! Compares names, counts and links of a catalog with plain lists that are searched from end to end.

use std::rc::Rc;

use super::*;
use crate::space::Pieces;
use millpond_testing::Random;

/// A volume as the twin knows it.
#[derive(Clone, Debug)]
struct PlainVolume {
    id: VolumeId,
    name: String,
    lineage: LineageId,
    reservation: u64,
}

/// A snapshot as the twin knows it.
#[derive(Clone, Debug)]
struct PlainSnapshot {
    id: SnapshotId,
    volume: VolumeId,
    lineage: LineageId,
    name: String,
    epoch: Epoch,
    hidden: bool,
}

/// A lineage as the twin knows it.
#[derive(Clone, Debug)]
struct PlainLine {
    id: LineageId,
    volume: VolumeId,
    origin: Option<SnapshotId>,
    has_head: bool,
    owned: u64,
}

struct Twin {
    catalog: Catalog,
    pieces: Rc<Pieces>,
    volumes: Vec<PlainVolume>,
    snapshots: Vec<PlainSnapshot>,
    lines: Vec<PlainLine>,
    next: u64,
    random: Random,
}

fn volume(name: &str, lineage: LineageId) -> Volume {
    Volume {
        name: name.to_owned(),
        size: 1 << 20,
        sector: SectorProfile::S512e,
        cache: CacheMode::None,
        compression: Compression::Off,
        read_only: false,
        lineage,
        created: 0,
    }
}

impl Twin {
    fn new(seed: u64) -> Twin {
        Twin {
            catalog: Catalog::default(),
            pieces: Pieces::new(512, 512, usize::MAX, None),
            volumes: Vec::new(),
            snapshots: Vec::new(),
            lines: Vec::new(),
            next: 1,
            random: Random::new(seed),
        }
    }

    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A name of any length; names of removed things are used again.
    fn name(&mut self) -> String {
        "ab".repeat(1 + self.random.below(9) as usize)
    }

    fn any_volume(&mut self) -> Option<PlainVolume> {
        self.random.pick(self.volumes.iter()).cloned()
    }

    fn any_snapshot(&mut self) -> Option<PlainSnapshot> {
        self.random.pick(self.snapshots.iter()).cloned()
    }

    fn line(&mut self, id: LineageId) -> &mut PlainLine {
        self.lines.iter_mut().find(|line| line.id == id).expect("it was added")
    }

    fn is_volume(&self, id: VolumeId) -> bool {
        self.volumes.iter().any(|volume| volume.id == id)
    }

    /// Adds a volume, as a clone of a snapshot if there is one.
    fn add_volume(&mut self) {
        let (name, id) = (self.name(), self.next());
        if self.volumes.iter().any(|volume| volume.name == name) {
            return;
        }
        let (id, lineage) = (VolumeId(id as u32), LineageId(id));
        let origin = self.any_snapshot().filter(|_| self.random.once_in(2));
        self.catalog.add_volume(id, volume(&name, lineage));
        self.volumes.push(PlainVolume { id, name, lineage, reservation: 0 });
        self.add_line(lineage, id, origin);
    }

    fn add_line(&mut self, id: LineageId, volume: VolumeId, origin: Option<PlainSnapshot>) {
        let (origin, origin_epoch) = origin.map_or((None, Epoch(0)), |origin| (Some(origin.id), origin.epoch));
        if let Some(origin) = origin.and_then(|origin| self.catalog.snapshots.get_mut(&origin)) {
            origin.children.push(id);
        }
        let line = Lineage {
            volume,
            origin,
            origin_epoch,
            snapshots: BTreeSet::new(),
            head: Some(Head::default()),
            deadlist: StoredDeadlist::default(),
            last_snap: origin_epoch,
            owned_units: 0,
        };
        self.catalog.insert_lineage(id, line);
        self.lines.push(PlainLine { id, volume, origin, has_head: true, owned: 0 });
    }

    fn rename_volume(&mut self) {
        let (name, found) = (self.name(), self.any_volume());
        let Some(old) = found.filter(|_| self.volumes.iter().all(|volume| volume.name != name)) else { return };
        self.catalog.rename_volume(old.id, name.clone());
        let volume = self.volumes.iter_mut().find(|volume| volume.id == old.id);
        volume.expect("it was added").name = name;
    }

    /// Removes a volume; its lineages stay.
    fn remove_volume(&mut self) {
        let Some(old) = self.any_volume() else { return };
        let removed = self.catalog.remove_volume(old.id).expect("it was added");
        assert_eq!((removed.name, removed.lineage), (old.name, old.lineage));
        self.volumes.retain(|volume| volume.id != old.id);
        self.line(old.lineage).has_head = false;
        self.catalog.lineages.get_mut(&old.lineage).expect("it was added").head = None;
    }

    fn add_snapshot(&mut self) {
        let (name, found) = (self.name(), self.any_volume());
        let Some(of) = found else { return };
        if self.snapshots.iter().any(|s| s.volume == of.id && s.name == name && !s.hidden) {
            return;
        }
        let id = SnapshotId(self.next());
        let epoch = Epoch(id.0);
        let snapshot = Snapshot {
            lineage: of.lineage,
            volume: of.id,
            name: name.clone(),
            epoch,
            root: TreeRoot::default(),
            mapped: 0,
            size: 0,
            created: 0,
            expires: None,
            description: String::new(),
            holds: Vec::new(),
            tags: Vec::new(),
            hidden: false,
            deadlist: StoredDeadlist::default(),
            children: Vec::new(),
        };
        self.catalog.lineages.get_mut(&of.lineage).expect("it was added").snapshots.insert(id);
        if self.random.once_in(4) {
            self.catalog.load_snapshot(id, snapshot);
        } else {
            self.catalog.add_snapshot(id, snapshot);
        }
        self.snapshots.push(PlainSnapshot { id, volume: of.id, lineage: of.lineage, name, epoch, hidden: false });
    }

    fn change_snapshot(&mut self) {
        let (name, found) = (self.name(), self.any_snapshot());
        let Some(old) = found else { return };
        let of = self.any_volume();
        let taken = |volume: VolumeId, name: &str| self.snapshots.iter().any(|s| s.volume == volume && s.name == name && !s.hidden);
        let snapshot = self.snapshots.iter().position(|s| s.id == old.id).expect("it was added");
        match self.random.below(3) {
            0 if !old.hidden && !taken(old.volume, &name) => {
                self.catalog.rename_snapshot(old.id, name.clone());
                self.snapshots[snapshot].name = name;
            }
            1 => {
                self.catalog.hide_snapshot(old.id);
                self.snapshots[snapshot].hidden = true;
            }
            _ => {
                // a promotion moves it to another volume
                let Some(of) = of.filter(|of| !old.hidden && of.id != old.volume && !taken(of.id, &old.name)) else { return };
                self.catalog.rename_owner(old.volume, of.id, old.id, old.name.clone());
                self.catalog.snapshots.get_mut(&old.id).expect("it was added").volume = of.id;
                self.snapshots[snapshot].volume = of.id;
            }
        }
    }

    /// Removes a snapshot that nothing starts from.
    fn remove_snapshot(&mut self) {
        let Some(old) = self.any_snapshot().filter(|old| old.hidden) else { return };
        if self.lines.iter().any(|line| line.origin == Some(old.id)) {
            return;
        }
        self.catalog.snapshots.remove(&old.id);
        self.catalog.lineages.get_mut(&old.lineage).expect("it was added").snapshots.remove(&old.id);
        self.snapshots.retain(|s| s.id != old.id);
    }

    /// Removes a lineage without versions.
    fn remove_line(&mut self) {
        let of_line = |line: &PlainLine| self.snapshots.iter().any(|s| s.lineage == line.id);
        let Some(old) = self.lines.iter().find(|line| !line.has_head && !of_line(line)).cloned() else { return };
        let removed = self.catalog.remove_lineage(old.id).expect("it was added");
        assert_eq!((removed.volume, removed.owned_units), (old.volume, old.owned));
        if let Some(origin) = old.origin.and_then(|origin| self.catalog.snapshots.get_mut(&origin)) {
            origin.children.retain(|child| *child != old.id);
        }
        self.lines.retain(|line| line.id != old.id);
    }

    fn owned(&mut self) {
        let Some(line) = self.random.pick(self.lines.iter()).cloned() else { return };
        let units = self.random.below(50_000);
        if self.random.once_in(2) {
            assert!(self.catalog.grow(line.id, units).is_some());
            self.line(line.id).owned += units;
        } else {
            self.catalog.shrink(line.id, units);
            self.line(line.id).owned -= units.min(line.owned);
        }
    }

    fn options(&mut self) {
        let Some(of) = self.any_volume() else { return };
        let reservation = if self.random.once_in(3) { 0 } else { self.random.below(40 << 20) };
        self.catalog.set_options(of.id, VolumeOptions { reservation, ..VolumeOptions::default() });
        let volume = self.volumes.iter_mut().find(|volume| volume.id == of.id);
        volume.expect("it was added").reservation = reservation;
    }

    /// Adds a list of dead blocks that is freed later, or frees the first ones.
    fn frees(&mut self) {
        let Some(line) = self.random.pick(self.lines.iter()).cloned() else { return };
        if self.random.once_in(2) {
            let mut list = Deadlist::default();
            for slot in 0..1 + self.random.small(5) {
                let addr = millpond_format::Addr::new(millpond_format::ChunkId(self.next()), slot, 8, millpond_format::Coding::Raw);
                list.insert(Epoch(1), addr, 1, true, &self.pieces, usize::MAX);
            }
            self.catalog.add_free(line.id, StoredDeadlist::new(Rc::new(list), &self.pieces));
        }
        for _ in 0..self.random.below(8) {
            let Some((at, (_, list))) = self.catalog.next_free() else { break };
            let popped = list.list_mut(&self.pieces).pop();
            match popped {
                Some((_, dead)) => self.catalog.backlog -= u64::from(dead.units),
                None => _ = self.catalog.end_free(at),
            }
        }
    }

    fn step(&mut self) {
        match self.random.below(20) {
            0..3 => self.add_volume(),
            3 => self.rename_volume(),
            4 if self.volumes.len() > 4 => self.remove_volume(),
            4..9 => self.add_snapshot(),
            9..14 => self.change_snapshot(),
            14 => self.remove_snapshot(),
            15 => self.remove_line(),
            16 | 17 => self.owned(),
            18 => self.options(),
            _ => self.frees(),
        }
    }

    /// True when a line, or one that starts from it, has a head or a listed snapshot of a volume.
    fn is_needed(&self, line: &PlainLine) -> bool {
        let mut own = self.snapshots.iter().filter(|s| s.lineage == line.id);
        let below = |s: &PlainSnapshot| self.lines.iter().any(|line| line.origin == Some(s.id) && self.is_needed(line));
        self.is_volume(line.volume) && (line.has_head || own.any(|s| (!s.hidden && self.is_volume(s.volume)) || below(s)))
    }

    fn compare_volumes(&mut self) {
        let names = self.volumes.iter().map(|volume| volume.name.len()).sum::<usize>();
        assert_eq!(self.catalog.names(), names);
        let name = self.name();
        let named = self.volumes.iter().find(|volume| volume.name == name).map(|volume| volume.id);
        assert_eq!(self.catalog.volume_named(&name), named);
        let mut ids: BTreeSet<VolumeId> = self.lines.iter().map(|line| line.volume).collect();
        ids.extend(self.snapshots.iter().map(|s| s.volume).chain(self.volumes.iter().map(|volume| volume.id)));
        ids.insert(VolumeId(self.next as u32 + 1));
        for id in ids {
            let mut listed: Vec<&PlainSnapshot> = self.snapshots.iter().filter(|s| s.volume == id && !s.hidden).collect();
            listed.sort_by(|a, b| a.name.cmp(&b.name));
            assert!(self.catalog.snapshot_names_of(id).eq(listed.iter().map(|s| (s.name.as_str(), s.id))), "names of volume {id}");
            assert_eq!(self.catalog.snapshot_count(id), listed.len() as u64, "snapshots of volume {id}");
            let named = listed.iter().find(|s| s.name == name).map(|s| s.id);
            assert_eq!(self.catalog.snapshot_named(id, &name), named);
            let owned: u64 = self.lines.iter().filter(|line| line.volume == id).map(|line| line.owned).sum();
            assert_eq!(self.catalog.owned_units(id), owned);
            let volume = self.volumes.iter().find(|volume| volume.id == id);
            assert_eq!(self.catalog.head(id).map(|(_, line)| line.volume), volume.map(|volume| volume.id));
            assert_eq!(self.catalog.options_of(id).reservation, volume.map_or(0, |volume| volume.reservation));
        }
        for but in self.volumes.iter().map(|volume| volume.id) {
            let others = self.volumes.iter().filter(|volume| volume.id != but);
            let missing = others.map(|volume| Reservations::missing_for(volume.reservation, self.catalog.owned_units(volume.id))).sum();
            assert_eq!(self.catalog.reservations.missing_of_others(but), missing, "all but volume {but}");
        }
        let others = self.volumes.iter().filter(|volume| volume.reservation > 0).count();
        assert_eq!(self.catalog.options().len(), others);
    }

    fn compare_snapshots(&self) {
        for plain in &self.snapshots {
            let listed = !plain.hidden && self.is_volume(plain.volume);
            assert_eq!(self.catalog.listed(plain.id).is_some(), listed);
            let line = &self.catalog.lineages[&plain.lineage];
            let mut others: Vec<&PlainSnapshot> = self.snapshots.iter().filter(|s| s.lineage == plain.lineage).collect();
            others.sort_by_key(|s| s.id);
            let at = others.iter().position(|s| s.id == plain.id).expect("it is one of them");
            let (before, after) = (at.checked_sub(1).map(|at| others[at]), others.get(at + 1));
            assert_eq!(Catalog::before(line, plain.id), before.map(|s| s.id));
            assert_eq!(Catalog::after(line, plain.id), after.map(|s| s.id));
            let epoch = before.map_or(line.origin_epoch, |s| s.epoch);
            assert_eq!(self.catalog.epoch_before(line, plain.id), epoch);
            let children = self.lines.iter().filter(|line| line.origin == Some(plain.id));
            let clones = children.filter(|line| line.volume != plain.volume && self.is_needed(line));
            let clones: BTreeSet<VolumeId> = clones.map(|line| line.volume).collect();
            assert_eq!(self.catalog.clones_of(plain.id) as usize, clones.len(), "clones of {}", plain.id);
        }
    }

    fn compare_frees(&mut self) {
        let units: u64 = self.catalog.frees.iter().map(|(_, list)| list.list().units()).sum();
        assert_eq!((self.catalog.backlog, self.catalog.has_uncounted_frees()), (units, false));
        assert_eq!(self.catalog.has_frees(), !self.catalog.frees.is_empty());
        let most = 1 + self.random.below(4) as usize;
        let gone: Vec<&PlainLine> = self.lines.iter().filter(|line| !self.is_volume(line.volume)).collect();
        let of_line = |line: &&PlainLine| {
            let mut left: Vec<SnapshotId> = self.snapshots.iter().filter(|s| s.lineage == line.id && !s.hidden).map(|s| s.id).collect();
            left.sort_unstable();
            left.truncate(most);
            Some(left).filter(|left| !left.is_empty())
        };
        let next = gone.iter().rev().find_map(of_line).unwrap_or_default();
        // as an import does
        self.catalog.find_removed();
        assert_eq!(self.catalog.next_removed(most), next);
    }
}

/// Compares a catalog with lists while volumes, snapshots and lineages come and go.
#[test]
fn a_catalog_is_a_few_lists() {
    for seed in 0..3 {
        let mut twin = Twin::new(seed);
        for _ in 0..400 {
            twin.step();
            twin.compare_volumes();
            twin.compare_snapshots();
            twin.compare_frees();
        }
        assert!(twin.snapshots.len() > 10 && twin.volumes.len() > 3, "{} snapshots are left", twin.snapshots.len());
    }
}
