//! [`RestorePointScan`]: finds out which restore points of a pool are whole.
//!
//! A restore point is a root with its checkpoint. It is whole when every object of the checkpoint
//! is readable (by checksum), and no segment that the checkpoint refers to was reused since. Reuse
//! of a segment begins with its first page:
//!
//! INV-REST-1: the first page of a segment shows when the segment was taken: a log segment by its
//! first batch number, a segment of nodes or objects by the generation of the checkpoint that took
//! it. Both only grow, even over rewinds. So a segment still has the content that a root refers to
//! exactly when its first page is not younger than the root. Blocks are not read: rot in them is
//! found when they are read.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use millpond_block::{Buf, BufPool, DeviceError};
use millpond_format::{
    BatchHeader, Checkpoint, ChunkRecord, DeadDirectory, HEADER_PAGE, Lsn, MAX_HEADER_PAGES, NO_SEGMENT, ObjectRef, PoolId, Root,
    SegmentId, crc32c,
};

use super::import::ImportIo;
use super::load::snapshot_page;
use crate::io::IoTable;
use crate::slab::Slab;
use crate::space::{PAGE, SegmentLayout};
use crate::{RestorePoint, Time, Whole};

/// Reads in flight at a time.
const AT_A_TIME: usize = 64;

/// The type of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Checkpoint,
    Chunks,
    Snapshots,
    List,
    Other,
}

/// The verified content of an object.
#[derive(Debug, Default)]
struct Facts {
    /// Why it cannot be used, if it cannot.
    bad: Option<&'static str>,
    segments: Vec<SegmentId>,
    refers: Vec<(ObjectRef, Kind)>,
    /// Of a checkpoint: blocks that guests had ever written.
    clock: Option<u64>,
}

impl Facts {
    fn bad(why: &'static str) -> Facts {
        Facts { bad: Some(why), ..Facts::default() }
    }

    fn of(bytes: &[u8], kind: Kind) -> Facts {
        match kind {
            Kind::Checkpoint => Facts::of_checkpoint(bytes),
            Kind::Chunks => match ChunkRecord::decode_page(bytes) {
                Ok(records) => {
                    let segments = records.iter().map(|r| r.segment).filter(|id| *id != NO_SEGMENT).collect();
                    Facts { segments, ..Facts::default() }
                }
                Err(_) => Facts::bad("a page of its chunk table makes no sense"),
            },
            Kind::Snapshots => match snapshot_page(bytes) {
                Ok(page) => {
                    Facts { refers: page.iter().filter_map(|s| s.deadlist).map(|at| (at, Kind::List)).collect(), ..Facts::default() }
                }
                Err(_) => Facts::bad("a page of its snapshots makes no sense"),
            },
            // a list of an older version has no pieces
            Kind::List if !DeadDirectory::is_one(bytes) => Facts::default(),
            Kind::List => match DeadDirectory::decode(bytes) {
                Ok(list) => Facts { refers: list.pieces.iter().map(|piece| (piece.at, Kind::Other)).collect(), ..Facts::default() },
                Err(_) => Facts::bad("a deadlist makes no sense"),
            },
            Kind::Other => Facts::default(),
        }
    }

    fn of_checkpoint(bytes: &[u8]) -> Facts {
        let Ok(checkpoint) = Checkpoint::decode(bytes) else { return Facts::bad("its checkpoint makes no sense") };
        let chunks = checkpoint.chunk_pages.iter().map(|(_, at)| (*at, Kind::Chunks));
        let snapshots = checkpoint.snapshot_pages.iter().map(|(_, at)| (*at, Kind::Snapshots));
        let lists = checkpoint.lineages.iter().filter_map(|line| line.deadlist).chain(checkpoint.frees.iter().map(|(_, at)| *at));
        let names = checkpoint.name_pages.iter().map(|(_, at)| *at).chain(checkpoint.doomed);
        let refers = chunks.chain(snapshots).chain(lists.map(|at| (at, Kind::List))).chain(names.map(|at| (at, Kind::Other)));
        let refers = refers.collect();
        Facts { refers, clock: Some(checkpoint.clock), ..Facts::default() }
    }
}

