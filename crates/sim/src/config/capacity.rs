//! Pools with a bucket.

use millpond_engine::{Class, GroupSpec, Layout};

use super::Config;
use crate::rng::mix as hash;

impl Config {
    /// Gives the pool a bucket for its data, and makes its devices a log. The engine puts nothing into
    /// buckets yet, so the pool has to act as one whose devices are for data.
    pub(super) fn put_into_bucket(&mut self, seed: u64) {
        self.bucket_segments = 1 + (hash(seed ^ 0x6275_636b) % 500) as u32;
    }

    /// Returns the class of devices for data.
    pub(crate) fn local_class(&self) -> Class {
        if self.bucket_segments > 0 { Class::Log } else { Class::Data }
    }

    /// Adds the bucket to the groups of a pool, and makes those for data a log.
    pub(super) fn with_bucket(&self, groups: Vec<GroupSpec>) -> Vec<GroupSpec> {
        if self.bucket_segments == 0 {
            return groups;
        }
        let bucket = GroupSpec::data(Layout::Bucket { segments: self.bucket_segments });
        let local = |group: GroupSpec| if group.class == Class::Data { GroupSpec { class: Class::Log, ..group } } else { group };
        [bucket].into_iter().chain(groups.into_iter().map(local)).collect()
    }
}
