//! Pools with a key table.

use millpond_format::{ENCRYPTION, FEATURES, Feature};

use super::Config;
use crate::rng::mix as hash;

/// Features of a program that has encryption.
static WITH_KEYS: [Feature; FEATURES.len() + 1] = with_keys();

const fn with_keys() -> [Feature; FEATURES.len() + 1] {
    let mut features = [ENCRYPTION; FEATURES.len() + 1];
    let (known, _) = features.split_at_mut(FEATURES.len());
    known.copy_from_slice(FEATURES);
    features
}

impl Config {
    /// Gives the pool a key table: from the start, or by an upgrade.
    pub(super) fn keep_keys(&mut self, seed: u64) {
        let drawn = hash(seed ^ 0x6b65_7973);
        self.tuning.features = &WITH_KEYS;
        self.features_on = drawn.is_multiple_of(2);
        self.turns_features_on = !self.features_on;
        self.key_changes = [10, 40, 120][(drawn / 2 % 3) as usize];
    }
}
