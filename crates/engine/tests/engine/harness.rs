//! An engine with memory devices; every device operation completes at once, in order.

use std::collections::BTreeMap;

use millpond_block::{
    Buf, ByteRange, CacheMode, DeviceError, DeviceGeometry, DeviceSlot, DiskError, Io, IoDone, IoKind, MemberId, Op, Payload, Query,
    Request, SectorProfile, Since, Tag,
};
use millpond_engine::{
    BucketError, BucketOp, BucketWork, CatalogCommand, Command, CommandError, Compression, DeviceCommand, Engine, GroupSpec, Layout,
    NewDevice, PoolId, PoolSpec, PoolState, Reply, RestorePointScan, SnapshotId, Surveyed, Target, Time, Tuning, VolumeId,
};
use millpond_format::{ObjectHead, ObjectName};

/// Objects of a bucket in memory.
#[derive(Default)]
pub struct Bucket {
    pub objects: BTreeMap<ObjectName, Vec<u8>>,
    /// It does not answer.
    pub away: bool,
    /// Reads that are answered with wrong bytes, before right ones.
    pub rots: u32,
    /// Reads that were answered.
    pub reads: Vec<(ObjectName, u64, usize)>,
    /// Creates are kept in `held` instead of being answered: number of the work, name, and object.
    pub holds: bool,
    pub held: Vec<(u64, ObjectName, Vec<u8>)>,
    /// Objects that were created, in their order.
    pub created: Vec<ObjectName>,
}

impl Bucket {
    /// Answers a request, unless it is held.
    fn answer(&mut self, work: BucketWork) -> Option<Result<Option<Buf>, BucketError>> {
        match work.op {
            BucketOp::Read { name, offset, length } => Some(self.read(name, offset, length).map(Some)),
            BucketOp::Create { name, pieces } => {
                let object = pieces.iter().map(|piece| piece.bytes()).collect::<Vec<_>>().concat();
                if self.holds {
                    self.held.push((work.id, name, object));
                    return None;
                }
                Some(self.create(name, object).map(|()| None))
            }
        }
    }

    /// Creates an object, which must be whole.
    pub fn create(&mut self, name: ObjectName, object: Vec<u8>) -> Result<(), BucketError> {
        ObjectHead::expect_whole(&object, PoolId([7; 16]), name).unwrap();
        if self.objects.contains_key(&name) {
            return Err(BucketError::Taken);
        }
        self.created.push(name);
        self.objects.insert(name, object);
        Ok(())
    }

    fn read(&mut self, name: ObjectName, offset: u64, length: usize) -> Result<Buf, BucketError> {
        self.reads.push((name, offset, length));
        let object = self.objects.get(&name).ok_or(BucketError::Missing)?;
        let from = offset as usize;
        let bytes = object.get(from..from + length).ok_or(BucketError::Damaged)?;
        let mut buf = Buf::zeroed(length);
        buf.bytes_mut()[..length].copy_from_slice(bytes);
        if self.rots > 0 {
            self.rots -= 1;
            buf.bytes_mut().iter_mut().for_each(|byte| *byte ^= 0x10);
        }
        Ok(buf)
    }
}

pub struct Harness {
    pub engine: Engine,
    pub media: Vec<Vec<u8>>,
    pub now: u64,
    /// Time of a clock that only passes, in milliseconds.
    pub host: u64,
    pub tuning: Tuning,
    /// True when devices cannot be read.
    pub unreadable: bool,
    /// Devices that fail all operations.
    pub dead: Vec<u16>,
    /// A byte of a device that cannot be read.
    pub bad: Option<(u16, u64)>,
    /// Places of devices that cannot be written.
    pub unwritable: Vec<(u16, u64)>,
    /// Number of reads, by device.
    pub reads: Vec<u64>,
    /// Ranges that were zeroed since the last flush, by device.
    pub unflushed_zeroes: Vec<Vec<(u64, usize)>>,
    /// Bytes that were zeroed ahead of the log, by device, and bytes discarded.
    pub zeroed: Vec<u64>,
    pub discarded: u64,
    /// When true, devices refuse to zero ranges; and the number of refusals.
    pub refuse_zeros: bool,
    pub refused_zeros: u64,
    pub bucket: Bucket,
    next_tag: u64,
}

