//! The transmission phase: requests and replies.

use millpond_block::{
    Answer, Buf, BufPool, BufSlice, ByteRange, Completion, Disk, DiskError, Features, Geometry, IoSlices, MAX_REQUEST_BYTES, Op, Payload,
    Query, Request, Tag,
};

use smallvec::SmallVec;

use super::context::Context;
use super::handshake::Terms;
use super::inflight::{InFlight, Kind, Pending};
use super::input::{Input, RecvBuf};
use super::output::Output;
use super::reply::RequestKey;
use super::session::{CloseReason, Counters, Limits};
use super::wire::{self, ANNOUNCED_MAX_PAYLOAD, ANNOUNCED_PREFERRED_BLOCK, Errno, RequestHeader, Style, command, command_flag};

/// Shortest write, in bytes, whose payload is received directly into a page-aligned buffer that the
/// disk then owns, if the payload has not arrived with the header. A shorter payload is collected
/// in the input buffer and copied once, by the disk. Below this length a second receive costs more
/// than the copy that it saves.
pub const LARGE_WRITE: u32 = 32 << 10;

/// Size in bytes of the receive after a large write. The next request is probably a large write as
/// well, and the part of its payload that arrives in the input buffer must be copied.
const WINDOW_AFTER_LARGE: usize = 4096;

/// Most requests that are announced to the disk together.
const EXPECTED: usize = 32;

/// Maximum number of extents per context in one reply: 64 KiB of them.
const MAX_EXTENTS: usize = 8192;

/// Result of [`Transmission::run`].
pub(super) enum Run {
    /// All complete requests are submitted; more input is needed.
    More,
    /// The limits do not allow the next request.
    Stalled,
    /// The session is over.
    Close(CloseReason),
}

/// Message of which a part has been received.
enum Partial {
    None,
    /// Refused request: `left` bytes of payload to discard, then the error reply.
    Drain {
        left: u64,
        asked: RequestKey,
        refusal: Refusal,
    },
    Large(LargeWrite),
}

/// Write whose payload is received into a buffer of its own. `buf` is absent before the first
/// receive and while a receive is in flight.
struct LargeWrite {
    tag: Tag,
    request: Request,
    length: usize,
    filled: usize,
    buf: Option<Buf>,
}

