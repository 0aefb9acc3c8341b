//! Volumes that change, grow and shrink; backups or publications, prunes and verifications that stop at
//! any step, with or without a power cut; chunks that rot.

use super::*;
use crate::record::encode;

/// A volume of which backups are made, or publications.
struct World {
    purpose: Purpose,
    /// A planted mistake: prunes work as those of a program that takes it for a target of backups.
    foreign_prunes: bool,
    shared: Arc<Mutex<Shared>>,
    rng: Random,
    head: Content,
    /// Snapshots of the pool, oldest first.
    pool: Vec<u64>,
    /// Content of all snapshots that were ever taken.
    truth: BTreeMap<u64, Content>,
    /// Backups that cannot be restored as a whole.
    damaged: BTreeSet<String>,
    /// Backups that a command has acknowledged, and that no prune was to delete.
    acknowledged: BTreeSet<String>,
}

fn number(name: &str) -> u64 {
    name.rsplit('s').next().and_then(|number| number.parse().ok()).expect("a number")
}

impl World {
    fn new(seed: u64, purpose: Purpose) -> World {
        let mut rng = Random::new(seed);
        let parts = 2 + rng.below(20) as usize;
        let shared = Arc::new(Mutex::new(Shared::default()));
        World {
            purpose,
            foreign_prunes: false,
            shared,
            rng,
            head: Content::of(purpose, vec![0; parts]),
            pool: Vec::new(),
            truth: BTreeMap::new(),
            damaged: BTreeSet::new(),
            acknowledged: BTreeSet::new(),
        }
    }

    fn open(&self) -> Result<Target, BackupError> {
        target_of(self.purpose, || Box::new(Memory::new(&self.shared)))
    }

    /// The guest writes, the volume is resized, a snapshot is taken, others are destroyed.
    fn change(&mut self) {
        for _ in 0..self.rng.below(4) {
            let at = self.rng.below(self.head.values.len() as u64) as usize;
            // few values, so that chunks are equal to others
            self.head.values[at] = self.rng.below(4) as u8;
        }
        if self.rng.once_in(4) {
            let parts = 1 + self.rng.below(24) as usize;
            self.head.values.resize(parts, 0);
        }
        let next = self.truth.len() as u64;
        self.truth.insert(next, self.head.clone());
        self.pool.push(next);
        while self.pool.len() > 1 && self.rng.once_in(3) {
            let gone = self.rng.below(self.pool.len() as u64 - 1) as usize;
            self.pool.remove(gone);
        }
    }

    /// Makes a backup of the newest snapshot as the command does.
    fn back_up(&mut self) -> Result<(), BackupError> {
        let target = self.open()?;
        let newest = *self.pool.last().expect("a snapshot");
        let older: Vec<_> = self.pool.iter().rev().skip(1).map(|number| identity(*number)).collect();
        let name: SnapshotName = format!("tank/vm1@s{newest}").parse().expect("a name");
        let again = target.verified(&name)?.is_some_and(|verified| !verified.damaged.is_empty());
        let base = if again { None } else { target.base(&name.of, &older)? };
        let content = self.truth[&newest].clone();
        let older = base.as_ref().map(|base| self.truth[&number(&base.name)].clone());
        let record = match self.purpose {
            Purpose::Backups => record(newest, content.size(), base.as_ref()),
            Purpose::Publications => published(newest, content.size(), base.as_ref()),
        };
        let made = create(&target, &Served { content, older }, record, base.as_ref(), &CopyProgress::default())?;
        self.damaged.remove(&made.name);
        self.acknowledged.insert(made.name);
        Ok(())
    }

    fn prune(&mut self) -> Result<(), BackupError> {
        let target = self.open()?;
        let remove: Vec<_> = target.names()?.into_iter().filter(|_| self.rng.once_in(2)).collect();
        // a backup whose lists are lost goes first
        let broken = target.names()?.into_iter().filter(|name| self.damaged.contains(&name.to_string()));
        let remove: Vec<_> = remove.into_iter().chain(broken).collect();
        self.acknowledged.retain(|name| !remove.iter().any(|gone| gone.to_string() == *name));
        prune(&target, &remove, false, &CopyProgress::default()).map(drop)
    }

