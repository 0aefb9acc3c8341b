//! The bucket of a pool: what the caller reports of it, and the record of the term of this import.

use millpond_block::DiskError;
use millpond_format::{Item, Lsn, Record};

use super::op::{Owner, Work};
use super::state::Pool;
use crate::{BucketState, BucketWork, Busy, CommandError, Planted, PoolState, Reply};

/// Most pages of a record of a term.
const TERM_PAGES: usize = 2;

impl Pool {
    /// Takes the state of the bucket; see [`Engine::set_bucket`](crate::Engine::set_bucket).
    pub(crate) fn set_bucket(&mut self, state: BucketState) -> Result<(), CommandError> {
        if let PoolState::Faulted(why) = &self.store.state {
            return Err(CommandError::Faulted(why.clone()));
        }
        if self.store.tuning.read_only {
            return Err(CommandError::Busy(Busy::ReadOnly));
        }
        if self.store.closing.is_some() || self.store.state == PoolState::Closed {
            return Err(CommandError::Busy(Busy::Closing));
        }
        self.cleaner.uploads.set_bucket(&mut self.store, state)
    }

    /// Logs the term of this import as soon as there is room, and continues uploads.
    pub(super) fn step_bucket(&mut self) {
        self.log_term();
        let short = self.requests.waits_for_space();
        self.cleaner.step_uploads(&mut self.store, short);
    }

    fn log_term(&mut self) {
        let Some(term) = self.cleaner.uploads.unlogged_term() else { return };
        if self.store.state != PoolState::Online || !self.store.record_room(TERM_PAGES) {
            return;
        }
        // nothing waits for it but uploads, which look at the durable part of the log
        let op = self.requests.new_op(Owner::Nobody, Work::Command(Ok(Reply::Done)), true);
        let record = Record::Term { term };
        if self.store.tuning.plants(Planted::TermNotLogged) {
            self.store.core.apply_record(&record);
            self.cleaner.uploads.term_logged(Lsn(0));
            return self.requests.release(&mut self.store, op);
        }
        if self.requests.append_item(&mut self.store, op, &Item::Record(record.clone())).is_err() {
            return self.requests.fail_op(&mut self.store, op, DiskError::NoSpace);
        }
        self.store.core.apply_record(&record);
        self.store.seal_all();
        self.cleaner.uploads.term_logged(Lsn(self.store.log.next.0 - 1));
        self.requests.release(&mut self.store, op);
    }

    /// Returns the next request to the bucket; see [`Engine::pop_bucket_work`](crate::Engine::pop_bucket_work).
    pub(crate) fn pop_bucket_work(&mut self) -> Option<BucketWork> {
        let creates = self.store.state == PoolState::Online && !self.lease.holds_back();
        self.store.bucket.pop(self.store.incarnation, creates)
    }

    /// Ends all requests to the bucket, because the pool closes: it waits for none.
    pub(super) fn close_bucket(&mut self) {
        self.cleaner.uploads.give_up(&mut self.store);
        self.store.bucket.give_up(&mut self.store.bufs);
    }
}
