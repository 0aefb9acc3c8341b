//! The reference as a state machine with devices, as the simulator drives it.

use millpond_block::{Buf, Completion, DeviceGeometry, DiskError, Io, IoDone, IoKind, IoSlices, Payload, Query, Request, Run, Tag};
use millpond_engine::{
    CatalogCommand, Command, CommandError, DiffExtent, Fault, Metrics, PoolInfo, PoolSpec, PoolState, Reply, SnapshotInfo, StateMachine,
    Time, Tuning, VolumeId, VolumeInfo, VolumeOptions,
};
use std::collections::BTreeMap;

use super::code::{self, Entry};
use super::{Answer, Bug, Doing, NO_OPTIONS, Reference};
use crate::system::{Media, Objects, System, Target};

impl StateMachine for Reference {
    fn state(&self) -> &PoolState {
        &self.state
    }

    fn submit(&mut self, target: Target, tag: Tag, request: Request, payload: Payload<'_>) {
        self.start(target, tag, request, payload, false);
    }

    fn submit_bytes(&mut self, target: Target, tag: Tag, request: Request, payload: Payload<'_>) {
        self.start(target, tag, request, payload, true);
    }

    /// Reports all blocks as data, and all as changed, which is never wrong.
    fn query(&mut self, _: Target, tag: Tag, query: Query) {
        let set = self.bug != Bug::HoleTooMany;
        let result = match self.state {
            PoolState::Online => Ok(vec![Run { length: query.range.length, set }]),
            _ => Err(DiskError::Shutdown),
        };
        self.query_answers.push_back(millpond_block::Answer { tag, result });
    }

    fn pop_answer(&mut self) -> Option<millpond_block::Answer> {
        self.query_answers.pop_front()
    }

    fn command(&mut self, tag: Tag, command: Command) {
        if self.state != PoolState::Online {
            return self.replies.push_back((tag, Err(CommandError::Faulted(Fault::Caller("stopped".to_owned())))));
        }
        if let (Bug::SplitGroupSnapshot, Command::Catalog(CatalogCommand::Snapshot { targets, description, expires, .. })) =
            (self.bug, &command)
            && let [first, rest @ ..] = targets.as_slice()
            && !rest.is_empty()
        {
            let part = |targets: Vec<_>| {
                Command::Catalog(CatalogCommand::Snapshot {
                    targets,
                    description: description.clone(),
                    expires: *expires,
                    lock_millis: None,
                })
            };
            self.append(Entry::Command(part(vec![first.clone()])), Vec::new());
            return self.later.push_back((tag, part(rest.to_vec())));
        }
        if let Err(error) = self.memory.check(&command) {
            return self.replies.push_back((tag, Err(error)));
        }
        if command == Command::Checkpoint {
            self.append(Entry::Command(command), Vec::new());
            return self.wait(true, Answer::Checkpoint(tag));
        }
        let reply = self.memory.reply(&command);
        self.append(Entry::Command(command), Vec::new());
        if self.bug == Bug::ReplyTooEarly {
            self.replies.push_back((tag, Ok(reply)));
        } else {
            self.wait(true, Answer::Command(tag, Ok(reply)));
        }
    }

    fn turn(&mut self, _: Time) -> bool {
        if self.state == PoolState::Online {
            for (tag, command) in std::mem::take(&mut self.later) {
                let mut names = Vec::new();
                if let Command::Catalog(CatalogCommand::Snapshot { targets, .. }) = &command {
                    names = targets.iter().map(|t| t.0).collect();
                }
                let first = self.memory.last_snapshot();
                self.append(Entry::Command(command), Vec::new());
                let ids = (first.0..=first.0 + names.len() as u64).map(millpond_engine::SnapshotId).collect();
                self.wait(true, Answer::Command(tag, Ok(Reply::Snapshots(ids))));
            }
            self.start_flush();
            self.answer_ready();
            let closing = self.memory.closed && self.waiters.is_empty() && self.doing.is_empty();
            if closing {
                self.state = PoolState::Closed;
            }
        }
        false
    }

