//! Records of commands in the log.

use millpond_block::{DiskError, Tag};
use millpond_format::{Item, Record, VolumeId};

use super::op::{ClearWork, Owner, Work};
use super::requests::Requests;
use crate::Reply;
use crate::store::{MAX_VOLUME_BYTES, Store};

impl Requests {
    pub(crate) fn log_records(&mut self, store: &mut Store, tag: Tag, records: Vec<Record>, reply: Reply) -> bool {
        let id = self.new_op(Owner::Command(tag), Work::Command(Ok(reply)), true);
        let deals_anew = records.iter().any(|record| matches!(record, Record::Options { .. } | Record::RemoveVolume { .. }));
        for record in records {
            if self.append_item(store, id, &Item::Record(record.clone())).is_err() {
                self.fail_op(store, id, DiskError::NoSpace);
                return false;
            }
            store.core.apply_record(&record);
            store.locked(&record);
        }
        if deals_anew {
            self.arrange_read_cache(store, self.read_cache.size());
        }
        store.seal_all();
        self.release(store, id);
        true
    }

    /// Discards blocks mapped beyond a volume's end: after a shrink, and where a head may be from
    /// the time of a shrink: after an import, a rollback, a clone.
    pub(super) fn trim_beyond(&mut self, store: &mut Store, volume: VolumeId) {
        let Some(size) = store.core.catalog.volumes.get(&volume).map(|v| v.size) else { return };
        let work = Work::Clear(ClearWork { volume, next: size / 4096, end: MAX_VOLUME_BYTES / 4096 });
        let id = self.new_op(Owner::Nobody, work, false);
        self.trimming.insert(volume, id);
        self.untrimmed.remove(&volume);
        self.ready.push_back(id);
    }
}
