//! A volume in memory that a stream is received into. Blocks that were not written are not stored, so
//! it may have any size.

use std::collections::BTreeMap;

use jiff::Timestamp;
use millpond_api::Snapshot;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::identity::{INTERRUPTED, RESERVED, Receiving, SnapshotIdentity, SnapshotOrigin};

use super::BLOCK;
use crate::stream::{Check, Content, StreamSnapshot, Target};

/// Blocks that are not zero, by offset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents(BTreeMap<u64, Vec<u8>>);

impl Contents {
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (block, at) in bytes.chunks(BLOCK as usize).zip((offset..).step_by(BLOCK as usize)) {
            match block.iter().all(|byte| *byte == 0) {
                true => drop(self.0.remove(&at)),
                false => drop(self.0.insert(at, block.to_vec())),
            }
        }
    }

    pub fn clear(&mut self, offset: u64, length: u64) {
        let inside: Vec<u64> = self.0.range(offset..offset + length).map(|(at, _)| *at).collect();
        inside.iter().for_each(|at| drop(self.0.remove(at)));
    }

    /// Removes everything beyond a size.
    pub fn cut(&mut self, size: u64) {
        self.0.split_off(&size);
    }

    fn read(&self, offset: u64, length: u64) -> Vec<u8> {
        let zero = vec![0; BLOCK as usize];
        (offset..offset + length).step_by(BLOCK as usize).flat_map(|at| self.0.get(&at).unwrap_or(&zero).clone()).collect()
    }
}

#[derive(Clone, Debug, Default)]
struct State {
    size: u64,
    contents: Contents,
}

#[derive(Clone, Debug)]
struct Taken {
    name: String,
    origin: Option<SnapshotOrigin>,
    state: State,
    /// It was there before any stream.
    before: bool,
}

/// The volume with its snapshots.
#[derive(Debug, Default)]
pub struct Memory {
    now: State,
    snapshots: Vec<Taken>,
    published: bool,
    rollbacks: usize,
}

impl Memory {
    /// Returns a volume that has this snapshot, which reads as zeroes.
    pub fn with(base: &StreamSnapshot) -> Memory {
        let state = State { size: base.size, contents: Contents::default() };
        let origin = Some(SnapshotOrigin { identity: base.identity.clone(), position: None, base: None });
        let taken = Taken { name: base.name.clone(), origin, state: state.clone(), before: true };
        Memory { now: state, snapshots: vec![taken], published: true, rollbacks: 0 }
    }

    /// Returns the received snapshots but that of [`Memory::with`], with their identities.
    pub fn received(&self) -> impl Iterator<Item = (&SnapshotIdentity, &Contents)> {
        let complete = self.snapshots.iter().filter(|taken| !RESERVED.contains(&taken.name.as_str()));
        complete.filter(|taken| !taken.before).filter_map(|taken| match &taken.origin {
            Some(SnapshotOrigin { identity, position: None, .. }) => Some((identity, &taken.state.contents)),
            _ => None,
        })
    }

    fn find(&self, name: &str) -> Outcome<&Taken> {
        self.snapshots.iter().find(|taken| taken.name == name).ok_or_else(|| Failure::failed(format!("no snapshot {name}")))
    }

    fn view(id: usize, taken: &Taken) -> Snapshot {
        let own = SnapshotIdentity::new(&"7".repeat(32), id as u64, 1, 1);
        let complete = !RESERVED.contains(&taken.name.as_str());
        let (identity, receiving) = match taken.origin.clone() {
            None => (Some(own).filter(|_| !taken.name.starts_with(INTERRUPTED)), None),
            Some(SnapshotOrigin { identity, position: Some(position), base }) => (None, Some(Receiving { identity, position, base })),
            Some(SnapshotOrigin { identity, .. }) => (Some(identity).filter(|_| complete), None),
        };
        Snapshot {
            name: format!("tank/copy@{}", taken.name),
            id: id as u64,
            created: Timestamp::UNIX_EPOCH,
            epoch: id as u64,
            size: taken.state.size,
            referenced_bytes: taken.state.contents.0.len() as u64 * BLOCK,
            unique_bytes: 0,
            holds: 0,
            hold_tags: Vec::new(),
            hold_list: Vec::new(),
            clones: 0,
            description: String::new(),
            expires: None,
            received: taken.origin.is_some() && identity.is_some(),
            identity,
            receiving,
        }
    }
}

