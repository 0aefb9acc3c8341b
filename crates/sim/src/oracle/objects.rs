//! Errors that the bucket of a pool explains.

use millpond_block::DiskError;
use millpond_engine::Command;

use super::bases::read_blocks;
use super::{Flight, Oracle};
use crate::trace::Moment;

/// State of the bucket of a world.
#[derive(Clone, Debug, Default)]
pub(super) struct Objects {
    /// The pool has a bucket.
    there: bool,
    /// The last moment at which an answer was wrong that may fail a request.
    refused: Option<Moment>,
    /// The latest moment at which a write was submitted that was answered when it was durable.
    durable: Moment,
}

impl Oracle {
    /// Records that the pool has a bucket.
    pub fn allow_objects(&mut self) {
        self.objects.there = true;
    }

    /// Records that the bucket had no right answer to a read.
    pub fn refuse_object(&mut self, now: Moment) {
        self.objects.refused = Some(now);
    }

    /// Records that a write is durable.
    pub(super) fn note_durable(&mut self, flight: &Flight) {
        self.objects.durable = self.objects.durable.max(flight.at);
    }

    /// Returns the latest moment before which everything in the log of the present engine is durable.
    pub fn durable_since(&self) -> Moment {
        self.objects.durable
    }

    /// Returns whether a request may fail with this error because of the bucket: it reads blocks, and the
    /// bucket gave a wrong answer since it began, or the pool is being closed.
    pub(super) fn objects_excuse(&self, flight: &Flight, error: DiskError) -> bool {
        let closing = self.commands.values().any(|issued| issued.command == Command::Close);
        let refused = self.objects.refused.is_some_and(|at| at >= flight.at);
        let explained = match error {
            DiskError::Io => refused || closing,
            DiskError::Shutdown => closing,
            _ => false,
        };
        self.objects.there && explained && read_blocks(&flight.request).next().is_some()
    }
}
