//! Fetches of chunks of bases, between engine and store.

use millpond_engine::FetchError;

use super::World;
use crate::System;
use crate::oracle::{Verdict, broken};
use crate::trace::Event;

impl<S: System> World<S> {
    /// Lets the store answer a fetch; returns whether it did.
    pub(super) fn answer_fetch(&mut self) -> bool {
        let surely = self.machine.idle();
        let World { store: Some(store), system: Some(system), oracle, trace, machine, stats, .. } = self else { return false };
        if let Some((fetch, result)) = store.stray(oracle.grid()) {
            stats.late_fetches += 1;
            trace.add(Event::Fetched(fetch.id, "too late"));
            system.fetched(fetch, result);
        }
        let Some((fetch, result)) = store.answer(oracle.grid(), machine.nanos(), surely) else { return false };
        let outcome = match &result {
            Ok(Some(_)) => "data",
            Ok(None) => "zeroes",
            Err(FetchError::Missing) => "missing",
            Err(FetchError::Damaged) => "damaged",
            Err(FetchError::NotNow) => "not now",
        };
        let at = trace.add(Event::Fetched(fetch.id, outcome));
        stats.fetches_ahead += u64::from(fetch.ahead && result.is_ok());
        if matches!(result, Err(FetchError::Missing | FetchError::Damaged)) {
            stats.refused_fetches += 1;
            oracle.refuse_chunk(fetch.base, fetch.chunk, at);
        }
        stats.fetches += 1;
        system.fetched(fetch, result);
        true
    }

    /// Takes all fetches out of the engine.
    pub(super) fn take_fetches(&mut self, system: &mut S) -> Verdict {
        while let Some(fetch) = system.pop_fetch() {
            self.trace.add(Event::Fetch(fetch.id, fetch.base.0.into(), fetch.chunk));
            let Some(store) = &mut self.store else { return broken(format!("{fetch:?} although there is no base")) };
            self.stats.fetched_again += u64::from(store.take(fetch, &self.oracle, self.machine.nanos())?);
        }
        Ok(())
    }

    /// Returns whether there is a store that may fail requests.
    pub(super) fn has_store(&self) -> bool {
        self.store.is_some() || self.bucket.is_some()
    }

    /// Makes a store go away for a while, sometimes.
    pub(super) fn befall_store(&mut self) {
        let now = self.machine.nanos();
        self.store.iter_mut().for_each(|store| store.befall(now));
        self.bucket.iter_mut().for_each(|store| store.befall(now));
    }

    /// Makes all chunks and objects good, or lets them be missing or damaged again.
    pub(super) fn heal_store(&mut self, good: bool) {
        self.store.iter_mut().for_each(|store| store.heal(good));
        self.bucket.iter_mut().for_each(|store| store.heal(good));
    }

    /// Gives late answers to an engine whose pool is closed.
    pub(super) fn answer_after_close(&mut self) {
        let World { store, bucket, system: Some(system), oracle, trace, machine, .. } = self else { return };
        if let Some(store) = store {
            store.forget();
            while let Some((fetch, result)) = store.stray(oracle.grid()) {
                trace.add(Event::Fetched(fetch.id, "after the close"));
                system.fetched(fetch, result);
            }
        }
        if let Some(bucket) = bucket {
            bucket.forget(machine.nanos());
            while let Some(stray) = bucket.stray() {
                trace.add(Event::BucketDone(stray.id, "after the close"));
                system.bucket_done(stray.id, stray.result);
            }
        }
    }
}