    fn io_done(&mut self, done: IoDone) {
        let Some((doing, device)) = self.doing.remove(&done.id.0) else { return };
        match doing {
            Doing::Label => {
                if self.doing.is_empty() {
                    self.flush_all();
                }
            }
            Doing::Scan(offset) => {
                let Some(image) = self.images.get_mut(&device) else { return };
                match (done.result, done.buf) {
                    (Ok(()), Some(buf)) => {
                        let length = (image.len() - offset).min(1 << 20);
                        image[offset..offset + length].copy_from_slice(&buf.bytes()[..length]);
                    }
                    _ if self.bug == Bug::ReadErrorIsEnd => {}
                    _ => return self.fault("the log cannot be read"),
                }
                if self.doing.is_empty() && self.state == PoolState::Opening {
                    self.replay();
                }
            }
            Doing::Record(n, entry, payload) => {
                if done.result.is_err() {
                    return self.fault("the log cannot be written");
                }
                if self.bug == Bug::ApplyAtCompletion && matches!(*entry, Entry::Write { .. }) {
                    self.memory.apply(&entry, &payload);
                }
                self.done.insert(n, true);
                while self.done.remove(&self.written).is_some() {
                    self.written += 1;
                }
                self.answer_ready();
            }
            Doing::Flush => {
                if done.result.is_err() {
                    return self.fault("a flush failed");
                }
                if let Some((target, left)) = &mut self.flushing {
                    *left -= 1;
                    if *left == 0 {
                        self.durable = self.durable.max(*target);
                        self.flushing = None;
                        if self.state == PoolState::Opening {
                            self.state = PoolState::Online;
                        }
                        self.answer_ready();
                    }
                }
            }
        }
    }

    fn pop_io(&mut self) -> Option<Io> {
        self.ios.pop_front()
    }

    fn pop_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    fn pop_reply(&mut self) -> Option<(Tag, Result<Reply, CommandError>)> {
        let next = self.replies.pop_front();
        let closing = self.memory.closed && self.replies.is_empty() && self.waiters.is_empty();
        if next.is_some() && closing && self.state == PoolState::Online {
            self.state = PoolState::Closed;
        }
        next
    }

    fn pool(&self) -> Option<PoolInfo> {
        let layout = millpond_engine::Layout::Linear;
        let (name, id) = ("reference".to_owned(), millpond_engine::PoolId(self.pool));
        Some(PoolInfo {
            name,
            id,
            state: self.state.clone(),
            features: millpond_format::FeatureSet::default(),
            named_features: millpond_format::FeatureSet::default(),
            feature_names: millpond_format::FeatureNames::default(),
            layout,
            size: 0,
            allocated: 0,
            free: 0,
            given_up: 0,
            removal_ended: None,
            removal_waits: None,
            fell_back: None,
            space: millpond_engine::SpaceInfo::default(),
            devices: Vec::new(),
            jobs: Vec::new(),
            scrub: None,
            job_rate: None,
            read_only: false,
            refuses_writes: false,
        })
    }

    fn volumes(&self) -> Vec<VolumeInfo> {
        self.memory.volumes()
    }

    fn options(&self) -> &BTreeMap<VolumeId, VolumeOptions> {
        &NO_OPTIONS
    }

    fn metrics(&self) -> Metrics {
        Metrics::default()
    }

    fn start_diff(&mut self, tag: Tag, older: Option<Target>, newer: Target) {
        let extents = self.memory.diff(older, newer);
        self.diffs.push_back((tag, Ok(extents)));
    }

    fn pop_diff(&mut self) -> Option<(Tag, Result<Vec<DiffExtent>, CommandError>)> {
        self.diffs.pop_front()
    }
}

impl System for Reference {
    fn create(spec: PoolSpec, devices: Vec<DeviceGeometry>, _: Tuning, _: Time) -> Result<Reference, CommandError> {
        let mut system = Reference::empty(devices);
        system.pool = spec.id.0;
        for device in 0..system.devices.len() {
            let label = code::encode_label(&system.pool, device, system.devices.len());
            system.write(device, 0, &label, Doing::Label);
        }
        Ok(system)
    }

    fn import(devices: Vec<DeviceGeometry>, _: Tuning, _: Time) -> Reference {
        let mut system = Reference::empty(devices);
        for device in 0..system.devices.len() {
            let length = system.devices[device].size as usize;
            system.images.insert(device, vec![0; length]);
            for offset in (0..length).step_by(1 << 20) {
                let length = (length - offset).min(1 << 20);
                system.io(device, IoKind::Read { offset: offset as u64, length, buf: Buf::zeroed(length) }, Doing::Scan(offset));
            }
        }
        system
    }

    fn snapshots(&self) -> Vec<SnapshotInfo> {
        self.memory.snapshots()
    }

    fn audit(&mut self, _: Media<'_>, _: Objects<'_>) -> Vec<String> {
        Vec::new()
    }

    fn recycle(&mut self, _: IoSlices) {}
}
