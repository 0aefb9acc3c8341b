//! The bucket of a pool, between engine and store: works and their answers, terms, and how far uploads
//! had come when the engine ended.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;

use millpond_engine::{BucketObject, BucketOp, BucketState, PoolState};
use millpond_format::ObjectName;

use super::World;
use super::object_store::{Answer, CREATED, RIGHT};
use crate::System;
use crate::config::Kind;
use crate::oracle::{Verdict, broken};
use crate::trace::{Digest, Event, Moment};

/// Turns after which an object that was created and not placed has nothing left to be placed.
const PLACING: u32 = 200;

/// How far the uploads of an engine have come.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    /// Objects that were reported as created, and not placed yet, for so many turns.
    created: BTreeMap<ObjectName, u32>,
    /// Objects that this engine placed, and when that was seen.
    placed: BTreeMap<ObjectName, Moment>,
    /// The placed ones that an engine still had at its end, until the next import.
    at_end: BTreeSet<ObjectName>,
    /// Those of them that the next import must have.
    durable: BTreeSet<ObjectName>,
    /// The engine has ended.
    ended: bool,
}

impl<S: System> World<S> {
    /// Takes all works for the bucket out of the engine.
    pub(super) fn take_bucket_works(&mut self, system: &mut S) -> Verdict {
        while let Some(work) = system.pop_bucket_work() {
            let event = match &work.op {
                BucketOp::Create { name, pieces } => {
                    let mut digest = Digest::default();
                    pieces.iter().for_each(|piece| digest.write(piece.bytes()));
                    let length: usize = pieces.iter().map(|piece| piece.len()).sum();
                    Event::Bucket(work.id, "create", name.to_string(), 0, length as u64, digest.finish())
                }
                BucketOp::Read { name, offset, length } => {
                    self.stats.object_reads += 1;
                    Event::Bucket(work.id, "read", name.to_string(), *offset, *length as u64, 0)
                }
            };
            self.trace.add(event);
            let Some(store) = &mut self.bucket else { return broken(format!("{work:?} although there is no bucket")) };
            let before = store.asked;
            store.take(work, self.machine.nanos())?;
            self.stats.uploads += store.asked - before;
        }
        Ok(())
    }

    /// Lets the bucket answer a work; returns whether it did.
    pub(super) fn answer_bucket(&mut self) -> bool {
        let surely = self.machine.idle();
        let World { bucket: Some(store), system: Some(system), oracle, trace, machine, stats, progress, .. } = self else { return false };
        if let Some(stray) = store.stray() {
            stats.late_objects += 1;
            trace.add(Event::BucketDone(stray.id, stray.word));
            system.bucket_done(stray.id, stray.result);
        }
        let Some(Answer { id, result, created, word }) = store.answer(machine.nanos(), surely) else { return false };
        let at = trace.add(Event::BucketDone(id, word));
        progress.created.extend(created.map(|name| (name, 0)));
        if word != CREATED && word != RIGHT {
            stats.wrong_objects += 1;
            if store.may_fail() {
                oracle.refuse_object(at);
            }
        }
        system.bucket_done(id, result);
        true
    }

    /// Gives the import a term, or reports that its bucket is away or back, sometimes.
    pub(super) fn tell_bucket(&mut self) -> Verdict {
        let older = self.damaged || self.oracle.rewound;
        let online = self.is_in_service();
        let World { bucket: Some(store), system: Some(system), trace, machine, .. } = self else { return Ok(()) };
        let Some(news) = store.news(machine.nanos(), older).filter(|_| online) else { return Ok(()) };
        let result = system.set_bucket(news.clone());
        let word = match &news {
            BucketState::Ready { .. } => "ready",
            BucketState::Away => "away",
            BucketState::Full => "full",
        };
        trace.note(format!("the bucket is {word}, {news:?}: {result:?}"));
        store.heard(&news, result.is_ok())
    }

    fn is_in_service(&self) -> bool {
        self.system.as_ref().is_some_and(|system| *system.state() == PoolState::Online)
    }

    /// Notes which objects the engine has placed.
    pub(super) fn note_placed(&mut self) {
        let World { bucket: Some(store), system: Some(system), progress, stats, trace, .. } = self else { return };
        if progress.created.is_empty() {
            return;
        }
        let table: BTreeSet<ObjectName> = system.bucket_objects().into_iter().map(|object| object.name).collect();
        progress.created.retain(|name, turns| {
            *turns += 1;
            let placed = table.contains(name);
            stats.placed += u64::from(placed && progress.placed.insert(*name, trace.now()).is_none());
            !placed && *turns < PLACING
        });
        store.settle(|name| table.contains(&name));
    }

    /// Returns how far uploads are now that the engine ends, for the next import, and the counts for
    /// [`Stats::ended_in`](crate::Stats::ended_in). None if that was noted, or nothing is in service.
    pub(super) fn uploads_at_end(&self) -> Option<(Progress, [u64; 4])> {
        let World { bucket: Some(store), system: Some(system), progress, oracle, .. } = self else { return None };
        if progress.ended {
            return None;
        }
        let table: Vec<BucketObject> = system.bucket_objects().into_iter().filter(|o| progress.placed.contains_key(&o.name)).collect();
        // a write that is durable has everything before it in the log
        let is_durable = |object: &&BucketObject| object.is_live && progress.placed[&object.name] < oracle.durable_since();
        let names = |objects: Vec<&BucketObject>| objects.into_iter().map(|object| object.name).collect();
        let durable = if oracle.errors_allowed { BTreeSet::new() } else { names(table.iter().filter(is_durable).collect()) };
        let at_end = names(table.iter().collect());
        let counts = [store.creates(), !progress.created.is_empty(), false, false].map(u64::from);
        Some((Progress { at_end, durable, ended: true, ..Progress::default() }, counts))
    }

    /// Notes how far uploads are, because the engine ends.
    pub(super) fn end_uploads(&mut self) {
        if let Some((progress, counts)) = self.uploads_at_end() {
            self.progress = progress;
            self.stats.ended_in.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
    }

    /// Ends what the engine asked of its bucket, because it ends.
    pub(super) fn end_bucket(&mut self) {
        self.end_uploads();
        self.bucket.iter_mut().for_each(|store| store.forget(self.machine.nanos()));
    }

    /// Notes which of the placed objects a pool has after its import.
    ///
    /// # Errors
    /// If it lacks one whose places were durable.
    pub(super) fn note_import(&mut self) -> Verdict {
        if !self.is_in_service() {
            return Ok(());
        }
        let older = self.damaged || self.oracle.errors_allowed || matches!(self.config.kind, Kind::Restarts(_));
        let World { system: Some(system), progress, stats, .. } = self else { return Ok(()) };
        let Progress { at_end: before, durable, .. } = std::mem::take(progress);
        if before.is_empty() {
            return Ok(());
        }
        let table: BTreeSet<ObjectName> = system.bucket_objects().into_iter().map(|object| object.name).collect();
        stats.ended_in[2] += u64::from(!before.is_subset(&table));
        stats.ended_in[3] += u64::from(!before.is_disjoint(&table));
        match durable.iter().find(|name| !table.contains(name)).filter(|_| !older) {
            Some(name) => broken(format!("chunks were placed in {name} before a write that was durable, and the import does not know it")),
            None => Ok(()),
        }
    }

    /// Requires the objects of the engine's table to exist.
    pub(super) fn audit_bucket(&self) -> Verdict {
        let World { bucket: Some(store), system: Some(system), .. } = self else { return Ok(()) };
        store.compare(&system.bucket_objects())
    }
}
