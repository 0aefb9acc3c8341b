//! Operations that overtake others or count no errors, and operations that come back without having
//! been carried out.

use millpond_block::Io;

use super::{IoTable, Stage, epoch_of, names};

impl<C> IoTable<C> {
    /// Makes all operations that `begin` starts urgent: they overtake others in the outbox, in the
    /// caps of devices, and in the queues behind them.
    pub(crate) fn urgently(&mut self, begin: impl FnOnce(&mut Self)) {
        let before = self.outbox.len();
        self.urgent = true;
        begin(self);
        self.urgent = false;
        let begun = self.outbox.len().saturating_sub(before);
        self.outbox.rotate_right(begun);
    }

    /// Counts no errors of operations that `begin` starts: their requester does without the result,
    /// and whatever needs it later reads it again.
    pub(crate) fn quietly(&mut self, begin: impl FnOnce(&mut Self)) {
        self.quiet = true;
        begin(self);
        self.quiet = false;
    }

    /// Takes back an operation that was popped but not passed to a device. It is popped again
    /// before all others, unless its completion does not matter any more.
    pub(crate) fn take_back(&mut self, io: Io) {
        if epoch_of(io.id) != self.epoch {
            return;
        }
        let (group, part) = names(io.id);
        self.unsent(io.device);
        let Some(g) = self.groups.get_mut(group) else { return };
        let Some(p) = g.parts.get_mut(usize::from(part)).filter(|p| p.stage == Stage::Out) else { return };
        g.out -= 1;
        if p.void {
            p.stage = Stage::Ended;
            self.bury(group);
        } else {
            p.stage = Stage::Waiting;
            self.outbox.push_front(io);
        }
    }
}