/// When a segment was taken for its current content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    /// By this batch of the log.
    Log(u64),
    /// By the checkpoint of this generation, when the log had reached this batch.
    Checkpoint(u64, u64),
    /// Its first page does not show it.
    Untold,
}

/// An object that is being read, or its parts.
#[derive(Debug)]
struct Fetch {
    at: ObjectRef,
    kind: Kind,
    parts: Vec<ObjectRef>,
    got: BTreeMap<usize, Vec<u8>>,
}

/// A read of an object: its fetch, its part (`None`: the object or its index), and the attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    fetch: u32,
    part: Option<usize>,
    at: ObjectRef,
    attempt: u8,
}

/// A root that is being examined.
#[derive(Debug)]
struct Looking {
    root: Root,
    todo: VecDeque<(ObjectRef, Kind)>,
    segments: BTreeSet<SegmentId>,
    bad: Option<&'static str>,
    clock: Option<u64>,
}

type Key = (SegmentId, u32, u32, u32);

fn key(at: ObjectRef) -> Key {
    (at.segment, at.offset, at.length, at.crc)
}

/// A running scan.
#[derive(Debug)]
pub(crate) struct RestorePointScan {
    pool: PoolId,
    /// The roots to examine, the newest last.
    left: Vec<(Root, u32)>,
    /// Generation and time of the oldest root that names a checkpoint.
    begun: BTreeMap<Key, (u64, u64)>,
    /// The newest checkpoint. Only for it a replay can make up for reused segments: for earlier
    /// ones, nodes that a replay reads may be gone.
    newest: Option<Key>,
    /// The scan ends with the first whole one.
    any: bool,
    looking: Option<(Looking, u32)>,
    facts: BTreeMap<Key, Rc<Facts>>,
    fetches: Slab<Fetch>,
    taken: BTreeMap<SegmentId, Taken>,
    points: Vec<RestorePoint>,
}

impl RestorePointScan {
    /// Creates a scan of roots, with the number of copies of each, the newest last; with `any`,
    /// only up to the first that is whole.
    pub(super) fn new(pool: PoolId, left: Vec<(Root, u32)>, any: bool) -> RestorePointScan {
        let newest = left.last().map(|(root, _)| key(root.checkpoint));
        let mut begun = BTreeMap::new();
        for (root, _) in &left {
            begun.entry(key(root.checkpoint)).or_insert((root.generation, root.time));
        }
        RestorePointScan {
            pool,
            left,
            begun,
            newest,
            any,
            looking: None,
            facts: BTreeMap::new(),
            fetches: Slab::default(),
            taken: BTreeMap::new(),
            points: Vec::new(),
        }
    }

    /// Continues. Returns true at the end.
    pub(super) fn step(&mut self, io: &mut IoTable<ImportIo>, layout: &SegmentLayout, bufs: &mut BufPool) -> bool {
        loop {
            let Some((mut looking, copies)) = self.looking.take() else {
                if self.any && self.points.last().is_some_and(RestorePoint::is_start) {
                    return true;
                }
                let Some((root, copies)) = self.left.pop() else { return true };
                let todo = VecDeque::from([(root.checkpoint, Kind::Checkpoint)]);
                self.looking = Some((Looking { root, todo, segments: BTreeSet::new(), bad: None, clock: None }, copies));
                continue;
            };
            if !self.objects(&mut looking, io, layout, bufs) || !self.first_pages(&looking, io, layout, bufs) {
                self.looking = Some((looking, copies));
                return false;
            }
            self.points.push(self.verdict(&looking, copies));
        }
    }

    /// Returns the restore points, the newest first.
    pub(super) fn into_points(self) -> Vec<RestorePoint> {
        self.points
    }