fn geometry(media: &[Vec<u8>]) -> Vec<DeviceGeometry> {
    media.iter().map(|m| DeviceGeometry { size: m.len() as u64, logical_sector: 512, physical_sector: 4096 }).collect()
}

impl Harness {
    pub fn new(sizes_mib: &[usize], layout: Layout) -> Harness {
        let tuning = Tuning { map_memory: 4 << 20, checkpoint_log_bytes: 2 << 20, ..Tuning::default() };
        Harness::with(sizes_mib, layout, tuning)
    }

    pub fn with(sizes_mib: &[usize], layout: Layout, tuning: Tuning) -> Harness {
        Harness::with_groups(sizes_mib, vec![GroupSpec::data(layout)], tuning)
    }

    pub fn with_groups(sizes_mib: &[usize], groups: Vec<GroupSpec>, tuning: Tuning) -> Harness {
        Harness::with_extents(sizes_mib, groups, tuning, None)
    }

    pub fn with_extents(sizes_mib: &[usize], groups: Vec<GroupSpec>, tuning: Tuning, extent_bytes: Option<u64>) -> Harness {
        let spec = PoolSpec { name: "pond".into(), id: PoolId([7; 16]), groups, extent_bytes, features: false };
        Harness::create(sizes_mib, spec, tuning)
    }

    pub fn create(sizes_mib: &[usize], spec: PoolSpec, tuning: Tuning) -> Harness {
        let media: Vec<Vec<u8>> = sizes_mib.iter().map(|mib| vec![0; mib << 20]).collect();
        let mut harness = Harness::begin_create(media, spec, tuning);
        harness.settle();
        assert_eq!(*harness.engine.state(), PoolState::Online);
        harness
    }

    /// Begins to create a pool on devices that may hold something, before its first turn.
    pub fn begin_create(media: Vec<Vec<u8>>, spec: PoolSpec, tuning: Tuning) -> Harness {
        let engine = Engine::create(spec, geometry(&media), tuning.clone(), Time(1)).unwrap();
        Harness::over(engine, media, tuning, 1)
    }

    /// Replaces a member by a new device and waits for the end of the resilver.
    pub fn replace(&mut self, member: u16, mib: usize) {
        let device = self.new_device(mib);
        self.command(DeviceCommand::Replace { member: MemberId(member), device }).unwrap();
        self.finish_jobs();
    }

    /// Checks that blocks `apart` bytes from each other hold 1, 2, 3 and so on.
    pub fn expect_numbered(&mut self, target: Target, count: u64, apart: u64) {
        for at in 0..count {
            assert_eq!(self.request(target, Op::Read, at * apart, 4096, &[]).unwrap(), [at as u8 + 1; 4096], "block {at}");
        }
    }

    /// Imports the pool on `media`.
    ///
    /// # Errors
    /// The reason why it was refused.
    pub fn import(media: Vec<Vec<u8>>) -> Result<Harness, String> {
        Harness::import_degraded(media, false)
    }

    /// The same, without devices that the pool can do without if `degraded` is true.
    ///
    /// # Errors
    /// The reason why it was refused.
    pub fn import_degraded(media: Vec<Vec<u8>>, degraded: bool) -> Result<Harness, String> {
        let tuning = Tuning { map_memory: 4 << 20, checkpoint_log_bytes: 2 << 20, degraded, ..Tuning::default() };
        Harness::import_with(media, tuning, 1)
    }

    /// The same with other tuning.
    ///
    /// # Errors
    /// The reason why it was refused.
    pub fn import_with(media: Vec<Vec<u8>>, tuning: Tuning, now: u64) -> Result<Harness, String> {
        let mut harness = Harness::begin_import(media, tuning, now);
        harness.settle();
        match harness.engine.state() {
            PoolState::Online => Ok(harness),
            PoolState::Faulted(why) => Err(why.to_string()),
            other => panic!("{other:?}"),
        }
    }

