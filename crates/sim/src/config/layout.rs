//! Groups of devices of a world's pool, and its size.

use millpond_engine::GroupSpec;

use super::Config;

impl Config {
    /// The groups of the pool, the cache last.
    pub fn groups(&self) -> Vec<GroupSpec> {
        let alone = || vec![GroupSpec { devices: Some(self.needed()), ..GroupSpec::data(self.layout) }];
        let mut groups = self.mirrored.as_ref().map_or_else(alone, |m| m.groups.clone());
        if let (Some(last), Some(cache)) = (groups.last_mut(), self.cache_group()) {
            if last.devices.is_none() {
                last.devices = Some(self.needed());
            }
            groups.push(cache);
        }
        self.with_bucket(groups)
    }

    /// Usable bytes, or the bytes of all devices.
    pub fn pool_bytes(&self) -> u64 {
        if self.usable > 0 {
            return self.usable;
        }
        self.devices.iter().map(|(g, _)| g.size).sum()
    }
}
