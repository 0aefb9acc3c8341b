//! Pools with a bucket for their data.

use millpond_engine::{Class, GroupSpec, Layout, UploadLimits};

use super::{Config, End, KIB, MIB, volumes};
use crate::rng::{Rng, mix as hash};

/// Most bytes of a pool that is made to run full.
const SMALL: u64 = 16 * MIB;

/// The bucket of a world, and the manners of its store.
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    /// Segments in the bucket.
    pub segments: u32,
    /// Longest time until a request takes effect, and from then on until its answer, in microseconds.
    pub latency: u64,
    /// Percent of the creates whose first answer is lost, so that they take longer.
    pub doubts: u64,
    /// Per thousand steps, those in which the store goes away.
    pub away: u64,
    /// Percent of imports under which the store takes no objects.
    pub full: u64,
    /// Percent of imports that get no term.
    pub termless: u64,
    /// Longest time from an import to its term, in microseconds.
    pub term: u64,
    /// Per thousand reads, those of an object that gets wrong, once for each object.
    pub wrong: u64,
    /// Most wrong answers of such an object, one after the other. With one, no request fails.
    pub wrongs: u64,
    /// Percent of the answers that are repeated, or come after the end of the pool's service.
    pub late: u64,
    /// Objects are lost for good at the end.
    pub loses: bool,
}

impl Config {
    /// Gives the pool a bucket for its data, and makes its devices a log. Objects have 16 to 256 pages,
    /// as the extents have. `bytes`: of the pool, if it may be made to run full.
    pub(super) fn put_into_bucket(&mut self, seed: u64, bytes: Option<u64>) {
        let mut rng = Rng::new(hash(seed ^ 0x6275_636b));
        let segments = [rng.between(1, 20), rng.between(100, 600)];
        self.capacity = Some(Capacity {
            segments: segments[rng.weighted(&[1, 5])] as u32,
            // with the longest many uploads are under way at a crash
            latency: *rng.pick(&[500, 5_000, 250_000]),
            doubts: *rng.pick(&[0, 20]),
            away: *rng.pick(&[0, 2, 10]),
            full: *rng.pick(&[0, 0, 30]),
            termless: *rng.pick(&[0, 20]),
            term: *rng.pick(&[0, 2_000, 200_000]),
            wrong: *rng.pick(&[0, 50, 300]),
            wrongs: *rng.pick(&[1, 1, 4]),
            late: *rng.pick(&[0, 5, 30]),
            loses: rng.percent(25),
        });
        // By age, too: worlds are short, and many of them write less than a log.
        let after_millis = *rng.pick(&[1, 20, 200, 600_000]);
        self.tuning.uploads = UploadLimits { after_millis, under_way: *rng.pick(&[1, 8, 8]), ..UploadLimits::default() };
        self.tuning.log_percent = *rng.pick(&[0, 0, 2, 10, 50]);
        // Nothing is kept for a rewind, and checkpoints are few.
        if rng.percent(50) {
            (self.tuning.rewind_checkpoints, self.tuning.rewind_millis) = (0, 0);
            self.tuning.checkpoint_log_bytes = 16 << 20;
        }
        // Small pools run full more often: segments of the log that uploads emptied are then reused at once.
        if let Some(bytes) = bytes.filter(|bytes| *bytes <= SMALL)
            && rng.percent(50)
        {
            self.tight = true;
            self.volumes = volumes(bytes * rng.between(90, 140) / 100, true, &mut rng);
        }
        for era in &mut self.eras {
            if rng.percent(20) {
                era.end = End::Close;
            }
        }
    }

    /// Makes uploads of a short trace small and early.
    pub(crate) fn upload_at_once(&mut self) {
        let Some(capacity) = &mut self.capacity else { return };
        (capacity.term, capacity.termless, capacity.full) = (0, 0, 0);
        capacity.latency = capacity.latency.min(5_000);
        self.extent = 64 * KIB;
        self.tuning.log_percent = 0;
        self.tuning.uploads.after_millis = 1;
    }

    /// Returns the class of devices for data.
    pub(crate) fn local_class(&self) -> Class {
        if self.capacity.is_some() { Class::Log } else { Class::Data }
    }

    /// Adds the bucket to the groups of a pool, and makes those for data a log.
    pub(super) fn with_bucket(&self, groups: Vec<GroupSpec>) -> Vec<GroupSpec> {
        let Some(Capacity { segments, .. }) = self.capacity else { return groups };
        let bucket = GroupSpec::data(Layout::Bucket { segments });
        let local = |group: GroupSpec| if group.class == Class::Data { GroupSpec { class: Class::Log, ..group } } else { group };
        [bucket].into_iter().chain(groups.into_iter().map(local)).collect()
    }
}
