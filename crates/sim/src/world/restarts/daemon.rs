//! A daemon's knowledge of the pool, in its memory and in its durable state.

use std::collections::BTreeSet;

use millpond_engine::{DeviceId, Evidence, ImportRules, LabelsInForce};

/// When a memory that could not be written is tried again, in milliseconds.
const AGAIN: u64 = 2_000;

/// A host's knowledge of the pool.
#[derive(Clone, Debug, Default)]
pub(super) struct Daemon {
    /// Labels in its durable state; `None` if the pool is not in that state.
    pub(super) memory: Option<LabelsInForce>,
    /// The labels in force, while it serves the pool.
    pub(super) noted: Option<LabelsInForce>,
    /// When they are remembered, in milliseconds.
    due: Option<u64>,
    /// Nothing can be remembered until then.
    pub(super) full_until: u64,
    /// Devices that it trusts and that were given up since.
    pub(super) gap: BTreeSet<DeviceId>,
    /// True since an import that it began: it trusts only devices that the labels of that import call
    /// complete.
    pub(super) distrusts: bool,
}

impl Daemon {
    /// Remembers, in time.
    pub(super) fn remember(&mut self, labels: LabelsInForce) {
        (self.noted, self.memory, self.due) = (Some(labels.clone()), Some(labels), None);
        self.gap.clear();
    }

    /// Remembers the labels of an import before it serves. Returns false if they have to be
    /// remembered first (`first`), and there is no room for them.
    pub(super) fn remember_import(&mut self, labels: LabelsInForce, by_hand: bool, first: bool, now: u64) -> bool {
        let labels = labels.after(self.memory.as_ref());
        let labels = if by_hand { labels.by_hand() } else { labels };
        self.noted = Some(labels.clone());
        let saved = self.save(labels, now);
        if !saved && first {
            return false;
        }
        self.due = (!saved).then_some(now + AGAIN);
        if saved {
            self.gap.clear();
        }
        true
    }

    /// Labels change while it serves. True when they have to be remembered, which is done at `due`.
    pub(super) fn note(&mut self, rules: &ImportRules, labels: LabelsInForce, due: u64) -> bool {
        let changed = rules.is_news(self.noted.as_ref(), &labels);
        if changed {
            (self.noted, self.due) = (Some(labels.after(self.noted.as_ref())), Some(due));
        }
        changed
    }

    /// Makes everything due at once.
    pub(super) fn hurry(&mut self, now: u64) {
        self.due = self.due.map(|_| now);
    }

    /// Remembers what is due. True when it was tried.
    pub(super) fn save_due(&mut self, now: u64) -> bool {
        if self.due.is_none_or(|due| due > now) {
            return false;
        }
        self.due = Some(now + AGAIN);
        if let Some(noted) = self.noted.clone() {
            self.save(noted, now);
        }
        true
    }

    /// Does it trust nothing of what is found but devices that were given up since? Those with the newest label, or that it calls present
    /// and that have one which is no older than what is remembered.
    pub(super) fn is_wrong_about(&self, found: &Evidence) -> bool {
        let Some(memory) = &self.memory else { return false };
        let held = found.held.iter().filter(|(_, generation)| *generation >= memory.generation).map(|(device, _)| device);
        let mut trusted = found.newest_on.iter().chain(held).filter(|device| memory.trusts(**device)).peekable();
        trusted.peek().is_some() && trusted.all(|device| self.gap.contains(device))
    }

    /// Replaces what is remembered, or not at all.
    pub(super) fn save(&mut self, labels: LabelsInForce, now: u64) -> bool {
        if now < self.full_until {
            return false;
        }
        (self.memory, self.due, self.distrusts) = (Some(labels), None, false);
        true
    }
}