    /// Begins such an import, before its first turn.
    pub fn begin_import(media: Vec<Vec<u8>>, tuning: Tuning, now: u64) -> Harness {
        let engine = Engine::import(geometry(&media), tuning.clone(), Time(now));
        Harness::over(engine, media, tuning, now)
    }

    fn over(engine: Engine, media: Vec<Vec<u8>>, tuning: Tuning, now: u64) -> Harness {
        Harness {
            engine,
            media,
            now,
            host: now,
            tuning,
            unreadable: false,
            dead: Vec::new(),
            bad: None,
            unwritable: Vec::new(),
            reads: vec![0; 64],
            unflushed_zeroes: vec![Vec::new(); 64],
            zeroed: Vec::new(),
            discarded: 0,
            refuse_zeros: false,
            refused_zeros: 0,
            bucket: Bucket::default(),
            next_tag: 1,
        }
    }

    /// Finds the restore points on some devices.
    ///
    /// # Errors
    /// The reason why they cannot be found.
    pub fn survey(media: &[Vec<u8>]) -> Result<Surveyed, String> {
        Harness::survey_with(media, Tuning::default())
    }

    /// The same with other tuning.
    ///
    /// # Errors
    /// The reason why they cannot be found.
    pub fn survey_with(media: &[Vec<u8>], tuning: Tuning) -> Result<Surveyed, String> {
        let mut survey = RestorePointScan::new(geometry(media), tuning);
        loop {
            if let Some(found) = survey.turn() {
                return found.map_err(|error| error.to_string());
            }
            while let Some(io) = survey.pop_io() {
                let IoKind::Read { offset, length, mut buf } = io.kind else { panic!("a survey writes") };
                let from = &media[io.device.0 as usize][offset as usize..offset as usize + length];
                buf.bytes_mut()[..length].copy_from_slice(from);
                survey.io_done(IoDone { id: io.id, result: Ok(()), buf: Some(buf) });
            }
        }
    }

    /// Adds a device without content.
    pub fn new_device(&mut self, mib: usize) -> NewDevice {
        self.media.push(vec![0x5a; mib << 20]);
        let geometry = geometry(&self.media).pop().unwrap();
        NewDevice { slot: DeviceSlot(self.media.len() as u16 - 1), geometry }
    }

    /// Runs turns until no job is left, too. Jobs run by themselves; only checkpoints that no
    /// command waits for take a while.
    pub fn finish_jobs(&mut self) {
        for _ in 0..1000 {
            self.settle();
            self.now += 100;
            if self.engine.pool().unwrap().jobs.is_empty() {
                return self.settle();
            }
        }
        panic!("jobs do not end: {:?} {}", self.engine.pool(), self.engine.space_report());
    }

    /// Runs a turn and its device operations. Returns the number of answered requests, and of
    /// failed ones.
    pub fn step(&mut self) -> (u64, u64) {
        self.turn();
        while let Some(io) = self.engine.pop_io() {
            self.perform(io);
        }
        let answers: Vec<bool> = std::iter::from_fn(|| self.engine.pop_completion()).map(|done| done.result.is_err()).collect();
        (answers.len() as u64, answers.iter().filter(|failed| **failed).count() as u64)
    }

    /// Writes blocks, `depth` at a time, filled with `byte`. Returns the number of failed writes.
    pub fn write_blocks(&mut self, target: Target, blocks: impl Iterator<Item = u64>, byte: u8, depth: u64) -> u64 {
        let (mut waiting, mut failed) = (0, 0);
        let mut blocks = blocks.peekable();
        while waiting > 0 || blocks.peek().is_some() {
            while waiting < depth
                && let Some(block) = blocks.next()
            {
                self.write(target, block * 4096, &[byte; 4096]);
                waiting += 1;
            }
            let (answered, errors) = self.step();
            (waiting, failed) = (waiting - answered, failed + errors);
        }
        failed
    }

