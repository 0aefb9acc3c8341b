//! Operations that overtake others, and operations that come back without having been carried out.

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
