//! [`Pool`]: the state of a pool in service.

use millpond_block::DeviceSlot;

use super::requests::Requests;
use crate::store::Store;
use crate::task::{Checkpointer, Cleaner, Gatherer, Jobs, KeyWriter, LabelWriter, Lease, Preparer, Rejoiner, Resilver, Spares};

/// A pool in service: its state on the devices, the requests, and the tasks. Its own methods are the
/// scheduler's: they pass events to requests and tasks, and run each task once per turn.
pub(crate) struct Pool {
    pub(crate) store: Store,
    pub(crate) requests: Requests,
    pub(crate) checkpointer: Checkpointer,
    pub(crate) label_writer: LabelWriter,
    pub(crate) key_writer: KeyWriter,
    pub(crate) resilver: Resilver,
    pub(crate) spares: Spares,
    /// Why the import that opened the pool went back further than the newest checkpoint.
    pub(crate) fell_back: Option<String>,
    pub(crate) rejoiner: Rejoiner,
    pub(crate) jobs: Jobs,
    pub(crate) preparer: Preparer,
    pub(crate) lease: Lease,
    pub(crate) cleaner: Cleaner,
    pub(crate) gatherer: Gatherer,
    /// Positions of devices that did not answer while the pool was opened: the pool works without
    /// them, or was refused.
    pub(crate) unanswered: Vec<DeviceSlot>,
}

impl Pool {
    /// Creates a pool in service.
    pub(crate) fn new(store: Store) -> Pool {
        let requests = Requests::new(&store);
        Pool {
            store,
            requests,
            checkpointer: Checkpointer::default(),
            label_writer: LabelWriter::default(),
            key_writer: KeyWriter::default(),
            resilver: Resilver::default(),
            spares: Spares::default(),
            fell_back: None,
            rejoiner: Rejoiner::default(),
            jobs: Jobs::default(),
            preparer: Preparer::default(),
            lease: Lease::default(),
            cleaner: Cleaner::default(),
            gatherer: Gatherer::default(),
            unanswered: Vec::new(),
        }
    }

    /// Returns whether no operation, move or batch is in progress.
    pub(crate) fn quiet(&self) -> bool {
        self.requests.ops.len() == 0 && self.cleaner.idle() && self.store.log.in_flight_batches() == 0 && !self.store.log.has_open_batch()
    }
}