    /// Runs turns until nothing is left to do.
    pub fn settle(&mut self) {
        for _ in 0..200_000 {
            self.now += 1;
            self.pass();
            let more = self.engine.turn(Time(self.now));
            let mut any = false;
            while let Some(io) = self.engine.pop_io() {
                any = true;
                self.perform(io);
            }
            while !self.bucket.away
                && let Some(work) = self.engine.pop_bucket_work()
            {
                any = true;
                let id = work.id;
                if let Some(result) = self.bucket.answer(work) {
                    self.engine.bucket_done(id, result);
                }
            }
            if !more && !any {
                return;
            }
            if matches!(self.engine.state(), PoolState::Faulted(_)) && !any {
                return;
            }
        }
        panic!("the engine does not come to rest: {:?} {:?} {}", self.engine.pool(), self.engine.metrics(), self.engine.space_report());
    }

    fn pass(&mut self) {
        self.host += 1;
        self.engine.pass(self.host);
    }

    /// Runs a turn without device operations.
    pub fn turn(&mut self) {
        self.now += 1;
        self.pass();
        self.engine.turn(Time(self.now));
    }

    /// Performs a device operation and passes the completion to the engine.
    pub fn perform(&mut self, io: Io) {
        let media = &mut self.media[io.device.0 as usize];
        let mut back = None;
        let mut result = Ok(());
        match io.kind {
            IoKind::Read { buf, .. } if self.unreadable || self.dead.contains(&io.device.0) => {
                result = Err(DeviceError::Failed(5));
                back = Some(buf);
            }
            IoKind::Read { offset, length, buf }
                if self.bad.is_some_and(|(bad, at)| bad == io.device.0 && (offset..offset + length as u64).contains(&at)) =>
            {
                result = Err(DeviceError::Failed(5));
                back = Some(buf);
            }
            _ if self.dead.contains(&io.device.0) => result = Err(DeviceError::Failed(5)),
            IoKind::Write { offset, .. } if self.unwritable.contains(&(io.device.0, offset)) => result = Err(DeviceError::Failed(5)),
            IoKind::Read { offset, length, mut buf } => {
                self.reads[io.device.0 as usize] += 1;
                buf.bytes_mut()[..length].copy_from_slice(&media[offset as usize..offset as usize + length]);
                back = Some(buf);
            }
            IoKind::Write { offset, pieces } => {
                let mut at = offset as usize;
                if pieces.iter().all(|piece| piece.bytes().iter().all(|byte| *byte == 0)) {
                    self.unflushed_zeroes[io.device.0 as usize].push((offset, pieces.iter().map(|piece| piece.len()).sum()));
                }
                for piece in pieces {
                    assert_eq!(piece.len() % 4096, 0);
                    media[at..at + piece.len()].copy_from_slice(piece.bytes());
                    at += piece.len();
                }
            }
            IoKind::Flush => self.unflushed_zeroes[io.device.0 as usize].clear(),
            IoKind::Zero { .. } if self.refuse_zeros => {
                self.refused_zeros += 1;
                result = Err(DeviceError::Failed(5));
            }
            IoKind::Zero { offset, length } => {
                let device = usize::from(io.device.0);
                self.zeroed.resize(self.zeroed.len().max(device + 1), 0);
                self.zeroed[device] += length;
                media[offset as usize..(offset + length) as usize].fill(0);
            }
            IoKind::Discard { offset, length } => {
                self.discarded += length;
                media[offset as usize..(offset + length) as usize].fill(0xdd);
            }
        }
        self.engine.io_done(IoDone { id: io.id, result, buf: back });
    }

    /// Fails a device operation because there is no space.
    pub fn refuse(&mut self, io: Io) {
        self.engine.io_done(IoDone { id: io.id, result: Err(DeviceError::Full), buf: None });
    }

    /// Submits a write to the engine.
    pub fn write(&mut self, target: Target, offset: u64, bytes: &[u8]) {
        let tag = self.tag();
        let range = ByteRange { offset, length: bytes.len() as u64 };
        self.engine.submit(target, tag, Request { op: Op::Write, range, fua: false }, Payload::Copy(bytes));
    }

    /// Submits a request without payload to the engine.
    pub fn submit(&mut self, target: Target, op: Op, offset: u64, length: u64) {
        let tag = self.tag();
        self.engine.submit(target, tag, Request { op, range: ByteRange { offset, length }, fua: false }, Payload::None);
    }

