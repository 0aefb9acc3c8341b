//! The key table: an answered change is there after each import, and an unanswered one wholly or not at
//! all.

use std::collections::BTreeMap;

use millpond_engine::{CommandError, KeyCommand, KeyTable, Reply};
use millpond_format::{KeyId, KeyWrap};

use super::{Oracle, Verdict, broken};

/// Wraps of a key by number.
type Wraps = BTreeMap<u8, KeyWrap>;

/// The required state of the key table. Changes in flight concern different keys.
#[derive(Clone, Debug, Default)]
pub(super) struct Keys {
    table: BTreeMap<KeyId, Wraps>,
    /// Changes without an answer, by tag.
    unanswered: BTreeMap<u64, KeyCommand>,
}

fn key_of(command: &KeyCommand) -> KeyId {
    match command {
        KeyCommand::Put { wrap, .. } => wrap.key,
        KeyCommand::Erase { key, .. } => *key,
    }
}

impl Keys {
    /// Returns the wraps of a key.
    fn wraps(&self, key: KeyId) -> Wraps {
        self.table.get(&key).cloned().unwrap_or_default()
    }

    /// Returns the wraps of a command's key after it.
    fn after(&self, command: &KeyCommand) -> Wraps {
        let mut wraps = self.wraps(key_of(command));
        match command {
            KeyCommand::Put { wrap, .. } => drop(wraps.insert(wrap.number, (**wrap).clone())),
            KeyCommand::Erase { number: Some(number), .. } => drop(wraps.remove(number)),
            KeyCommand::Erase { number: None, .. } => wraps.clear(),
        }
        wraps
    }

    fn set(&mut self, key: KeyId, wraps: Wraps) {
        if wraps.is_empty() {
            self.table.remove(&key);
        } else {
            self.table.insert(key, wraps);
        }
    }
}

impl Oracle {
    /// Returns the keys in the table.
    pub fn keys(&self) -> impl Iterator<Item = KeyId> {
        self.keys.table.keys().copied()
    }

    /// Returns the numbers of the wraps of a key.
    pub fn numbers(&self, key: KeyId) -> impl Iterator<Item = u8> {
        self.keys.table.get(&key).into_iter().flat_map(|wraps| wraps.keys().copied())
    }

    /// Records a change.
    pub(super) fn issue_keys(&mut self, tag: u64, command: KeyCommand) {
        self.keys.unanswered.insert(tag, command);
    }

    /// Takes the answer to a change. When the pool stops, it may have happened.
    pub(super) fn keys_answered(&mut self, tag: u64, result: &Result<Reply, CommandError>) {
        let stopped = matches!(result, Err(CommandError::Faulted(_)));
        let Some(command) = self.keys.unanswered.get(&tag).filter(|_| !stopped).cloned() else { return };
        self.keys.unanswered.remove(&tag);
        if result.is_ok() {
            let after = self.keys.after(&command);
            self.keys.set(key_of(&command), after);
        }
    }

    /// Compares the table after an import with what was answered, and takes in which of the other changes
    /// have happened.
    ///
    /// # Errors
    /// If an answered change has not happened, an unanswered one only in part, or a page is unknown.
    pub fn reconcile_keys(&mut self, listed: &KeyTable) -> Verdict {
        if self.errors_allowed {
            return Ok(());
        }
        if !listed.unknown.is_empty() || !listed.outdated.is_empty() {
            return broken(format!("pages {:?} of the key table are lost, {:?} out of date", listed.unknown, listed.outdated));
        }
        let mut found: BTreeMap<KeyId, Wraps> = BTreeMap::new();
        for wrap in &listed.wraps {
            if found.entry(wrap.key).or_default().insert(wrap.number, wrap.clone()).is_some() {
                return broken(format!("{wrap:?} is twice in the key table"));
            }
        }
        let unanswered = std::mem::take(&mut self.keys.unanswered);
        for command in unanswered.values() {
            let (key, after) = (key_of(command), self.keys.after(command));
            if found.get(&key).cloned().unwrap_or_default() == after {
                self.keys.set(key, after);
            }
        }
        if found == self.keys.table {
            return Ok(());
        }
        let differing: Vec<&KeyId> =
            found.keys().chain(self.keys.table.keys()).filter(|key| found.get(*key) != self.keys.table.get(*key)).collect();
        broken(format!("keys {differing:?} are not what was answered: {:?} instead of {:?}", listed.wraps, self.keys.table))
    }
}
