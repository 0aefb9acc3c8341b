//! Random operations, including crashes of the daemon, compared with maps of block to version.

use std::collections::BTreeMap;

use millpond_block::Op;
use millpond_engine::{CatalogCommand, Command, Compression, Layout, Reply, SnapshotId, Target, VolumeId, VolumeInfo};

use crate::census::census;
use crate::harness::Harness;
use millpond_testing::Random;

type Content = BTreeMap<u64, u64>;

struct Model {
    harness: Harness,
    random: Random,
    volumes: BTreeMap<VolumeId, Content>,
    snapshots: BTreeMap<SnapshotId, (VolumeId, Content)>,
    /// Every snapshot that ever existed: its volume (also a former one), and the snapshot before
    /// it.
    links: BTreeMap<SnapshotId, (VolumeId, Option<SnapshotId>)>,
    /// The last snapshot before each head.
    bases: BTreeMap<VolumeId, Option<SnapshotId>>,
    names: u64,
    stamp: u64,
}

const BLOCKS: u64 = 1400;

impl Model {
    fn pick(&mut self, n: u64) -> u64 {
        self.random.below(n)
    }

    fn any_volume(&mut self) -> VolumeId {
        let n = self.pick(self.volumes.len() as u64) as usize;
        *self.volumes.keys().nth(n).unwrap()
    }

    fn any_snapshot(&mut self) -> Option<SnapshotId> {
        let n = self.pick(self.snapshots.len() as u64) as usize;
        self.snapshots.keys().nth(n).copied()
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("n{}", self.names)
    }

    fn content(version: u64) -> Vec<u8> {
        if version == 0 { vec![0; 4096] } else { version.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes().repeat(512) }
    }

    fn step(&mut self) {
        match self.pick(100) {
            0..55 => {
                let (volume, block, count) = (self.any_volume(), self.pick(BLOCKS - 8), 1 + self.pick(8));
                let mut bytes = Vec::new();
                for i in 0..count {
                    self.stamp += 1;
                    bytes.extend(Model::content(self.stamp));
                    self.volumes.get_mut(&volume).unwrap().insert(block + i, self.stamp);
                }
                self.harness.request(Target::Head(volume), Op::Write, block * 4096, count * 4096, &bytes).unwrap();
            }
            55..65 => {
                let (volume, block) = (self.any_volume(), self.pick(BLOCKS));
                let count = (1 + self.pick(600)).min(BLOCKS - block);
                self.harness.request(Target::Head(volume), Op::Discard, block * 4096, count * 4096, &[]).unwrap();
                self.volumes.get_mut(&volume).unwrap().retain(|b, _| *b < block || *b >= block + count);
            }
            65..77 => {
                let (volume, name) = (self.any_volume(), self.name());
                let id = self.harness.snapshot(volume, &name);
                let content = self.volumes[&volume].clone();
                self.snapshots.insert(id, (volume, content));
                self.link(volume, id);
            }
            77..89 => {
                let Some(id) = self.any_snapshot() else { return };
                match self.harness.command(CatalogCommand::DestroySnapshots { snapshots: vec![id] }) {
                    Ok(_) => drop(self.snapshots.remove(&id)),
                    Err(error) => assert!(error.to_string().contains("clones"), "{error}"),
                }
            }
            89..91 => {
                let Some(id) = self.any_snapshot() else { return };
                let keep_as = self.name();
                let (volume, content) = self.snapshots[&id].clone();
                let reply = self.harness.command(CatalogCommand::Rollback { snapshot: id, keep_as }).unwrap();
                let Reply::Snapshots(kept) = reply else { panic!() };
                let old = self.volumes.insert(volume, content).unwrap();
                self.snapshots.insert(kept[0], (volume, old));
                self.link(volume, kept[0]);
                self.bases.insert(volume, Some(id));
            }
            91..93 if self.volumes.len() < 5 => {
                let Some(id) = self.any_snapshot() else { return };
                let name = self.name();
                let Reply::Volume(volume) = self.harness.command(CatalogCommand::Clone { snapshot: id, name }).unwrap() else { panic!() };
                let content = self.snapshots[&id].1.clone();
                self.volumes.insert(volume, content);
                self.bases.insert(volume, Some(id));
            }
            93..95 if self.volumes.len() > 1 => {
                let volume = self.any_volume();
                if self.harness.command(CatalogCommand::DestroyVolume { volume }).is_ok() {
                    self.volumes.remove(&volume);
                    self.snapshots.retain(|_, (v, _)| *v != volume);
                }
            }
            95 => self.promote(),
            96 => {
                let (volume, block) = (self.any_volume(), self.pick(BLOCKS));
                let got = self.harness.request(Target::Head(volume), Op::Read, block * 4096, 4096, &[]).unwrap();
                let version = self.volumes[&volume].get(&block).copied().unwrap_or(0);
                assert!(got == Model::content(version), "block {block} of volume {volume}");
            }
            97 => {
                self.harness.command(Command::Checkpoint).unwrap();
            }
            98 => self.harness.audit(),
            _ => {
                self.harness.reopen();
                self.harness.audit();
            }
        }
    }