    /// Restarts the daemon without closing the pool.
    pub fn reopen(&mut self) {
        self.engine = Engine::import(geometry(&self.media), self.tuning.clone(), Time(self.now));
        self.settle();
        assert_eq!(*self.engine.state(), PoolState::Online);
    }

    fn tag(&mut self) -> Tag {
        self.next_tag += 1;
        Tag(self.next_tag)
    }

    pub fn request(&mut self, target: Target, op: Op, offset: u64, length: u64, payload: &[u8]) -> Result<Vec<u8>, DiskError> {
        let tag = self.tag();
        let request = Request { op, range: ByteRange { offset, length }, fua: false };
        let payload = if op == Op::Write { Payload::Copy(payload) } else { Payload::None };
        self.engine.submit(target, tag, request, payload);
        self.settle();
        let done = self.engine.pop_completion().expect("an answer");
        assert_eq!(done.tag, tag);
        assert!(self.engine.pop_completion().is_none());
        done.result.map(|data| data.iter().map(|piece| piece.bytes()).collect::<Vec<_>>().concat())
    }

    /// Starts a command; its reply comes later.
    pub fn start(&mut self, command: Command) {
        let tag = self.tag();
        self.engine.command(tag, command);
    }

    /// Queries the map.
    ///
    /// # Errors
    /// The engine's refusal.
    pub fn query(
        &mut self,
        target: Target,
        since: Option<SnapshotId>,
        range: ByteRange,
        most: usize,
    ) -> Result<Vec<(u64, bool)>, DiskError> {
        let tag = self.tag();
        self.engine.query(target, tag, Query { range, since: since.map(|id| Since(id.0)), most });
        self.settle();
        let answer = self.engine.pop_answer().expect("an answer");
        assert_eq!(answer.tag, tag);
        assert!(self.engine.pop_answer().is_none());
        answer.result.map(|runs| runs.iter().map(|run| (run.length, run.set)).collect())
    }

    pub fn command(&mut self, command: impl Into<Command>) -> Result<Reply, CommandError> {
        let tag = self.tag();
        self.engine.command(tag, command.into());
        self.settle();
        let (answered, reply) = self.engine.pop_reply().expect("a reply");
        assert_eq!(answered, tag);
        reply
    }

    /// Runs a command that is answered in the next turn, whatever else is in progress.
    pub fn command_beside(&mut self, command: Command) -> Result<Reply, CommandError> {
        self.start(command);
        self.turn();
        self.engine.pop_reply().expect("a reply").1
    }

    pub fn volume(&mut self, name: &str, size: u64, compression: Compression) -> VolumeId {
        let reply = self.command(CatalogCommand::CreateVolume {
            name: name.into(),
            size,
            sector: SectorProfile::S512e,
            cache: CacheMode::Writeback,
            compression,
        });
        match reply.unwrap() {
            Reply::Volume(id) => id,
            other => panic!("{other:?}"),
        }
    }

    pub fn snapshot(&mut self, volume: VolumeId, name: &str) -> SnapshotId {
        let reply = self.command(CatalogCommand::Snapshot {
            targets: vec![(volume, name.into())],
            description: String::new(),
            expires: None,
            lock_millis: None,
        });
        match reply.unwrap() {
            Reply::Snapshots(ids) => ids[0],
            other => panic!("{other:?}"),
        }
    }

    pub fn audit(&mut self) {
        let (media, objects) = (&self.media, &self.bucket.objects);
        let read = &mut |device: DeviceSlot, offset: u64, out: &mut [u8]| {
            let at = offset as usize;
            out.copy_from_slice(&media[device.index()][at..at + out.len()]);
        };
        let audit = self.engine.audit_with(read, &mut |name, offset, out| {
            let behind = objects.get(&name).and_then(|object| object.get(offset as usize..)).unwrap_or_default();
            out.fill(0);
            out.iter_mut().zip(behind).for_each(|(to, byte)| *to = *byte);
        });
        assert!(audit.findings.is_empty(), "{:#?}", audit.findings);
    }
}
