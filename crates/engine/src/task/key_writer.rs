//! Writing the key table: empty pages for a new table, a page that a command changes, pages that a scrub
//! found damaged.
//!
//! Pages are written like roots: to the first areas, flushed, to the second areas, flushed. Before that, a
//! flush makes what is in the other copies durable. So in a power cut each device keeps a readable copy of
//! the page, old or new, and with it a wrap of each key (INV-CRYPT-9); an import takes the newest of all
//! copies. One thing is written at a time.
//!
//! A change is answered after that (INV-CRYPT-6, INV-CRYPT-7). A device that fails meanwhile is done
//! without, and the answer waits until the labels say so.

use millpond_block::{DeviceError, MemberId};
use millpond_format::{KEY_TABLE_OFFSET, KeyPage, second_area};

use crate::Fault;
use crate::store::{Context, KeyWork, Store, empty_pages};

/// Progress of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Step {
    #[default]
    Idle,
    /// Earlier writes are being made durable.
    Barrier,
    First,
    FirstFlush,
    Second,
    SecondFlush,
}

/// The task that writes the key table.
#[derive(Debug, Default)]
pub(crate) struct KeyWriter {
    step: Step,
    work: Option<KeyWork>,
}

impl KeyWriter {
    /// Begins the next write, and answers commands whose changes are durable. `filling`: a device is about
    /// to count as whole, with the table as it is now. `scrubbing`: copies of the table are being compared.
    pub(crate) fn step_keys(&mut self, store: &mut Store, filling: bool, scrubbing: bool) {
        if !store.labels.holds_flushes(store.generation) {
            let tags = store.keys.take_answers();
            store.replies.extend(tags.into_iter().map(|tag| (tag, Ok(crate::Reply::Done))));
            let upgrades = if store.labels.busy() { Vec::new() } else { store.keys.take_upgrades() };
            upgrades.into_iter().for_each(|tag| store.turn_features_on(tag));
        }
        // devices that are new, or in the place of another one, have the table as it was
        let settled = store.labels.fresh.is_empty() && store.labels.switching.is_empty();
        if self.step != Step::Idle || filling || !settled {
            return;
        }
        let Some(work) = store.keys.next(!scrubbing, &mut store.replies) else { return };
        self.work = Some(work);
        store.keys.writing = true;
        self.step = Step::Barrier;
        store.flusher.wants.keys = true;
    }

    /// Handles the end of a write.
    pub(crate) fn keys_written(&mut self, store: &mut Store, result: Result<(), DeviceError>) {
        if let Err(error) = result {
            return store.fault(Fault::Keys(error));
        }
        self.step = match self.step {
            Step::First => Step::FirstFlush,
            Step::Second => Step::SecondFlush,
            step => step,
        };
        store.flusher.wants.keys = true;
    }

    /// Handles the end of a flush. Returns true when a new table is on all devices.
    pub(crate) fn keys_flushed(&mut self, store: &mut Store) -> bool {
        match self.step {
            Step::Barrier => {
                self.step = Step::First;
                self.write_area(store, false);
            }
            Step::FirstFlush => {
                self.step = Step::Second;
                self.write_area(store, true);
            }
            Step::SecondFlush => {
                self.step = Step::Idle;
                store.keys.writing = false;
                let Some(work) = self.work.take() else { return false };
                let is_new = matches!(work, KeyWork::Empty);
                store.keys.written(work, store.config.id);
                return is_new;
            }
            Step::Idle | Step::First | Step::Second => {}
        }
        false
    }

    /// Takes the command whose change is being written, because the pool has stopped.
    pub(crate) fn take_command(&mut self) -> Option<millpond_block::Tag> {
        match self.work.take()? {
            KeyWork::Change(tag, _) => Some(tag),
            KeyWork::Empty | KeyWork::Again(_) => None,
        }
    }

    /// Writes to one area of each whole device.
    fn write_area(&self, store: &mut Store, second: bool) {
        let pieces: Vec<(u64, Vec<u8>)> = match &self.work {
            None => return,
            Some(KeyWork::Empty) => {
                vec![(KEY_TABLE_OFFSET, empty_pages(store.config.id).flat_map(|page| page.encode()).collect())]
            }
            Some(KeyWork::Again(pages)) => pages.iter().filter_map(|number| store.keys.page(*number)).map(placed).collect(),
            Some(KeyWork::Change(_, page)) => vec![placed(page)],
        };
        let members: Vec<(MemberId, u64)> = store.key_members().into_iter().map(|member| (member, store.config.size_of(member))).collect();
        let mut writes = Vec::new();
        for (offset, bytes) in pieces {
            let piece = store.key_piece(&bytes);
            let area = |size: u64| if second { second_area(size) } else { 0 };
            writes.extend(members.iter().map(|(member, size)| (*member, area(*size) + offset, piece.clone())));
        }
        store.io.write_raw(Context::Keys, writes);
    }
}

fn placed(page: &KeyPage) -> (u64, Vec<u8>) {
    (KeyPage::offset(page.number), page.encode().to_vec())
}
