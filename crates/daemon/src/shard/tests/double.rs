//! A pool without an engine: one volume directly in memory or on device 0, no log, no snapshots
//! except one read-only view of the volume.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use millpond_block::{
    Answer, BufPool, BufSlice, CacheMode, Completion, DeviceSlot, DiskError, Features, Geometry, Io, IoDone, IoId, IoKind, IoSlices, Op,
    Payload, Query, Request, Run, SectorProfile, Tag,
};
use millpond_engine::{
    Busy, CatalogCommand, Command, CommandError, Compression, DeviceCommand, DiffExtent, Fault, ImageInfo, JobCommand, Layout, Metrics,
    PoolId, PoolInfo, PoolState, Reply, SnapshotId, SnapshotInfo, StateMachine, Target, Time, VolumeId, VolumeInfo, VolumeOptions,
};

use crate::shard::pool::Pool;

pub const HEAD: Target = Target::Head(VolumeId(1));
pub const SNAPSHOT: Target = Target::Snapshot(SnapshotId(1));

/// Place of the volume's bytes.
pub enum Medium {
    Memory(Vec<u8>),
    Device,
    /// Never answers, neither requests nor commands.
    Hung,
}

pub struct Double {
    medium: Medium,
    size: u64,
    state: PoolState,
    ios: VecDeque<Io>,
    under_way: HashMap<IoId, (Tag, usize)>,
    last_io: u64,
    completions: VecDeque<Completion>,
    answers: VecDeque<Answer>,
    replies: VecDeque<(Tag, Result<Reply, CommandError>)>,
    diffs: VecDeque<(Tag, Result<Vec<DiffExtent>, CommandError>)>,
    buffers: BufPool,
    options: BTreeMap<VolumeId, VolumeOptions>,
    /// End of the lease on its device, in milliseconds of the wall clock; `now` is the time of that
    /// clock.
    lease: Option<&'static AtomicU64>,
    now: Time,
    /// Number of refusals of device changes until the labels are written.
    refusals: u32,
}

impl Double {
    pub fn new(medium: Medium, size: u64) -> Double {
        Double {
            medium,
            size,
            state: PoolState::Opening,
            ios: VecDeque::new(),
            under_way: HashMap::new(),
            last_io: 0,
            completions: VecDeque::new(),
            answers: VecDeque::new(),
            replies: VecDeque::new(),
            diffs: VecDeque::new(),
            buffers: BufPool::default(),
            options: BTreeMap::new(),
            lease: None,
            now: Time(0),
            refusals: 0,
        }
    }

    /// Sets the end of the lease on its device.
    pub fn leased(self, until: &'static AtomicU64) -> Double {
        Double { lease: Some(until), ..self }
    }

    /// Refuses so many device changes, because labels are being written.
    pub fn refusing(self, refusals: u32) -> Double {
        Double { refusals, ..self }
    }

    pub fn memory(size: usize) -> Double {
        Double::new(Medium::Memory(vec![0; size]), size as u64)
    }

    /// Carries out a request at once.
    fn in_memory(bytes: &mut [u8], buffers: &mut BufPool, request: Request, payload: Payload<'_>) -> Result<IoSlices, DiskError> {
        let (start, length) = (request.range.offset as usize, request.range.length as usize);
        let range = bytes.get_mut(start..start + length).ok_or(DiskError::OutOfBounds)?;
        match (request.op, payload) {
            (Op::Read, _) => {
                let mut buf = buffers.take(length);
                buf.bytes_mut()[..length].copy_from_slice(range);
                return Ok(IoSlices::from_elem(BufSlice::new(buf, 0..length), 1));
            }
            (Op::Write, Payload::Copy(source)) => range.copy_from_slice(source),
            (Op::Write, Payload::Owned(buf)) => {
                range.copy_from_slice(&buf.bytes()[..length]);
                buffers.give(buf);
            }
            (Op::Discard | Op::WriteZeroes { .. }, _) => range.fill(0),
            _ => {}
        }
        Ok(IoSlices::new())
    }

