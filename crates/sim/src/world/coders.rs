//! Threads of the host that compress and decompress blocks for the engine: work ends late, and in
//! any order.

use millpond_engine::{Codec, CodecWork};

use crate::System;
use crate::rng::Rng;

/// The threads, and the work that they have.
pub(super) struct Coders {
    rng: Rng,
    codec: Codec,
    works: Vec<CodecWork>,
}

impl Coders {
    /// Creates threads without work.
    pub(super) fn new(rng: Rng) -> Coders {
        Coders { rng, codec: Codec::default(), works: Vec::new() }
    }

    /// Takes on work.
    pub(super) fn add(&mut self, work: CodecWork) {
        self.works.push(work);
    }

    /// Drops all work: the daemon has ended.
    pub(super) fn clear(&mut self) {
        self.works.clear();
    }

    /// Returns whether there is no work.
    pub(super) fn is_idle(&self) -> bool {
        self.works.is_empty()
    }

    /// Finishes any of the works, sometimes; always when nothing else happens.
    pub(super) fn finish_one(&mut self, surely: bool) -> Option<CodecWork> {
        if self.works.is_empty() || !(surely || self.rng.percent(50)) {
            return None;
        }
        let mut work = self.works.swap_remove(self.rng.index(self.works.len()));
        work.run(&mut self.codec);
        Some(work)
    }

    /// Finishes all works of a system.
    pub(super) fn finish_all<S: System>(&mut self, system: &mut S) {
        for mut work in std::mem::take(&mut self.works) {
            work.run(&mut self.codec);
            system.codec_done(work);
        }
        self.finish_new(system);
    }

    /// Finishes the works that a system still has.
    pub(super) fn finish_new<S: System>(&mut self, system: &mut S) {
        while let Some(mut work) = system.pop_codec_work() {
            work.run(&mut self.codec);
            system.codec_done(work);
        }
    }
}