    /// Deletes a publication as the command does, after those that cannot be read.
    fn unpublish(&mut self) -> Result<(), BackupError> {
        let target = self.open()?;
        let (broken, good): (Vec<_>, Vec<_>) = target.names()?.into_iter().partition(|name| self.damaged.contains(&name.to_string()));
        let good = (!good.is_empty()).then(|| good[self.rng.below(good.len() as u64) as usize].clone());
        for (name, force) in broken.into_iter().map(|name| (name, true)).chain(good.map(|name| (name, false))) {
            self.acknowledged.remove(&name.to_string());
            unpublish(&target, &name, (false, force), &CopyProgress::default())?;
        }
        Ok(())
    }

    /// Prunes the target as one of the other purpose, of which it has no record.
    fn foreign_prune(&mut self) -> Result<(), BackupError> {
        let (own, foreign) = (self.purpose.head(), self.purpose.other().head());
        drop(self.open()?);
        let chunk = self.purpose.other().chunk_bytes();
        let text = encode(&TargetHead { format: FORMAT, id: "00".repeat(16), chunk, created: Timestamp::UNIX_EPOCH });
        let mut shared = self.shared.lock().expect("no panic");
        let head = shared.now.remove(own).expect("a head");
        shared.now.insert(foreign.into(), text);
        drop(shared);
        let target = Target::open(Box::new(Memory::new(&self.shared)), self.purpose.other());
        let pruned = target.and_then(|target| prune(&target, &[], false, &CopyProgress::default()));
        let mut shared = self.shared.lock().expect("no panic");
        shared.now.insert(own.into(), head);
        shared.now.remove(foreign);
        shared.durable.remove(foreign);
        pruned.map(drop)
    }

    fn verify(&mut self) -> Result<(), BackupError> {
        let target = self.open()?;
        let names = target.names()?;
        let found = verify(&target, None, Timestamp::UNIX_EPOCH, &CopyProgress::default())?;
        let found: BTreeSet<String> = found.damaged.into_iter().map(|damaged| damaged.name).collect();
        let real: BTreeSet<String> = names.iter().map(ToString::to_string).filter(|name| !self.restores(name)).collect();
        assert_eq!(found, real, "what a verification finds");
        self.damaged = real;
        Ok(())
    }

    /// A chunk of the target rots, or is lost.
    fn rot(&mut self) {
        let mut shared = self.shared.lock().expect("no panic");
        let chunks: Vec<String> = shared.now.keys().filter(|name| name.starts_with("chunks/")).cloned().collect();
        if chunks.is_empty() {
            return;
        }
        let name = &chunks[self.rng.below(chunks.len() as u64) as usize];
        let lost = self.rng.once_in(2);
        let Shared { now, durable, .. } = &mut *shared;
        for side in [now, durable] {
            if lost {
                side.remove(name);
            } else if let Some(byte) = side.get_mut(name).and_then(|content| content.last_mut()) {
                *byte ^= 1;
            }
        }
    }

    fn restores(&self, name: &str) -> bool {
        let store = Memory::new(&self.shared);
        let Ok(target) = Target::open(Box::new(store), self.purpose) else { return false };
        let Ok(record) = name.parse().map_err(drop).and_then(|name| target.record(&name).map_err(drop)) else { return false };
        let target = Arc::new(target);
        let image = target.share(&AtomicBool::new(false)).and_then(|lock| BackupImage::new(Arc::clone(&target), &record, &lock));
        image.is_ok_and(|image| self.truth[&number(name)].is(&image))
    }

    /// Every backup that is listed can be restored.
    fn look(&mut self) -> Result<(), String> {
        self.shared.lock().expect("no panic").left = None;
        let Ok(target) = self.open() else { return Err("the target cannot be opened".into()) };
        let names = target.names().map_err(|e| e.to_string())?;
        if let Some(gone) = self.acknowledged.iter().find(|name| !names.iter().any(|there| there.to_string() == **name)) {
            return Err(format!("{gone} was acknowledged, and is gone"));
        }
        for name in names.iter().map(ToString::to_string) {
            if !self.damaged.contains(&name) && !self.restores(&name) {
                return Err(format!("{name} cannot be restored"));
            }
        }
        Ok(())
    }

    fn turn(&mut self) -> Result<(), String> {
        // a snapshot whose backup was interrupted is backed up again
        if self.pool.is_empty() || !self.rng.once_in(3) {
            self.change();
        }
        let steps = (!self.rng.once_in(4)).then(|| self.rng.below(40));
        self.shared.lock().expect("no panic").left = steps;
        let ended = match self.rng.below(4) {
            0 if self.foreign_prunes => self.foreign_prune(),
            0 if self.purpose == Purpose::Publications => self.unpublish(),
            0 => self.prune(),
            _ => self.back_up(),
        };
        let stopped = match ended {
            Err(BackupError::Store(StoreError::Io(..))) if steps.is_some() => true,
            Err(error) => return Err(error.to_string()),
            Ok(()) => false,
        };
        // a command that is killed loses nothing that it wrote
        if self.rng.once_in(if stopped { 2 } else { 4 }) {
            self.shared.lock().expect("no panic").power_cut(&mut self.rng);
        }
        self.look()?;
        if self.rng.once_in(8) {
            self.rot();
            self.verify().map_err(|e| e.to_string())?;
        }
        Ok(())
    }
}