    fn on_device(&mut self, tag: Tag, request: Request, payload: Payload<'_>) {
        let (offset, length) = (request.range.offset, request.range.length as usize);
        let kind = match (request.op, payload) {
            (Op::Read, _) => IoKind::Read { offset, length, buf: self.buffers.take(length) },
            (Op::Write, payload) => {
                let buf = match payload {
                    Payload::Owned(buf) => buf,
                    Payload::Copy(bytes) => {
                        let mut buf = self.buffers.take(length);
                        buf.bytes_mut()[..length].copy_from_slice(bytes);
                        buf
                    }
                    Payload::None => return self.completions.push_back(Completion { tag, result: Err(DiskError::Invalid) }),
                };
                IoKind::Write { offset, pieces: vec![BufSlice::new(buf, 0..length)] }
            }
            (Op::Discard, _) => IoKind::Discard { offset, length: length as u64 },
            _ => IoKind::Flush,
        };
        self.last_io += 1;
        self.under_way.insert(IoId(self.last_io), (tag, if request.op == Op::Read { length } else { 0 }));
        self.ios.push_back(Io { id: IoId(self.last_io), device: DeviceSlot(0), kind, urgent: false });
    }
}

impl StateMachine for Double {
    fn state(&self) -> &PoolState {
        &self.state
    }

    fn submit(&mut self, target: Target, tag: Tag, request: Request, payload: Payload<'_>) {
        if let Some((geometry, features)) = self.geometry(target)
            && let Err(error) = request.validate(&geometry, &features)
        {
            return self.completions.push_back(Completion { tag, result: Err(error) });
        }
        match &mut self.medium {
            Medium::Memory(bytes) => {
                let result = Double::in_memory(bytes, &mut self.buffers, request, payload);
                self.completions.push_back(Completion { tag, result });
            }
            Medium::Device => self.on_device(tag, request, payload),
            Medium::Hung => {}
        }
    }

    fn submit_bytes(&mut self, target: Target, tag: Tag, request: Request, payload: Payload<'_>) {
        self.submit(target, tag, request, payload);
    }

    fn query(&mut self, _target: Target, tag: Tag, query: Query) {
        self.answers.push_back(Answer { tag, result: Ok(vec![Run { length: query.range.length, set: query.since.is_none() }]) });
    }

    fn pop_answer(&mut self) -> Option<Answer> {
        self.answers.pop_front()
    }

    fn command(&mut self, tag: Tag, command: Command) {
        if matches!(self.medium, Medium::Hung) {
            return;
        }
        let result = match command {
            Command::Close => {
                self.state = PoolState::Closed;
                Ok(Reply::Done)
            }
            Command::Catalog(CatalogCommand::ResizeVolume { size, .. }) => {
                self.size = size;
                Ok(Reply::Done)
            }
            Command::Catalog(CatalogCommand::SetOptions { volume, options }) => {
                self.options.insert(volume, options);
                Ok(Reply::Done)
            }
            Command::Checkpoint => Err(CommandError::Faulted(Fault::Caller("as asked".to_owned()))),
            Command::Devices(DeviceCommand::Remove { .. }) if self.refusals > 0 => {
                self.refusals -= 1;
                Err(CommandError::Busy(Busy::Relabeling))
            }
            Command::Job(JobCommand::Rebalance { .. }) => Err(CommandError::Busy(Busy::Scrubbing)),
            _ => Ok(Reply::Done),
        };
        self.replies.push_back((tag, result));
    }

    fn answer(&mut self, now: Time) {
        self.now = now;
    }

    fn turn(&mut self, now: Time) -> bool {
        self.now = now;
        if self.state == PoolState::Opening {
            self.state = PoolState::Online;
        }
        false
    }

    fn io_done(&mut self, done: IoDone) {
        let Some((tag, length)) = self.under_way.remove(&done.id) else { return };
        let data = done.buf.filter(|_| length > 0).map(|buf| BufSlice::new(buf, 0..length));
        let result = done.result.map(|()| data.into_iter().collect()).map_err(|_| DiskError::Io);
        self.completions.push_back(Completion { tag, result });
    }

    fn lease(&self) -> Option<Time> {
        self.lease.map(|until| Time(until.load(Ordering::SeqCst)))
    }

    fn take_back(&mut self, io: Io) {
        self.ios.push_front(io);
    }