    fn link(&mut self, volume: VolumeId, id: SnapshotId) {
        let before = self.bases.insert(volume, Some(id)).flatten();
        self.links.insert(id, (volume, before));
    }

    /// The versions that must move: those before the first version of another volume, as long as
    /// they belong to that volume.
    fn promote(&mut self) {
        let volume = self.any_volume();
        let mut at = self.bases.get(&volume).copied().flatten();
        while let Some(id) = at.filter(|id| self.links[id].0 == volume) {
            at = self.links[&id].1;
        }
        let command = Command::Catalog(CatalogCommand::Promote { volume, dry_run: self.pick(5) == 0 });
        let owned = |model: &Model| -> u64 { model.harness.engine.volumes().iter().map(|v| v.unique_bytes).sum() };
        let before = owned(self);
        let reply = self.harness.command(command.clone());
        let Some(first) = at else {
            assert!(reply.unwrap_err().to_string().contains("not a clone"));
            return;
        };
        let from = self.links[&first].0;
        let mut moved = Vec::new();
        while let Some(id) = at.filter(|id| self.links[id].0 == from) {
            moved.push(id);
            at = self.links[&id].1;
        }
        moved.sort();
        let listed: Vec<SnapshotId> = moved.iter().copied().filter(|id| self.snapshots.contains_key(id)).collect();
        let Ok(Reply::Promotion(plan)) = reply else { panic!("{reply:?}") };
        assert_eq!((plan.from, plan.snapshots), (from, listed), "promotion of {volume} with {moved:?}");
        if matches!(command, Command::Catalog(CatalogCommand::Promote { dry_run: true, .. })) {
            return;
        }
        for id in moved {
            self.links.get_mut(&id).unwrap().0 = volume;
            self.snapshots.entry(id).and_modify(|(of, _)| *of = volume);
        }
        assert_eq!(owned(self), before, "what all volumes own together");
        for snapshot in self.harness.engine.snapshots() {
            assert_eq!(snapshot.volume, self.snapshots[&snapshot.id].0);
        }
    }

    /// The census counts the blocks that volumes own.
    fn count(&mut self) {
        let counted = census(&mut self.harness);
        let of = |id: VolumeId| counted.volumes.iter().find(|of| of.volume == id).map_or(0, |of| of.sizes.iter().sum());
        let listed: Vec<(u64, u64)> = self.harness.engine.volumes().iter().map(|v| (of(v.id), v.unique_bytes)).collect();
        assert!(listed.iter().all(|(counted, owned)| counted == owned), "{listed:?}");
        let mut parts: Vec<VolumeInfo> = Vec::new();
        loop {
            let part = self.harness.engine.volumes_after(parts.last().map(|volume| volume.id), 2);
            if part.is_empty() {
                break;
            }
            parts.extend(part);
        }
        assert_eq!(parts, self.harness.engine.volumes(), "the list in parts");
    }

    fn verify(&mut self) {
        let heads: Vec<_> = self.volumes.iter().map(|(id, c)| (Target::Head(*id), c.clone())).collect();
        let snaps: Vec<_> = self.snapshots.iter().map(|(id, (_, c))| (Target::Snapshot(*id), c.clone())).collect();
        for (target, content) in heads.into_iter().chain(snaps) {
            for start in (0..BLOCKS).step_by(256) {
                let count = 256.min(BLOCKS - start);
                let got = self.harness.request(target, Op::Read, start * 4096, count * 4096, &[]).unwrap();
                for i in 0..count {
                    let version = content.get(&(start + i)).copied().unwrap_or(0);
                    let here = &got[i as usize * 4096..(i as usize + 1) * 4096];
                    assert!(here == Model::content(version), "block {} of {target:?}", start + i);
                }
            }
        }
    }
}

fn run(seed: u64, steps: usize) {
    let mut harness = Harness::new(&[40], Layout::Linear);
    harness.tuning.map_memory = 1 << 20;
    let compression = if seed.is_multiple_of(3) { Compression::Lz4 } else { Compression::Off };
    let first = harness.volume("disk0", BLOCKS * 4096, compression);
    let volumes = BTreeMap::from([(first, Content::new())]);
    let mut model = Model {
        harness,
        random: Random::new(seed),
        volumes,
        snapshots: BTreeMap::new(),
        links: BTreeMap::new(),
        bases: BTreeMap::new(),
        names: 0,
        stamp: 0,
    };
    for _ in 0..steps {
        model.step();
        if model.snapshots.len() > 40 {
            let Some(id) = model.any_snapshot() else { continue };
            if model.harness.command(CatalogCommand::DestroySnapshots { snapshots: vec![id] }).is_ok() {
                model.snapshots.remove(&id);
            }
        }
    }
    model.verify();
    model.harness.audit();
    if compression == Compression::Off {
        model.count();
    }
    model.harness.reopen();
    model.verify();
    model.harness.audit();
}

#[test]
fn random_operations_match_the_model() {
    for seed in 1..=24 {
        run(seed, 400);
    }
}