impl Target for Memory {
    fn is_published(&self) -> bool {
        self.published
    }

    fn publish(&mut self) -> Outcome {
        assert!(!self.published, "published twice");
        self.published = true;
        Ok(())
    }

    fn size(&mut self) -> Outcome<u64> {
        Ok(self.now.size)
    }

    fn resize(&mut self, size: u64) -> Outcome {
        self.now.contents.cut(size);
        self.now.size = size;
        Ok(())
    }

    fn snapshots(&mut self) -> Outcome<Vec<Snapshot>> {
        Ok(self.snapshots.iter().enumerate().map(|(id, taken)| Memory::view(id, taken)).collect())
    }

    fn take(&mut self, name: &str, _: &str, origin: &SnapshotOrigin) -> Outcome {
        assert!(self.find(name).is_err(), "{name} is there");
        self.snapshots.push(Taken { name: name.to_owned(), origin: Some(origin.clone()), state: self.now.clone(), before: false });
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> Outcome {
        assert!(self.find(to).is_err(), "{to} is there");
        self.find(from)?;
        self.snapshots.iter_mut().filter(|taken| taken.name == from).for_each(|taken| taken.name = to.to_owned());
        Ok(())
    }

    fn destroy(&mut self, name: &str) -> Outcome {
        self.find(name)?;
        self.snapshots.retain(|taken| taken.name != name);
        Ok(())
    }

    fn roll_back(&mut self, to: &str, incomplete: bool) -> Outcome<String> {
        let state = self.find(to)?.state.clone();
        let name = format!("{}-{}", if incomplete { INTERRUPTED } else { "pre-rollback" }, self.rollbacks);
        self.rollbacks += 1;
        let state = std::mem::replace(&mut self.now, state);
        self.snapshots.push(Taken { name: name.clone(), origin: None, state, before: false });
        Ok(name)
    }

    fn reconnect(&mut self) -> Outcome {
        Ok(())
    }

    fn differences(&mut self, older: &str, newer: Option<&str>) -> Outcome<Vec<(u64, u64)>> {
        let older = &self.find(older)?.state.contents;
        let newer = match newer {
            Some(newer) => &self.find(newer)?.state.contents,
            None => &self.now.contents,
        };
        let mut offsets: Vec<u64> = older.0.keys().chain(newer.0.keys()).copied().collect();
        offsets.sort_unstable();
        offsets.dedup();
        Ok(offsets.into_iter().filter(|at| older.0.get(at) != newer.0.get(at)).map(|at| (at, BLOCK)).collect())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Outcome {
        assert!(offset.checked_add(bytes.len() as u64).is_some_and(|end| end <= self.now.size), "a write beyond the end");
        self.now.contents.write(offset, bytes);
        Ok(())
    }

    fn write_zeroes(&mut self, offset: u64, length: u64) -> Outcome {
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.now.size), "zeroes beyond the end");
        self.now.contents.clear(offset, length);
        Ok(())
    }

    fn first_difference(&mut self, snapshot: &str, checks: &[Check]) -> Outcome<Option<u64>> {
        let contents = &self.find(snapshot)?.state.contents;
        let wrong = checks.iter().find(|check| match check.content {
            Content::Zero => contents.0.range(check.offset..check.offset + check.length).next().is_some(),
            Content::Data(_) => !check.agrees(&contents.read(check.offset, check.length)),
        });
        Ok(wrong.map(|check| check.offset))
    }
}