    fn pop_io(&mut self) -> Option<Io> {
        if self.lease().is_some_and(|until| self.now > until) {
            return None;
        }
        self.ios.pop_front()
    }

    fn pop_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    fn pop_reply(&mut self) -> Option<(Tag, Result<Reply, CommandError>)> {
        self.replies.pop_front()
    }

    fn pool(&self) -> Option<PoolInfo> {
        Some(PoolInfo {
            name: "double".to_owned(),
            id: PoolId([7; 16]),
            state: self.state.clone(),
            read_only: false,
            refuses_writes: false,
            features: millpond_format::FeatureSet::default(),
            named_features: millpond_format::FeatureSet::default(),
            feature_names: millpond_format::FeatureNames::default(),
            layout: Layout::Linear,
            size: self.size,
            allocated: 0,
            free: self.size,
            given_up: 0,
            removal_ended: None,
            removal_waits: None,
            fell_back: None,
            space: millpond_engine::SpaceInfo::default(),
            devices: Vec::new(),
            jobs: Vec::new(),
            scrub: None,
            job_rate: None,
        })
    }

    fn volumes(&self) -> Vec<VolumeInfo> {
        vec![VolumeInfo {
            id: VolumeId(1),
            name: "disk".to_owned(),
            size: self.size,
            sector: SectorProfile::S512e,
            cache: CacheMode::Writeback,
            compression: Compression::Off,
            read_only: false,
            read_cache: millpond_engine::ReadCacheUse::default(),
            options: self.options.get(&VolumeId(1)).copied().unwrap_or_default(),
            referenced_bytes: 0,
            unique_bytes: 0,
            snapshots: 1,
            origin: None,
            created: Time(0),
            base: None,
        }]
    }

    fn options(&self) -> &BTreeMap<VolumeId, VolumeOptions> {
        &self.options
    }

    fn metrics(&self) -> Metrics {
        Metrics::default()
    }

    fn start_diff(&mut self, tag: Tag, _older: Option<Target>, _newer: Target) {
        self.diffs.push_back((tag, Ok(vec![DiffExtent { offset: 0, length: self.size, data: true }])));
    }

    fn pop_diff(&mut self) -> Option<(Tag, Result<Vec<DiffExtent>, CommandError>)> {
        self.diffs.pop_front()
    }
}

impl Pool for Double {
    fn volumes_after(&self, after: Option<VolumeId>, most: usize) -> Vec<VolumeInfo> {
        self.volumes().into_iter().filter(|volume| Some(volume.id) > after).take(most).collect()
    }

    fn volume_of(&self, _: Target) -> Option<VolumeId> {
        Some(VolumeId(1))
    }

    fn image(&self, _: Target) -> Option<ImageInfo> {
        None
    }

    fn volume_images(&self, _: Option<VolumeId>, _: usize) -> Vec<(VolumeId, ImageInfo)> {
        Vec::new()
    }

    fn snapshot_images(&self, _: VolumeId, _: Option<SnapshotId>, _: usize) -> Vec<(SnapshotId, ImageInfo)> {
        Vec::new()
    }

    fn older_states(&self, _: Target, _: usize) -> Vec<(String, SnapshotId)> {
        vec![("now".to_owned(), SnapshotId(1))]
    }

    fn older_state(&self, target: Target, name: &str) -> Option<SnapshotId> {
        self.older_states(target, 1).into_iter().find(|(known, _)| known == name).map(|(_, id)| id)
    }

    fn find_volume(&self, name: &str) -> Option<VolumeInfo> {
        self.volumes().into_iter().find(|volume| volume.name == name)
    }

    fn snapshots_after(&self, _: Option<SnapshotId>, _: usize) -> Vec<SnapshotInfo> {
        Vec::new()
    }

    fn find_snapshot(&self, _: VolumeId, _: &str) -> Option<SnapshotInfo> {
        None
    }

    fn geometry(&self, target: Target) -> Option<(Geometry, Features)> {
        let read_only = match target {
            HEAD => false,
            SNAPSHOT => true,
            _ => return None,
        };
        Some((Geometry { size: self.size, sector: SectorProfile::S512e }, Features { read_only, write_cache: true }))
    }

    fn buffers(&mut self) -> &mut BufPool {
        &mut self.buffers
    }
}
