//! Requests in, replies out.

use millpond_block::{Buf, BufPool, ByteRange, Completion, Data, Disk, Features, Geometry, Op, Payload, Piece, Request, Tag};

use super::inflight::{InFlight, Pending};
use super::input::{Input, RecvBuf};
use super::output::Output;
use super::session::{CloseReason, Counters, Limits};
use super::wire::{self, Errno, REQUEST_HEADER, RequestHeader, command, command_flag};

/// Writes of at least this many bytes whose payload is not here yet are received straight into a page-aligned buffer that the disk
/// then owns; a smaller payload is collected in the input buffer and copied by the disk, once. Below this a second receive costs more
/// than the copy it saves.
pub const LARGE_WRITE: u32 = 32 << 10;

/// How much is asked for after a large write: its successor is probably large as well, and whatever of its payload lands in the
/// input buffer must be copied.
const WINDOW_AFTER_LARGE: usize = 4096;

/// Why [`Transmission::run`] stopped.
pub(super) enum Run {
    /// Everything complete is submitted.
    More,
    /// There is no room for the next request.
    Stalled,
    /// The session is over.
    Close(CloseReason),
}

/// A message that is in the middle of being received.
enum Partial {
    None,
    /// A refused write: `left` bytes of payload to throw away, then the error.
    Drain {
        left: u64,
        cookie: u64,
        error: Errno,
    },
    Large(LargeWrite),
}

/// A write whose payload goes into a buffer of its own. `buf` is absent before the first receive and while one is in flight.
struct LargeWrite {
    tag: Tag,
    request: Request,
    length: usize,
    filled: usize,
    buf: Option<Buf>,
}

/// What to do with a request, before any of its payload is looked at.
enum Verdict {
    Submit(Request),
    /// Nothing to do: a legal request of length 0.
    Done,
    Refuse(Errno),
    Disconnect,
}

/// State of the transmission phase.
pub(super) struct Transmission {
    limits: Limits,
    in_flight: InFlight,
    /// Bytes that requests in flight move.
    bytes: u64,
    partial: Partial,
    after_large: bool,
    pub(super) counters: Counters,
}

