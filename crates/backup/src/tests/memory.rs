//! A target in memory: entries that a power cut may undo, commands that stop.

use super::*;

/// State that all commands share.
#[derive(Default)]
pub struct Shared {
    pub now: BTreeMap<String, Vec<u8>>,
    pub durable: BTreeMap<String, Vec<u8>>,
    /// Steps until the command stops.
    pub left: Option<u64>,
    /// Commands that share the target, and whether one has it alone.
    locks: (u64, bool),
    /// Work of another command, after so many steps of this one.
    pub meanwhile: Option<(u64, Box<dyn FnOnce() + Send>)>,
    /// A bug: nothing becomes durable in time.
    pub never_settles: bool,
}

impl Shared {
    /// Everything stops: of each entry, one of the states since it was durable stays.
    pub fn power_cut(&mut self, rng: &mut Random) {
        let names: BTreeSet<String> = self.now.keys().chain(self.durable.keys()).cloned().collect();
        for name in names {
            let (from, to) = if rng.once_in(2) { (&self.now, &mut self.durable) } else { (&self.durable, &mut self.now) };
            match from.get(&name).cloned() {
                Some(content) => drop(to.insert(name, content)),
                None => drop(to.remove(&name)),
            }
        }
    }
}

/// The target as one command sees it.
#[derive(Clone)]
pub struct Memory {
    pub shared: Arc<Mutex<Shared>>,
    /// Entries that this command relies on.
    noted: Arc<Mutex<BTreeSet<String>>>,
}

impl Memory {
    pub fn new(shared: &Arc<Mutex<Shared>>) -> Memory {
        Memory { shared: Arc::clone(shared), noted: Arc::default() }
    }

    fn step<T>(&self, act: impl FnOnce(&mut Shared) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let mut shared = self.shared.lock().expect("no panic");
        match &mut shared.meanwhile {
            Some((0, _)) => {
                let (_, other) = shared.meanwhile.take().expect("another command");
                drop(shared);
                other();
                shared = self.shared.lock().expect("no panic");
            }
            Some((left, _)) => *left -= 1,
            None => {}
        }
        match &mut shared.left {
            Some(0) => return Err(StoreError::Io("go on".into(), io::Error::other("everything stops"))),
            Some(left) => *left -= 1,
            None => {}
        }
        act(&mut shared)
    }

    fn note(&self, name: &str) {
        self.noted.lock().expect("no panic").insert(name.into());
    }
}

impl Store for Memory {
    fn name(&self) -> String {
        "memory".into()
    }

    fn put(&self, name: &str, content: &[u8]) -> Result<(), StoreError> {
        self.note(name);
        self.step(|shared| {
            shared.now.insert(name.into(), content.into());
            Ok(())
        })
    }

    fn put_new(&self, name: &str, content: &[u8]) -> Result<bool, StoreError> {
        self.note(name);
        self.step(|shared| Ok(shared.now.entry(name.into()).or_insert_with(|| content.into()) == content))
    }

    fn get(&self, name: &str, most: u64) -> Result<Vec<u8>, StoreError> {
        let missing = || StoreError::Missing(name.into());
        let content = self.step(|shared| shared.now.get(name).cloned().ok_or_else(missing))?;
        assert!(content.len() as u64 <= most, "{name} is long");
        Ok(content)
    }

    fn has(&self, name: &str) -> Result<bool, StoreError> {
        self.note(name);
        self.step(|shared| Ok(shared.now.contains_key(name)))
    }

    fn list(&self, folder: &str, each: &mut dyn FnMut(String, u64)) -> Result<(), StoreError> {
        let below = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let names: Vec<_> = self.step(|shared| {
            let known = shared.now.keys().chain(shared.durable.keys()).filter(|name| name.starts_with(&below));
            known.for_each(|name| self.note(name));
            Ok(shared
                .now
                .iter()
                .filter(|(name, _)| name.starts_with(&below))
                .map(|(name, content)| (name.clone(), content.len()))
                .collect())
        })?;
        names.into_iter().for_each(|(name, length)| each(name, length as u64));
        Ok(())
    }

    fn delete(&self, names: &[String]) -> Result<(), StoreError> {
        for name in names {
            self.note(name);
            self.step(|shared| Ok(shared.now.remove(name)))?;
        }
        Ok(())
    }

    fn settle(&self) -> Result<(), StoreError> {
        self.step(|shared| {
            if shared.never_settles {
                return Ok(());
            }
            for name in std::mem::take(&mut *self.noted.lock().expect("no panic")) {
                match shared.now.get(&name).cloned() {
                    Some(content) => drop(shared.durable.insert(name, content)),
                    None => drop(shared.durable.remove(&name)),
                }
            }
            Ok(())
        })
    }

    fn lock(&self, alone: bool, _: &AtomicBool) -> Result<Box<dyn Lock>, StoreError> {
        let mut shared = self.shared.lock().expect("no panic");
        if shared.locks.1 || (alone && shared.locks.0 > 0) {
            return Err(StoreError::Busy("another command uses it".into()));
        }
        if alone {
            shared.locks.1 = true;
        } else {
            shared.locks.0 += 1;
        }
        Ok(Box::new(Locked { shared: Arc::clone(&self.shared), alone }))
    }
}

struct Locked {
    shared: Arc<Mutex<Shared>>,
    alone: bool,
}

impl Lock for Locked {
    fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let Ok(mut shared) = self.shared.lock() else { return };
        if self.alone {
            shared.locks.1 = false;
        } else {
            shared.locks.0 -= 1;
        }
    }
}
