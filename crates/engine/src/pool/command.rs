//! Commands: those that need room in the log wait for it; then each group has a place of its own.

use millpond_block::{DiskError, Tag};

use super::requests::Requests;
use super::state::Pool;
use crate::store::Store;
use crate::{Busy, CatalogCommand, Command, CommandError, Invalid, PoolState, QueryCommand};

/// Turns after which commands that wait for room fail with `NoSpace`.
pub(crate) const STARVED_TURNS: u32 = 20_000;
/// Milliseconds between checkpoints that are written to make room for commands when nothing else
/// does.
const CHECKPOINT_MILLIS: u64 = 200;
impl Requests {
    /// Handles a command of a read-only pool: only queries and the close are possible.
    fn command_unwritten(&mut self, store: &mut Store, tag: Tag, command: Command) {
        match command {
            Command::Close => {
                store.closing = Some(tag);
                store.state = PoolState::Closing;
                self.close_fetches(store);
                store.bucket.give_up(&mut store.bufs);
            }
            Command::Query(query) => self.start_query_command(store, tag, query),
            Command::Catalog(_) | Command::Devices(_) | Command::Keys(_) | Command::Job(_) | Command::Checkpoint => {
                store.replies.push_back((tag, Err(CommandError::Busy(Busy::ReadOnly))));
            }
        }
    }

    fn start_query_command(&mut self, store: &mut Store, tag: Tag, query: QueryCommand) {
        match query {
            QueryCommand::Places { target } => self.start_places(store, tag, target),
            QueryCommand::Lost { target } => self.start_lost(store, tag, target),
            QueryCommand::WriteSizes => self.start_census(store, tag),
        }
    }
}

impl Pool {
    /// Starts a command.
    pub(crate) fn command(&mut self, tag: Tag, command: Command) {
        if let PoolState::Faulted(why) = &self.store.state {
            let error = CommandError::Faulted(why.clone());
            return self.store.replies.push_back((tag, Err(error)));
        }
        if self.store.closing.is_some() {
            return self.store.replies.push_back((tag, Err(CommandError::Busy(Busy::Closing))));
        }
        if self.store.tuning.read_only {
            return self.requests.command_unwritten(&mut self.store, tag, command);
        }
        let pages = pages_of(&command);
        if pages >= self.store.core.space.layout.smallest() as usize {
            let error = CommandError::Invalid(Invalid::TooManyNames);
            return self.store.replies.push_back((tag, Err(error)));
        }
        // commands that need no room in the log wait for none, above all those that free space
        let unlogged = matches!(command, Command::Devices(_) | Command::Keys(_) | Command::Query(_));
        // these need no room either, but do not overtake other commands
        let bare = matches!(command, Command::Close | Command::Checkpoint) && self.requests.parked_commands.is_empty();
        let unlogged = unlogged || bare;
        if self.store.state == PoolState::Opening || (!unlogged && !self.store.record_room(pages) && !self.requests.records_starve()) {
            return self.requests.parked_commands.push((tag, command));
        }
        match command {
            Command::Close => {
                self.jobs.suspend(&mut self.store);
                self.note_service(true);
                self.store.closing = Some(tag);
                self.store.state = PoolState::Closing;
                self.requests.close_fetches(&mut self.store);
                self.close_bucket();
            }
            Command::Checkpoint => self.store.checkpoint.wanted.push(tag),
            Command::Catalog(change) => self.requests.change_catalog(&mut self.store, tag, change),
            Command::Devices(change) => self.device_command(tag, change),
            Command::Keys(change) => self.store.change_keys(tag, change),
            Command::Job(job) => self.job_command(tag, job),
            Command::Query(query) => self.requests.start_query_command(&mut self.store, tag, query),
        }
    }

    /// Retries the commands and clears that wait for room; fails them when none has come for long.
    pub(super) fn retry_commands(&mut self) {
        if !self.requests.records_wait() || self.store.state == PoolState::Opening {
            self.requests.starved_commands = 0;
            return;
        }
        self.requests.starved_commands += 1;
        if !self.store.record_room(1) && self.cleaner.idle() && self.store.now.0 >= self.store.checkpoint.begun.0 + CHECKPOINT_MILLIS {
            // I9: until a checkpoint has written the changes so far, space is reserved for them,
            // which the cleaner may need; and only a checkpoint moves objects out of sparse
            // segments
            self.store.checkpoint.forced |= !self.store.checkpoint.running();
        }
        if self.store.record_room(1) || self.requests.records_starve() {
            for id in std::mem::take(&mut self.requests.record_waiters) {
                if self.requests.records_starve() {
                    self.requests.fail_op(&mut self.store, id, DiskError::NoSpace)
                } else {
                    self.requests.go_on(&mut self.store, id)
                }
            }
        }
        for (tag, command) in std::mem::take(&mut self.requests.parked_commands) {
            self.command(tag, command);
        }
    }
}

/// Bytes of the record of a lock.
const LOCK_BYTES: usize = 64;

/// Returns the most pages that a command's records take, with the headers of their batches; for
/// commands with several records those of the first.
fn pages_of(command: &Command) -> usize {
    let bytes: usize = match command {
        Command::Catalog(CatalogCommand::Snapshot { targets, description, lock_millis, .. }) => {
            let lock = if lock_millis.is_some() { LOCK_BYTES } else { 0 };
            description.len() + targets.iter().map(|(_, name)| 32 + name.len() + lock).sum::<usize>()
        }
        Command::Catalog(CatalogCommand::CreateBase { source, .. }) => 1024 + source.source.len(),
        Command::Catalog(CatalogCommand::MoveBase { source, .. }) => 64 + source.len(),
        _ => 1024,
    };
    2 + bytes / 2048
}