impl Transmission {
    pub(super) fn new(session: u32, limits: Limits) -> Transmission {
        Transmission {
            limits,
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
        // Without a large write the session was closed meanwhile, and the buffer goes the way of the connection.
        if let Partial::Large(write) = &mut self.partial {
            let (buf, filled) = recv.into_filled(n);
            write.buf = Some(buf);
            write.filled = filled;
        }
    }

    /// Gives up the message that is being received: no more input will come.
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
            let Some(header) = input.bytes().first_chunk::<REQUEST_HEADER>() else {
                return match input.bytes().first_chunk::<4>().map(|magic| u32::from_be_bytes(*magic)) {
                    Some(magic) if magic != wire::REQUEST_MAGIC => Run::Close(CloseReason::RequestMagic(magic)),
                    _ => Run::More,
                };
            };
            let header = RequestHeader::decode(header);
            if header.magic != wire::REQUEST_MAGIC {
                return Run::Close(CloseReason::RequestMagic(header.magic));
            }
            match judge(&header, &geometry, &features, shutting_down) {
                Verdict::Submit(request) => match self.admit(&header, request, input, disk) {
                    Admission::Taken => {}
                    Admission::NoRoom => return Run::Stalled,
                    Admission::NeedsPayload => return Run::More,
                },
                Verdict::Done => {
                    input.consume(REQUEST_HEADER);
                    output.push(&wire::simple_reply(None, header.cookie));
                }
                Verdict::Refuse(error) => {
                    input.consume(REQUEST_HEADER);
                    let left = if header.command == command::WRITE { u64::from(header.length) } else { 0 };
                    self.partial = Partial::Drain { left, cookie: header.cookie, error };
                }
                Verdict::Disconnect => return Run::Close(CloseReason::Disconnect),
            }
        }
    }

    /// Goes on with the message that is being received; false when it needs more bytes.
    fn finish_partial(&mut self, input: &mut Input, output: &mut Output, disk: &mut dyn Disk) -> bool {
        match &mut self.partial {
            Partial::None => {}
            Partial::Drain { left, cookie, error } => {
                *left -= input.skip(*left);
                if *left > 0 {
                    return false;
                }
                self.counters.errors += 1;
                output.push(&wire::simple_reply(Some(*error), *cookie));
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

    /// Lets a legal request in, when there is room for it and enough of it is here.
    fn admit(&mut self, header: &RequestHeader, request: Request, input: &mut Input, disk: &mut dyn Disk) -> Admission {
        let bytes = if matches!(request.op, Op::Read | Op::Write) { header.length } else { 0 };
        let alone = self.in_flight.len() == 0;
        if self.in_flight.is_full() || (!alone && self.bytes + u64::from(bytes) > self.limits.bytes) {
            return Admission::NoRoom;
        }
        let pending = Pending { cookie: header.cookie, op: request.op, bytes };
        if request.op != Op::Write {
            input.consume(REQUEST_HEADER);
            let tag = self.enter(pending);
            self.count(&request);
            disk.submit(tag, request, Payload::None);
            return Admission::Taken;
        }
        let length = bytes as usize;
        if let Some(payload) = input.bytes().get(REQUEST_HEADER..REQUEST_HEADER + length) {
            let tag = self.enter(pending);
            self.count(&request);
            disk.submit(tag, request, Payload::Copy(payload));
            input.consume(REQUEST_HEADER + length);
        } else if bytes >= LARGE_WRITE {
            input.consume(REQUEST_HEADER);
            let tag = self.enter(pending);
            self.partial = Partial::Large(LargeWrite { tag, request, length, filled: 0, buf: None });
        } else {
            return Admission::NeedsPayload;
        }
        self.after_large = bytes >= LARGE_WRITE;
        Admission::Taken
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

    /// Turns the disk's answer into a reply, unless nobody will read it.
    pub(super) fn complete(&mut self, completion: Completion, output: &mut Output, nobody_listens: bool) -> bool {
        let Some(pending) = self.forget(completion.tag) else { return false };
        if nobody_listens {
            return true;
        }
        let outcome = match completion.result {
            Ok(_) if pending.op != Op::Read => Ok(Data::new()),
            // A disk that returns another length than was asked for cannot be told to the client in any other way.
            Ok(data) if data.iter().map(Piece::len).sum::<usize>() != pending.bytes as usize => Err(Errno::Io),
            Ok(data) => Ok(data),
            Err(error) => Err(Errno::of(error, pending.op)),
        };
        match outcome {
            Ok(data) => {
                output.push(&wire::simple_reply(None, pending.cookie));
                output.push_data(data);
            }
            Err(error) => {
                self.counters.errors += 1;
                output.push(&wire::simple_reply(Some(error), pending.cookie));
            }
        }
        true
    }
}

/// What became of a legal request.
enum Admission {
    Taken,
    NoRoom,
    NeedsPayload,
}

/// Decides about a request by its header alone.
fn judge(header: &RequestHeader, geometry: &Geometry, features: &Features, shutting_down: bool) -> Verdict {
    let op = match header.command {
        command::READ => Op::Read,
        command::WRITE => Op::Write,
        command::DISC => return Verdict::Disconnect,
        command::FLUSH => Op::Flush,
        command::TRIM => Op::Discard,
        command::CACHE => Op::Cache,
        command::WRITE_ZEROES => Op::WriteZeroes { may_unmap: header.flags & command_flag::NO_HOLE == 0 },
        _ => return Verdict::Refuse(Errno::Inval),
    };
    if shutting_down {
        return Verdict::Refuse(Errno::Shutdown);
    }
    let legal = match op {
        Op::WriteZeroes { .. } => command_flag::FUA | command_flag::NO_HOLE,
        _ => command_flag::FUA,
    };
    let reserved = op == Op::Flush && (header.offset != 0 || header.length != 0);
    if header.flags & !legal != 0 || reserved {
        return Verdict::Refuse(Errno::Inval);
    }
    let range = ByteRange { offset: header.offset, length: u64::from(header.length) };
    let request = Request { op, range, fua: header.flags & command_flag::FUA != 0 && op.modifies() };
    match request.validate(geometry, features) {
        Err(error) => Verdict::Refuse(Errno::of(error, op)),
        Ok(()) if header.length == 0 && op != Op::Flush => Verdict::Done,
        Ok(()) => Verdict::Submit(request),
    }
}
