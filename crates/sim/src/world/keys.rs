//! Changes of the key table, while devices fail, return and are replaced.

use std::collections::BTreeSet;

use millpond_engine::{Command, KeyCommand, PoolState};
use millpond_format::{Derivation, KeyId, KeyWrap, WrapKind};

use super::World;
use crate::System;
use crate::oracle::Oracle;
use crate::rng::Rng;

/// Most changes in flight.
const AT_ONCE: usize = 3;
/// Keys from which on no new ones are made.
const MOST_KEYS: usize = 60;
/// Numbers of wraps of a key.
const NUMBERS: u64 = 4;

/// Draws changes of the key table, with a separate RNG.
pub(super) struct KeyUser(Rng);

impl KeyUser {
    pub(super) fn new(rng: Rng) -> KeyUser {
        KeyUser(rng)
    }

    fn wrap(&mut self, key: KeyId, number: u8) -> KeyWrap {
        let value = |rng: &mut Rng| rng.next() as u8;
        let kind = *self.0.pick(&[WrapKind::Passphrase, WrapKind::KeyFile, WrapKind::Command, WrapKind::PoolKey]);
        let (salt, nonce) = ([value(&mut self.0); 16], [value(&mut self.0); 12]);
        let (domain, wrapped) = (key.0.to_le_bytes(), [value(&mut self.0); 48]);
        KeyWrap { key, number, kind, derivation: Derivation::HkdfSha256, salt, nonce, domain, wrapped }
    }

    /// Returns a change that must succeed, of a key that no other change in flight has.
    fn change(&mut self, oracle: &Oracle, changing: &BTreeSet<KeyId>) -> KeyCommand {
        let keys: Vec<KeyId> = oracle.keys().filter(|key| !changing.contains(key)).collect();
        let new = |user: &mut KeyUser| {
            let key = KeyId(user.0.next().max(1));
            KeyCommand::Put { wrap: Box::new(user.wrap(key, 0)), is_new: true }
        };
        if keys.is_empty() {
            return new(self);
        }
        let key = *self.0.pick(&keys);
        match self.0.weighted(&[40, 40, 10, 10]) {
            0 if keys.len() < MOST_KEYS => new(self),
            2 => KeyCommand::Erase { key, number: None },
            3 if oracle.numbers(key).count() > 1 => KeyCommand::Erase { key, number: oracle.numbers(key).next() },
            _ => {
                let number = self.0.below(NUMBERS) as u8;
                KeyCommand::Put { wrap: Box::new(self.wrap(key, number)), is_new: false }
            }
        }
    }
}

impl<S: System> World<S> {
    /// Changes the key table, sometimes.
    pub(super) fn change_keys(&mut self) {
        let online = self.state() == PoolState::Online;
        let Some(user) = self.keys.as_mut().filter(|_| online) else { return };
        if user.0.below(1000) >= self.config.key_changes {
            return;
        }
        let key_of = |command: &Command| match command {
            Command::Keys(KeyCommand::Put { wrap, .. }) => Some(wrap.key),
            Command::Keys(KeyCommand::Erase { key, .. }) => Some(*key),
            _ => None,
        };
        let changing: BTreeSet<KeyId> = self.running.values().filter_map(|plan| key_of(plan.command.as_ref()?)).collect();
        if changing.len() < AT_ONCE {
            let command = user.change(&self.oracle, &changing);
            self.stats.key_changes += 1;
            self.command(command, vec![], vec![]);
        }
    }
}
