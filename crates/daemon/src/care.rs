//! Changes of pools and exports that happen without a command: looked for, reported, and followed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use millpond_block::MemberId;

use super::device_names;
use super::devices::{CARE, places_taken, remembered_path};
use super::look::PoolLook;
use super::service::Daemon;

impl Daemon {
    /// Notices, as long as the daemon lives, pools that ended by themselves, low space on the host,
    /// devices that are slow, failing or back again, and spares that replaced lost devices.
    pub(super) async fn care(self: Arc<Daemon>) {
        let daemon = Arc::clone(&self);
        let returned = Arc::clone(&self);
        let wear = Arc::clone(&self).watch_wear();
        tokio::join!(daemon.watch_falls(), Arc::clone(&self).watch_room(), returned.watch_returned(), wear, self.care_for_devices());
    }

    async fn care_for_devices(self: Arc<Daemon>) {
        loop {
            self.until_changed(CARE).await;
            let looks = self.look_for_changes().await;
            self.end_unused_exports(&looks, Instant::now());
            for look in looks {
                let name = &look.record.name;
                let Some(answer) = look.answer() else { continue };
                if let Ok(shard) = self.shard(name) {
                    device_names::describe(&shard, &answer.status);
                }
                let known = self.registry().pools.get(name).map(|entry| entry.record.clone());
                if known.is_some_and(|record| !places_taken(&record, &answer.status).is_empty()) {
                    self.follow(name, None);
                }
            }
        }
    }

    /// Reports changes of pools and exports since the last look. Returns the new look.
    async fn look_for_changes(&self) -> Vec<PoolLook> {
        let mut looks = self.look().await;
        // a pool that was exported meanwhile has no valid look
        looks.retain(|look| self.registry().pools.contains_key(&look.record.name));
        let now = Instant::now();
        self.report_changes(&looks, now);
        let (pools, exports) = (self.list_pools(&looks), self.list_exports(&looks));
        self.look_at_conditions(&pools, &exports, now).await;
        looks
    }

    fn report_changes(&self, looks: &[PoolLook], now: Instant) {
        // take jobs and pools from one look: the devices of a job that is no longer listed are then
        // as it left them
        let (jobs, pools) = (self.list_jobs(looks), self.list_pools(looks));
        for pool in pools.iter().filter(|pool| pool.silent_since.is_none()) {
            if let Some(entry) = self.registry().pools.get_mut(&pool.name) {
                entry.device_health.look(&pool.devices, now);
            }
        }
        self.note_errors(looks, now);
        for pool in pools.iter().filter(|pool| pool.removal_ended.is_some() && pool.removal_ended_at.is_none()) {
            self.note_removal(&pool.name, pool.removal_ended.as_ref());
        }
        let exports = self.list_exports(looks);
        let restoring: BTreeSet<String> = {
            let registry = self.registry();
            registry.pools.iter().filter(|(_, entry)| entry.restoring).map(|(name, _)| name.clone()).collect()
        };
        let paths: BTreeMap<String, Vec<PathBuf>> = {
            let registry = self.registry();
            registry.pools.iter().map(|(name, entry)| (name.clone(), entry.record.devices.clone())).collect()
        };
        let path_of = |pool: &str, member: MemberId| remembered_path(paths.get(pool)?, member);
        let mut news = self.watches().look_at_pools(&pools, &jobs, path_of, now);
        news.extend(self.watches().look_at_exports(&exports, &pools, |pool| restoring.contains(pool), now));
        news.into_iter().for_each(|happened| self.report(happened));
    }
}