/// Error and its reason in words.
type Refusal = (Errno, &'static str);

/// Decision about a request, made before its payload is read.
enum Verdict {
    Submit(Request),
    /// Query block status.
    Status {
        /// Report only one extent of each context.
        one: bool,
    },
    /// Reply at once: the request is legal and has length 0.
    Done,
    Refuse(Refusal),
    Disconnect,
}

/// Subject of a block status request. `chosen` has one bit for each context, by its index.
struct Question {
    chosen: u32,
    range: ByteRange,
}

/// State of a block status request.
#[derive(Clone, Copy, Default)]
struct Group {
    /// Number of contexts without an answer.
    left: usize,
    error: Option<DiskError>,
}

/// State of the transmission phase.
pub(super) struct Transmission {
    limits: Limits,
    style: Style,
    contexts: Vec<Context>,
    /// Block status requests in flight; entries are reused.
    groups: Vec<Group>,
    in_flight: InFlight,
    /// Bytes that requests in flight move.
    bytes: u64,
    partial: Partial,
    after_large: bool,
    pub(super) counters: Counters,
}

impl Transmission {
    pub(super) fn new(session: u32, limits: Limits, terms: Terms) -> Transmission {
        Transmission {
            limits,
            style: terms.style,
            contexts: terms.contexts,
            groups: Vec::new(),
            in_flight: InFlight::new(session, limits.requests),
            bytes: 0,
            partial: Partial::None,
            after_large: false,
            counters: Counters::default(),
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Returns the bytes that requests in flight move.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn is_inside_message(&self) -> bool {
        !matches!(self.partial, Partial::None)
    }

    pub(super) fn recv(&mut self, input: &mut Input, pool: &mut BufPool) -> RecvBuf {
        let Partial::Large(write) = &mut self.partial else {
            let window = if self.after_large { WINDOW_AFTER_LARGE } else { usize::MAX };
            return input.lend(window, pool);
        };
        let mut buf = write.buf.take().unwrap_or_else(|| pool.take(write.length));
        let here = input.bytes();
        if let Some(to) = buf.bytes_mut().get_mut(write.filled..write.filled + here.len()) {
            to.copy_from_slice(here);
        }
        write.filled += here.len();
        input.consume(here.len());
        RecvBuf::new(buf, write.filled, write.length, true)
    }

    pub(super) fn payload_received(&mut self, recv: RecvBuf, n: usize) {
        // Without a large write the session was closed meanwhile, and the buffer is dropped with
        // the connection.
        if let Partial::Large(write) = &mut self.partial {
            let (buf, filled) = recv.into_filled(n);
            write.buf = Some(buf);
            write.filled = filled;
        }
    }

    /// Discards the message of which a part has been received, because no more input will come.
    pub(super) fn stop_receiving(&mut self) {
        if let Partial::Large(write) = std::mem::replace(&mut self.partial, Partial::None) {
            self.forget(write.tag);
        }
    }

    pub(super) fn recycle(self, pool: &mut BufPool) {
        if let Partial::Large(LargeWrite { buf: Some(buf), .. }) = self.partial {
            pool.give(buf);
        }
    }

    fn forget(&mut self, tag: Tag) -> Option<Pending> {
        let pending = self.in_flight.remove(tag)?;
        self.bytes -= u64::from(pending.bytes);
        Some(pending)
    }

    pub(super) fn run(&mut self, input: &mut Input, output: &mut Output, disk: &mut dyn Disk, shutting_down: bool) -> Run {
        let (geometry, features) = (disk.geometry(), disk.features());
        loop {
            if !self.finish_partial(input, output, disk) {
                return Run::More;
            }
            if output.unsent() > self.limits.unsent {
                return Run::Stalled;
            }
            let Some(header) = RequestHeader::read(input.bytes(), self.style) else {
                return match input.bytes().first_chunk::<4>().map(|magic| u32::from_be_bytes(*magic)) {
                    Some(magic) if magic != self.style.request_magic() => Run::Close(CloseReason::RequestMagic(magic)),
                    _ => Run::More,
                };
            };
            if header.magic != self.style.request_magic() {
                return Run::Close(CloseReason::RequestMagic(header.magic));
            }
            let payload = header.payload(self.style);
            if self.style == Style::Extended && payload > MAX_REQUEST_BYTES {
                return Run::Close(CloseReason::PayloadTooLong(payload));
            }
            let size = self.style.request_header();
            let asked = RequestKey { cookie: header.cookie, offset: header.offset };
            match judge(&header, &geometry, &features, self.style, shutting_down) {
                Verdict::Status { one } => {
                    let most = if one { 1 } else { MAX_EXTENTS };
                    match self.which(&header, input.bytes().get(size..).unwrap_or_default()) {
                        Ok(None) => return Run::More,
                        Ok(Some(question)) => {
                            let query = Query { range: question.range, since: None, most };
                            if let Err(error) = query.validate(&geometry) {
                                input.consume(size);
                                let refusal = (Errno::of(error, Op::Cache), wire::words(error));
                                self.partial = Partial::Drain { left: payload, asked, refusal };
                                continue;
                            }
                            if !self.in_flight.has_room(question.chosen.count_ones() as usize) {
                                return Run::Stalled;
                            }
                            // the payload has been received completely
                            input.consume(size + payload as usize);
                            self.ask(asked, question.chosen, query, disk);
                        }
                        Err(refusal) => {
                            input.consume(size);
                            self.partial = Partial::Drain { left: payload, asked, refusal };
                        }
                    }
                }
                Verdict::Submit(request) => match self.admit(&header, request, input, disk) {
                    Admission::Taken => {}
                    Admission::NoRoom => return Run::Stalled,
                    Admission::NeedsPayload => return Run::More,
                },
                Verdict::Done => {
                    input.consume(size);
                    match header.command {
                        command::READ => self.style.data(output, asked, IoSlices::new(), false),
                        _ => self.style.success(output, asked),
                    }
                }
                Verdict::Refuse(refusal) => {
                    input.consume(size);
                    self.partial = Partial::Drain { left: payload, asked, refusal };
                }
                Verdict::Disconnect => return Run::Close(CloseReason::Disconnect),
            }
        }
    }

    /// Announces the reads and writes in the received bytes, up to the first other request, or the
    /// first that is not complete. Each is judged later.
    pub(super) fn expect(&self, input: &Input, disk: &mut dyn Disk) {
        if self.is_inside_message() {
            return;
        }
        let (size, mut input) = (disk.geometry().size, input.bytes());
        let mut ranges: SmallVec<[ByteRange; EXPECTED]> = SmallVec::new();
        while ranges.len() < EXPECTED
            && let Some(header) = RequestHeader::read(input, self.style)
            && matches!(header.command, command::READ | command::WRITE)
            && header.magic == self.style.request_magic()
            && header.offset < size
        {
            ranges.push(ByteRange { offset: header.offset, length: header.length });
            let message = (self.style.request_header() as u64).saturating_add(header.payload(self.style));
            input = usize::try_from(message).ok().and_then(|message| input.get(message..)).unwrap_or_default();
        }
        if ranges.len() > 1 {
            disk.expect(&ranges);
        }
    }

    /// Continues with the message of which a part has been received; returns false if it needs more
    /// bytes.
    fn finish_partial(&mut self, input: &mut Input, output: &mut Output, disk: &mut dyn Disk) -> bool {
        match &mut self.partial {
            Partial::None => {}
            Partial::Drain { left, asked, refusal: (error, why) } => {
                *left -= input.skip(*left);
                if *left > 0 {
                    return false;
                }
                self.counters.errors += 1;
                self.style.error(output, *asked, *error, why);
                self.partial = Partial::None;
            }
            Partial::Large(write) => {
                if write.filled < write.length {
                    return false;
                }
                let Some(buf) = write.buf.take() else { return false };
                let (tag, request) = (write.tag, write.request);
                self.partial = Partial::None;
                self.count(&request);
                disk.submit(tag, request, Payload::Owned(buf));
            }
        }
        true
    }

    /// Submits a legal request if the limits allow it and enough of it has been received.
    fn admit(&mut self, header: &RequestHeader, request: Request, input: &mut Input, disk: &mut dyn Disk) -> Admission {
        let size = self.style.request_header();
        // reads and writes have at most MAX_REQUEST_BYTES
        let bytes = if matches!(request.op, Op::Read | Op::Write) { header.length as u32 } else { 0 };
        let alone = self.in_flight.len() == 0;
        if !self.in_flight.has_room(1) || (!alone && self.bytes + u64::from(bytes) > self.limits.bytes) {
            return Admission::NoRoom;
        }
        let asked = RequestKey { cookie: header.cookie, offset: header.offset };
        let pending = Pending { asked, bytes, kind: Kind::Op { op: request.op, whole: header.flags & command_flag::DF != 0 } };
        if request.op != Op::Write {
            if !disk.reserve(u64::from(bytes)) {
                return Admission::NoRoom;
            }
            input.consume(size);
            let tag = self.enter(pending);
            self.count(&request);
            disk.submit(tag, request, Payload::None);
            return Admission::Taken;
        }
        let length = bytes as usize;
        let here = input.bytes().len() >= size + length;
        if !here && bytes < LARGE_WRITE {
            return Admission::NeedsPayload;
        }
        if !disk.reserve(u64::from(bytes)) {
            return Admission::NoRoom;
        }
        if let Some(payload) = input.bytes().get(size..size + length) {
            let tag = self.enter(pending);
            self.count(&request);
            disk.submit(tag, request, Payload::Copy(payload));
            input.consume(size + length);
        } else {
            input.consume(size);
            let tag = self.enter(pending);
            self.partial = Partial::Large(LargeWrite { tag, request, length, filled: 0, buf: None });
        }
        self.after_large = bytes >= LARGE_WRITE;
        Admission::Taken
    }

    /// Returns the contexts and the range of a block status request: all selected contexts, or
    /// those named in the payload. Returns `None` if the payload is incomplete.
    fn which(&self, header: &RequestHeader, rest: &[u8]) -> Result<Option<Question>, Refusal> {
        let all = (1u32 << self.contexts.len()) - 1;
        let range = |length| ByteRange { offset: header.offset, length };
        if all == 0 {
            return Err((Errno::Inval, "no metadata context was selected"));
        }
        if header.flags & command_flag::PAYLOAD_LEN == 0 {
            return Ok(Some(Question { chosen: all, range: range(header.length) }));
        }
        const WRONG: Refusal = (Errno::Inval, "the payload names contexts that were not selected, or one twice, or none");
        if header.length > 8 + 4 * self.contexts.len() as u64 || !header.length.is_multiple_of(4) {
            return Err(WRONG);
        }
        let Some(payload) = rest.get(..header.length as usize) else { return Ok(None) };
        let (length, ids) = payload.split_first_chunk::<8>().ok_or(WRONG)?;
        let mut chosen = 0;
        for id in ids.chunks_exact(4) {
            let at = self.contexts.iter().position(|context| context.id.to_be_bytes() == *id).ok_or(WRONG)?;
            if chosen & 1 << at != 0 {
                return Err(WRONG);
            }
            chosen |= 1 << at;
        }
        if chosen == 0 {
            return Err(WRONG);
        }
        Ok(Some(Question { chosen, range: range(u64::from_be_bytes(*length)) }))
    }

    /// Queries the disk for each chosen context.
    fn ask(&mut self, asked: RequestKey, chosen: u32, query: Query, disk: &mut dyn Disk) {
        let group = self.groups.iter().position(|group| group.left == 0).unwrap_or_else(|| {
            self.groups.push(Group::default());
            self.groups.len() - 1
        });
        if let Some(place) = self.groups.get_mut(group) {
            *place = Group { left: chosen.count_ones() as usize, error: None };
        }
        for at in (0..self.contexts.len()).filter(|at| chosen & 1 << at != 0) {
            let Some(&context) = self.contexts.get(at) else { return };
            let tag = self.enter(Pending { asked, bytes: 0, kind: Kind::Status { group, context } });
            disk.query(tag, Query { since: context.since, ..query });
        }
    }

    fn enter(&mut self, pending: Pending) -> Tag {
        self.bytes += u64::from(pending.bytes);
        self.after_large = false;
        self.in_flight.insert(pending)
    }

    fn count(&mut self, request: &Request) {
        let counters = &mut self.counters;
        match request.op {
            Op::Read => {
                counters.reads += 1;
                counters.read_bytes += request.range.length;
            }
            Op::Write => {
                counters.writes += 1;
                counters.write_bytes += request.range.length;
            }
            Op::Flush => counters.flushes += 1,
            Op::Discard | Op::WriteZeroes { .. } => counters.trims += 1,
            Op::Cache => {}
        }
    }

    /// Converts the disk's answer into a reply, unless the connection is aborted.
    pub(super) fn complete(&mut self, completion: Completion, output: &mut Output, nobody_listens: bool) -> bool {
        let Some(pending) = self.forget(completion.tag) else { return false };
        if nobody_listens {
            return true;
        }
        let (style, asked) = (self.style, pending.asked);
        let Kind::Op { op, whole } = pending.kind else { return false };
        let error = match completion.result {
            Ok(_) if op != Op::Read => {
                style.success(output, asked);
                return true;
            }
            Ok(data) if data.iter().map(BufSlice::len).sum::<usize>() == pending.bytes as usize => {
                style.data(output, asked, data, whole);
                return true;
            }
            // a disk that returns a wrong length can only be reported as an I/O error
            Ok(_) => DiskError::Io,
            Err(error) => error,
        };
        self.counters.errors += 1;
        style.error(output, asked, Errno::of(error, op), wire::words(error));
        true
    }

    /// Converts the disk's answer for one context into a chunk. It is the last chunk of the reply
    /// if no other context is outstanding. An error is sent last, because no chunk may follow it.
    pub(super) fn answer(&mut self, answer: Answer, output: &mut Output, nobody_listens: bool) -> bool {
        let Some(Pending { asked, kind: Kind::Status { group, context }, .. }) = self.forget(answer.tag) else { return false };
        let Some(group) = self.groups.get_mut(group) else { return false };
        group.left -= 1;
        // a disk that returns no runs has failed
        let result = answer.result.and_then(|runs| if runs.is_empty() { Err(DiskError::Io) } else { Ok(runs) });
        group.error = group.error.or(result.as_ref().err().copied());
        let (done, failed) = (group.left == 0, group.error);
        if nobody_listens {
            return true;
        }
        if let Ok(runs) = result {
            self.style.status(output, asked, done && failed.is_none(), context, &runs);
        }
        if let Some(error) = failed.filter(|_| done) {
            self.counters.errors += 1;
            // the range was validated before the query, so only the older state can be invalid
            let why = if error == DiskError::Invalid { "the state to compare with is gone" } else { wire::words(error) };
            self.style.error(output, asked, Errno::of(error, Op::Cache), why);
        }
        true
    }
}

/// Result of admitting a legal request.
enum Admission {
    Taken,
    NoRoom,
    NeedsPayload,
}

/// Decides about a request by its header.
fn judge(header: &RequestHeader, geometry: &Geometry, features: &Features, style: Style, shutting_down: bool) -> Verdict {
    if header.command == command::BLOCK_STATUS {
        return judge_status(header, style, shutting_down);
    }
    let op = match header.command {
        command::READ => Op::Read,
        command::WRITE => Op::Write,
        command::DISC => return Verdict::Disconnect,
        command::FLUSH => Op::Flush,
        command::TRIM => Op::Discard,
        command::CACHE => Op::Cache,
        command::WRITE_ZEROES => Op::WriteZeroes { may_unmap: header.flags & command_flag::NO_HOLE == 0 },
        _ => return Verdict::Refuse((Errno::Inval, "no such command")),
    };
    if shutting_down {
        return Verdict::Refuse((Errno::Shutdown, "the server is shutting down"));
    }
    let legal = match op {
        Op::WriteZeroes { .. } => command_flag::FUA | command_flag::NO_HOLE | command_flag::FAST_ZERO,
        Op::Write if style == Style::Extended => command_flag::FUA | command_flag::PAYLOAD_LEN,
        Op::Read if style != Style::Simple => command_flag::FUA | command_flag::DF,
        _ => command_flag::FUA,
    };
    if header.flags & !legal != 0 {
        return Verdict::Refuse((Errno::Inval, "a flag that the command does not have"));
    }
    if op == Op::Flush && (header.offset != 0 || header.length != 0) {
        return Verdict::Refuse((Errno::Inval, "a flush has neither offset nor length"));
    }
    let range = ByteRange { offset: header.offset, length: header.length };
    let request = Request { op, range, fua: header.flags & command_flag::FUA != 0 && op.modifies() };
    if let Err(error) = request.validate(geometry, features) {
        return Verdict::Refuse((Errno::of(error, op), wire::words(error)));
    }
    if header.length == 0 && op != Op::Flush {
        return Verdict::Done;
    }
    if header.flags & command_flag::DF != 0 && header.length > u64::from(ANNOUNCED_MAX_PAYLOAD) {
        return Verdict::Refuse((Errno::Overflow, "too long for one chunk"));
    }
    if header.flags & command_flag::FAST_ZERO != 0 && !has_whole_block(range) {
        return Verdict::Refuse((Errno::Notsup, "zeroing a part of a block is as slow as writing it"));
    }
    Verdict::Submit(request)
}

fn judge_status(header: &RequestHeader, style: Style, shutting_down: bool) -> Verdict {
    if style == Style::Simple {
        return Verdict::Refuse((Errno::Inval, "no such command"));
    }
    if shutting_down {
        return Verdict::Refuse((Errno::Shutdown, "the server is shutting down"));
    }
    let payload = if style == Style::Extended { command_flag::PAYLOAD_LEN } else { 0 };
    if header.flags & !(command_flag::FUA | command_flag::REQ_ONE | payload) != 0 {
        return Verdict::Refuse((Errno::Inval, "a flag that the command does not have"));
    }
    Verdict::Status { one: header.flags & command_flag::REQ_ONE != 0 }
}

/// Returns true if `range` contains a whole block. The map zeroes whole blocks, in any number; the
/// ends of the range are written.
fn has_whole_block(range: ByteRange) -> bool {
    let block = u64::from(ANNOUNCED_PREFERRED_BLOCK);
    range.offset.checked_next_multiple_of(block).zip(range.end()).is_some_and(|(first, end)| first + block <= end)
}