    /// Takes in the known objects, and reads the others. Returns true when all are known.
    fn objects(&mut self, looking: &mut Looking, io: &mut IoTable<ImportIo>, layout: &SegmentLayout, bufs: &mut BufPool) -> bool {
        let mut unknown = VecDeque::new();
        while let Some((at, kind)) = looking.todo.pop_front() {
            if let Some(facts) = self.facts.get(&key(at)) {
                looking.bad = looking.bad.or(facts.bad);
                looking.segments.extend(&facts.segments);
                looking.clock = looking.clock.or(facts.clock);
                looking.todo.extend(&facts.refers);
                continue;
            }
            if self.fetches.len() < AT_A_TIME && !self.fetches.iter().any(|f| key(f.at) == key(at)) {
                let fetch = self.fetches.insert(Fetch { at, kind, parts: Vec::new(), got: BTreeMap::new() });
                self.read(Probe { fetch, part: None, at, attempt: 0 }, io, layout, bufs);
            }
            unknown.push_back((at, kind));
            if self.fetches.len() >= AT_A_TIME {
                break;
            }
        }
        unknown.append(&mut looking.todo);
        looking.todo = unknown;
        // objects that a damaged checkpoint refers to do not matter
        looking.todo.is_empty() || (looking.bad.is_some() && self.fetches.len() == 0)
    }

    fn read(&mut self, probe: Probe, io: &mut IoTable<ImportIo>, layout: &SegmentLayout, bufs: &mut BufPool) {
        let (at, start) = (probe.at, u64::from(probe.at.offset) * ObjectRef::STEP as u64);
        let page = start / PAGE;
        let pages = (start + u64::from(at.bytes())).div_ceil(PAGE) - page;
        if page + pages > u64::from(layout.pages(at.segment)) {
            return self.known(probe.fetch, Facts::bad("an object of it lies on a device that was removed, or nowhere"));
        }
        io.read(ImportIo::Probe(probe), layout, at.segment, page as u32, pages as u32, probe.attempt, bufs);
    }

    fn known(&mut self, fetch: u32, facts: Facts) {
        if let Some(fetch) = self.fetches.remove(fetch) {
            self.facts.insert(key(fetch.at), Rc::new(facts));
        }
    }

    /// Handles a read of an object or of a part.
    pub(super) fn probed(
        &mut self,
        probe: Probe,
        result: Result<(), DeviceError>,
        buf: Option<&Buf>,
        io: &mut IoTable<ImportIo>,
        layout: &SegmentLayout,
        bufs: &mut BufPool,
    ) {
        let at = probe.at;
        let skip = usize::try_from(u64::from(at.offset) * ObjectRef::STEP as u64 % PAGE).unwrap_or(0);
        let read = buf.filter(|_| result.is_ok()).and_then(|buf| buf.bytes().get(skip..skip + at.bytes() as usize));
        let Some(bytes) = read.filter(|bytes| crc32c(bytes) == at.crc) else {
            if probe.attempt + 1 < io.attempts(layout, at.segment) {
                return self.read(Probe { attempt: probe.attempt + 1, ..probe }, io, layout, bufs);
            }
            let why = if result.is_err() { "an object of it cannot be read" } else { "an object of it does not match its checksum" };
            return self.known(probe.fetch, Facts::bad(why));
        };
        let Some(fetch) = self.fetches.get_mut(probe.fetch) else { return };
        let kind = fetch.kind;
        match probe.part {
            None if at.is_index() => {
                let Ok(parts) = ObjectRef::decode_index(bytes) else {
                    return self.known(probe.fetch, Facts::bad("an object's parts make no sense"));
                };
                fetch.parts.clone_from(&parts);
                for (part, at) in parts.into_iter().enumerate() {
                    self.read(Probe { part: Some(part), at, attempt: 0, ..probe }, io, layout, bufs);
                }
                if self.fetches.get(probe.fetch).is_some_and(|f| f.parts.is_empty()) {
                    self.known(probe.fetch, Facts::of(&[], kind));
                }
            }
            None => self.known(probe.fetch, Facts::of(bytes, kind)),
            Some(part) => {
                fetch.got.insert(part, bytes.to_vec());
                if fetch.got.len() == fetch.parts.len() {
                    let joined: Vec<u8> = fetch.got.values().flatten().copied().collect();
                    self.known(probe.fetch, Facts::of(&joined, kind));
                }
            }
        }
    }