fn run(purpose: Purpose, seeds: std::ops::Range<u64>, prepare: impl Fn(&mut World)) -> Result<(), String> {
    for seed in seeds {
        let mut world = World::new(seed, purpose);
        prepare(&mut world);
        for turn in 0..12 {
            world.turn().map_err(|why| format!("seed {seed}, turn {turn}: {why}"))?;
        }
    }
    Ok(())
}

fn seeds() -> u64 {
    std::env::var("MILLPOND_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(240)
}

#[test]
fn every_listed_backup_can_be_restored() {
    assert_eq!(run(Purpose::Backups, 0..seeds(), |_| {}), Ok(()));
}

#[test]
fn every_listed_publication_can_be_cloned() {
    assert_eq!(run(Purpose::Publications, 0..seeds(), |_| {}), Ok(()));
}

#[test]
fn the_world_finds_a_target_that_never_settles() {
    for purpose in [Purpose::Backups, Purpose::Publications] {
        assert!(run(purpose, 0..60, |world| world.shared.lock().expect("no panic").never_settles = true).is_err());
    }
}

#[test]
fn the_world_finds_a_prune_that_knows_no_publications() {
    let found = run(Purpose::Publications, 0..60, |world| world.foreign_prunes = true);
    assert!(found.as_ref().is_err_and(|why| why.contains("cannot be restored")), "{found:?}");
}

type Command = fn(&mut World) -> Result<(), BackupError>;

/// A command that is killed after some steps, none or one that runs to its end, and a power cut: what the
/// second one and a third one after it rely on is durable, also where the first one wrote or deleted it.
fn killed_and_followed(purpose: Purpose, number: u64) -> Result<(), String> {
    let delete: Command = if purpose == Purpose::Backups { World::prune } else { World::unpublish };
    let commands: [Command; 3] = [delete, World::back_up, |_| Ok(())];
    for (first, second) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)] {
        for steps in 0..40 {
            let mut world = World::new(number, purpose);
            world.change();
            world.back_up().map_err(|e| e.to_string())?;
            world.rot();
            world.verify().map_err(|e| e.to_string())?;
            world.shared.lock().expect("no panic").left = Some(steps);
            let ended = commands[first](&mut world).is_ok();
            world.shared.lock().expect("no panic").left = None;
            commands[second](&mut world).map_err(|e| e.to_string())?;
            world.shared.lock().expect("no panic").power_cut(&mut world.rng);
            let of = |why| format!("world {number}, commands {first} {second}, killed after {steps} steps: {why}");
            world.look().map_err(of)?;
            world.back_up().map_err(|e| of(e.to_string()))?;
            world.look().map_err(of)?;
            if ended {
                break;
            }
        }
    }
    Ok(())
}

#[test]
fn what_follows_a_killed_command_is_durable() {
    assert_eq!((0..16).try_for_each(|number| killed_and_followed(Purpose::Backups, number)), Ok(()));
    assert_eq!((0..16).try_for_each(|number| killed_and_followed(Purpose::Publications, number)), Ok(()));
}

#[test]
fn a_target_whose_preparation_was_killed_becomes_durable_with_its_first_backup() {
    let shared = Arc::new(Mutex::new(Shared::default()));
    let open = || target(|| Box::new(Memory::new(&shared)));
    // the heads are looked for, the rest is listed, they are looked for again, the own one is written, and
    // not yet durable
    shared.lock().expect("no panic").left = Some(6);
    assert!(open().is_err());
    shared.lock().expect("no panic").left = None;
    let there = open().expect("a target");
    let heads = |files: &BTreeMap<String, Vec<u8>>| files.keys().filter(|name| name.ends_with("backup.json")).count();
    assert_eq!(heads(&shared.lock().expect("no panic").durable), 0);
    let content = Content::new(vec![1]);
    let whole = Served { content: content.clone(), older: None };
    create(&there, &whole, record(1, content.size(), None), None, &CopyProgress::default()).expect("a backup");
    assert_eq!(heads(&shared.lock().expect("no panic").durable), 1);
}