    /// Reads the first pages of segments that are not known yet. Returns true when all are known.
    fn first_pages(&mut self, looking: &Looking, io: &mut IoTable<ImportIo>, layout: &SegmentLayout, bufs: &mut BufPool) -> bool {
        if looking.bad.is_some() {
            return io.in_flight() == 0;
        }
        if io.in_flight() > 0 {
            return false;
        }
        let unknown = looking.segments.iter().filter(|id| !self.taken.contains_key(id)).copied().take(AT_A_TIME);
        let mut all = true;
        for segment in unknown.collect::<Vec<_>>() {
            if layout.pages(segment) == 0 {
                self.taken.insert(segment, Taken::Untold);
                continue;
            }
            all = false;
            io.read(ImportIo::FirstPage(segment, 0), layout, segment, 0, 1, 0, bufs);
        }
        all && looking.segments.iter().all(|id| self.taken.contains_key(id))
    }

    /// Handles a read of the first page of a segment; pages of a longer header may be missing.
    #[expect(clippy::too_many_arguments, reason = "a completion, and what it needs to go on")]
    pub(super) fn first_page(
        &mut self,
        segment: SegmentId,
        attempt: u8,
        result: Result<(), DeviceError>,
        buf: Option<&Buf>,
        io: &mut IoTable<ImportIo>,
        layout: &SegmentLayout,
        bufs: &mut BufPool,
    ) {
        let bytes = buf.filter(|_| result.is_ok()).map(|buf| buf.bytes()).unwrap_or_default();
        let pages = BatchHeader::peek_pages(bytes).unwrap_or(1);
        let most = (layout.pages(segment) as usize).min(MAX_HEADER_PAGES);
        // a header of several pages is read again in full; a bit of `attempt` marks that
        if pages > 1 && attempt & LONG == 0 {
            return io.read(ImportIo::FirstPage(segment, attempt | LONG), layout, segment, 0, pages.min(most) as u32, attempt, bufs);
        }
        let header = BatchHeader::decode(bytes.get(..pages * HEADER_PAGE).unwrap_or(bytes)).ok().map(|(header, _)| header);
        let taken = match header.filter(|h| h.pool == self.pool && h.segment == segment && h.offset == 0) {
            Some(header) if header.incarnation == 0 => Taken::Checkpoint(header.birth, header.lsn.0),
            Some(header) => Taken::Log(header.lsn.0),
            None if (attempt & !LONG) + 1 < io.attempts(layout, segment) => {
                let attempt = (attempt & !LONG) + 1;
                return io.read(ImportIo::FirstPage(segment, attempt), layout, segment, 0, 1, attempt, bufs);
            }
            None => Taken::Untold,
        };
        self.taken.insert(segment, taken);
    }

    fn verdict(&self, looking: &Looking, copies: u32) -> RestorePoint {
        let root = &looking.root;
        // segments that the log emptied are reused only once the log that says so is durable: a
        // replay up to there does not need them
        let younger = |segment: &SegmentId| match self.taken.get(segment) {
            Some(Taken::Log(lsn)) if *lsn > root.lsn.0 => Some(*lsn),
            Some(Taken::Checkpoint(generation, lsn)) if *generation > root.generation => Some(*lsn),
            _ => None,
        };
        let (needed, all) = (looking.segments.iter().filter_map(younger).max(), looking.segments.len());
        let untold =
            looking.segments.iter().filter(|id| !matches!(self.taken.get(id), Some(Taken::Log(_) | Taken::Checkpoint(..)))).count();
        let whole = match (looking.bad, needed, untold) {
            (Some(why), ..) => Whole::No(why.to_owned()),
            (None, Some(lsn), _) if self.newest == Some(key(root.checkpoint)) => Whole::WithLog(Lsn(lsn)),
            (None, Some(_), _) => Whole::No("segments of it were used again since".to_owned()),
            (None, None, 1..) => Whole::Unknown(format!("{untold} of its {all} segments do not say whether they were used again")),
            (None, None, 0) => Whole::Yes,
        };
        let (first, time) = self.begun.get(&key(root.checkpoint)).copied().unwrap_or((root.generation, root.time));
        RestorePoint {
            id: root.generation,
            time: Time(time),
            again: first < root.generation,
            lsn: root.lsn,
            copies,
            whole,
            written: looking.clock.map(|blocks| blocks * 4096),
        }
    }
}

/// Mark in the attempt of a first page: the whole header was read.
const LONG: u8 = 1 << 7;
