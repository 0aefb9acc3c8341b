//! Frames of a stream: their bytes, checksums and order.

use std::io::{self, Read, Write};

use crc_fast::{CrcAlgorithm, Digest};
use millpond_api::VolumeCompression;

use super::head::{BLOCK, StreamHead};

/// First bytes of a stream.
const MAGIC: &[u8; 12] = b"MILLPOND-SND";
/// Version of the format.
const VERSION: u32 = 1;
/// Bytes of the head of a frame.
const FRAME_HEAD: usize = 32;
/// Most bytes of the head of a stream; 10,000 snapshots with the longest descriptions have less.
const MAX_HEAD: usize = 16 << 20;
/// Most bytes of data in a frame.
pub(super) const PIECE: u64 = 1 << 20;
/// Most bytes of zeroes in a frame: a receive can be interrupted between two frames.
const ZEROES: u64 = 1 << 30;

const HEAD: u8 = 1;
const SNAPSHOT: u8 = 2;
const DATA: u8 = 3;
const ZERO: u8 = 4;
const COMPLETE: u8 = 5;
const END: u8 = 6;

const PLAIN: u8 = 0;
const LZ4: u8 = 1;
const ZSTD: u8 = 2;
/// Level of zstd: above it, time grows faster than size falls.
const ZSTD_LEVEL: i32 = 1;

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Begins a stream.
    Head(Box<StreamHead>),
    /// Begins a snapshot: its index in the head, and the bytes from the start of the volume that
    /// are left out because they were received before.
    Snapshot(usize, u64),
    /// Data of the snapshot: offset in bytes, and the bytes.
    Data(u64, Vec<u8>),
    /// A range of zeroes: offset and length in bytes.
    Zero(u64, u64),
    /// Ends a snapshot.
    Complete(usize),
    /// Ends the stream.
    End,
}

/// Reason why a stream cannot be read further.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// It does not begin as a stream. Give a file that `send` wrote.
    #[error("it is not a stream of 'millpond send'")]
    Magic,
    /// Nothing came: its sender failed.
    #[error("nothing came; see the message of its sender")]
    Empty,
    /// A later version of the program wrote it. Use that one.
    #[error("it has format version {0}, which a later version of Millpond wrote; this one reads version {VERSION}")]
    Version(u32),
    /// Its head makes no sense.
    #[error("its head is invalid: {0}")]
    Head(String),
    /// A frame is damaged, or frames are missing or swapped. Send again, with the token.
    #[error("it is damaged at byte {at}: {what}")]
    Damaged {
        /// Bytes of the stream before the frame.
        at: u64,
        /// The defect.
        what: &'static str,
    },
    /// It ends too early. Send again, with the token.
    #[error("it ends at byte {0}, before its end")]
    Cut(u64),
    /// The host cannot read it.
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
}

/// Returns the checksum of a frame: of the one before, of the head without its checksum, and of
/// the payload.
fn chained(before: u64, head: &[u8], payload: &[u8]) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    digest.update(&before.to_le_bytes());
    digest.update(head);
    digest.update(payload);
    digest.finalize()
}

/// Writes frames.
pub struct FrameWriter<W> {
    out: W,
    sum: u64,
    codec: u8,
}

impl<W: Write> FrameWriter<W> {
    /// Begins a stream; data is compressed as `compression` says where that makes it smaller.
    ///
    /// # Errors
    /// The host's I/O error.
    pub fn new(mut out: W, head: &StreamHead) -> io::Result<FrameWriter<W>> {
        out.write_all(MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        let codec = match head.compression {
            VolumeCompression::Lz4 => LZ4,
            VolumeCompression::Zstd => ZSTD,
            VolumeCompression::Off | VolumeCompression::Other(_) => PLAIN,
        };
        let mut writer = FrameWriter { out, sum: 0, codec };
        let json = serde_json::to_vec(head)?;
        if json.len() > MAX_HEAD {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many snapshots for one stream; send fewer at once"));
        }
        writer.frame(HEAD, PLAIN, (0, 0), &json)?;
        Ok(writer)
    }

    /// Returns the output.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.out
    }

    /// Begins the snapshot at `index`, of which `position` bytes are left out.
    ///
    /// # Errors
    /// The host's I/O error.
    pub fn snapshot(&mut self, index: usize, position: u64) -> io::Result<()> {
        self.frame(SNAPSHOT, PLAIN, (index as u64, position), &[])
    }

    /// Writes data of a snapshot.
    ///
    /// # Errors
    /// The host's I/O error.
    pub fn data(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let compressed = match self.codec {
            LZ4 => Some(lz4_flex::block::compress(bytes)),
            ZSTD => Some(zstd::bulk::compress(bytes, ZSTD_LEVEL)?),
            _ => None,
        };
        let at = (offset, bytes.len() as u64);
        match compressed {
            Some(small) if small.len() < bytes.len() => self.frame(DATA, self.codec, at, &small),
            _ => self.frame(DATA, PLAIN, at, bytes),
        }
    }

    /// Writes a range of zeroes.
    ///
    /// # Errors
    /// The host's I/O error.
    pub fn zero(&mut self, offset: u64, length: u64) -> io::Result<()> {
        let (mut at, end) = (offset, offset.saturating_add(length));
        while at < end {
            let next = end.min(at.saturating_add(ZEROES));
            self.frame(ZERO, PLAIN, (at, next - at), &[])?;
            at = next;
        }
        Ok(())
    }

    /// Ends a snapshot.
    ///
    /// # Errors
    /// The host's I/O error.
    pub fn complete(&mut self, index: usize) -> io::Result<()> {
        self.frame(COMPLETE, PLAIN, (index as u64, 0), &[])
    }

    /// Ends the stream; returns the output.
    ///
    /// # Errors
    /// The host's I/O error.
    pub fn end(mut self) -> io::Result<W> {
        self.frame(END, PLAIN, (0, 0), &[])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn frame(&mut self, kind: u8, codec: u8, (a, b): (u64, u64), payload: &[u8]) -> io::Result<()> {
        let mut head = Vec::with_capacity(FRAME_HEAD);
        head.extend([kind, codec, 0, 0]);
        head.extend((payload.len() as u32).to_le_bytes());
        head.extend(a.to_le_bytes());
        head.extend(b.to_le_bytes());
        self.sum = chained(self.sum, &head, payload);
        head.extend(self.sum.to_le_bytes());
        self.out.write_all(&head)?;
        self.out.write_all(payload)
    }
}

/// Where a reader is in a stream: which frames may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Start,
    /// Before the snapshot at this index, or the end. With `None`, the stream may begin with any.
    Between(Option<usize>),
    /// In the snapshot at this index; data before this offset has come.
    Inside(usize, u64),
    Ended,
}

/// Reads frames, and checks their checksums, bounds and order.
pub struct FrameReader<R> {
    input: R,
    sum: u64,
    at: u64,
    place: Place,
    /// Sizes of the snapshots in bytes.
    sizes: Vec<u64>,
}

impl<R: Read> FrameReader<R> {
    /// Begins to read; returns the head, too.
    ///
    /// # Errors
    /// [`StreamError`]
    pub fn new(input: R) -> Result<(FrameReader<R>, StreamHead), StreamError> {
        let mut reader = FrameReader { input, sum: 0, at: 0, place: Place::Start, sizes: Vec::new() };
        let (mut magic, mut version) = ([0; MAGIC.len()], [0; 4]);
        reader.fill(&mut magic)?;
        if &magic != MAGIC {
            return Err(StreamError::Magic);
        }
        reader.fill(&mut version)?;
        let version = u32::from_le_bytes(version);
        if version != VERSION {
            return Err(StreamError::Version(version));
        }
        match reader.frame()? {
            Frame::Head(head) => Ok((reader, *head)),
            _ => Err(StreamError::Damaged { at: 0, what: "no head" }),
        }
    }

    /// Reads the next frame; after [`Frame::End`] there is none.
    ///
    /// # Errors
    /// [`StreamError`]
    pub fn frame(&mut self) -> Result<Frame, StreamError> {
        let at = self.at;
        let damaged = |what| StreamError::Damaged { at, what };
        let mut head = [0; FRAME_HEAD];
        self.fill(&mut head)?;
        let (covered, sum) = head.split_at(FRAME_HEAD - 8);
        let number = |from: usize| {
            let bytes = covered.get(from..from + 8).and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, u64::from_le_bytes)
        };
        let [kind, codec, zero, zero_too, s0, s1, s2, s3, ..] = head;
        let (stored, a, b) = (u32::from_le_bytes([s0, s1, s2, s3]) as usize, number(8), number(16));
        let most = if kind == HEAD && self.place == Place::Start { MAX_HEAD } else { PIECE as usize };
        if stored > most {
            return Err(damaged("too long a frame"));
        }
        let mut payload = vec![0; stored];
        self.fill(&mut payload)?;
        let expected = chained(self.sum, covered, &payload);
        if sum != expected.to_le_bytes() {
            return Err(damaged("wrong checksum"));
        }
        self.sum = expected;
        if zero != 0 || zero_too != 0 || (kind != DATA && codec != PLAIN) || (kind != DATA && kind != HEAD && stored > 0) {
            return Err(damaged("unknown fields"));
        }
        let index = usize::try_from(a).unwrap_or(usize::MAX);
        self.parse(kind, codec, (a, b, index), payload).map_err(|error| match error {
            Wrong::Frame(what) => damaged(what),
            Wrong::Head(error) => error,
        })
    }

    fn parse(&mut self, kind: u8, codec: u8, (a, b, index): (u64, u64, usize), payload: Vec<u8>) -> Result<Frame, Wrong> {
        match (kind, self.place) {
            (HEAD, Place::Start) => {
                let head: StreamHead = serde_json::from_slice(&payload).map_err(|e| Wrong::Head(StreamError::Head(e.to_string())))?;
                head.check().map_err(Wrong::Head)?;
                self.sizes = head.snapshots.iter().map(|snapshot| snapshot.size).collect();
                self.place = Place::Between(None);
                Ok(Frame::Head(Box::new(head)))
            }
            (SNAPSHOT, Place::Between(next)) => {
                let size = self.sizes.get(index).copied().ok_or(Wrong::Frame("a snapshot that its head does not have"))?;
                // only the first snapshot of a resumed stream begins in the middle
                if next.is_some_and(|next| index != next || b > 0) || b > size || !b.is_multiple_of(BLOCK) {
                    return Err(Wrong::Frame("a snapshot out of order"));
                }
                self.place = Place::Inside(index, b);
                Ok(Frame::Snapshot(index, b))
            }
            (DATA | ZERO, Place::Inside(index, after)) => {
                let size = self.sizes.get(index).copied().unwrap_or(0);
                let end = a.checked_add(b).filter(|end| *end <= size && b > 0 && a >= after);
                let end = end.ok_or(Wrong::Frame("a range out of order or outside the volume"))?;
                if !a.is_multiple_of(BLOCK) || !b.is_multiple_of(BLOCK) || b > ZEROES {
                    return Err(Wrong::Frame("a range of parts of blocks, or too long"));
                }
                self.place = Place::Inside(index, end);
                if kind == ZERO { Ok(Frame::Zero(a, b)) } else { expand(codec, b, payload).map(|bytes| Frame::Data(a, bytes)) }
            }
            (COMPLETE, Place::Inside(inside, _)) if index == inside => {
                self.place = Place::Between(Some(index + 1));
                Ok(Frame::Complete(index))
            }
            (END, Place::Between(Some(next))) if next == self.sizes.len() => {
                self.place = Place::Ended;
                Ok(Frame::End)
            }
            _ => Err(Wrong::Frame("a frame out of order")),
        }
    }

    fn fill(&mut self, into: &mut [u8]) -> Result<(), StreamError> {
        let mut filled = 0;
        while let Some(rest) = into.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.input.read(rest) {
                Ok(0) if self.at == 0 => return Err(StreamError::Empty),
                Ok(0) if self.place == Place::Start && self.at < MAGIC.len() as u64 => return Err(StreamError::Magic),
                Ok(0) => return Err(StreamError::Cut(self.at)),
                Ok(read) => {
                    filled += read;
                    self.at += read as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(StreamError::Io(error)),
            }
        }
        Ok(())
    }
}

/// Puts the checksums of all frames right, and the magic and version: damage reaches the parser.
#[cfg(any(test, feature = "testing"))]
pub fn put_checksums_right(stream: &mut [u8]) {
    let begin: Vec<u8> = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
    stream.iter_mut().zip(&begin).for_each(|(byte, right)| *byte = *right);
    let (mut at, mut sum) = (begin.len(), 0);
    while let Some((head, rest)) = stream.get_mut(at..).and_then(|rest| rest.split_at_mut_checked(FRAME_HEAD)) {
        let stored = head.get(4..8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes) as usize;
        let Some(payload) = rest.get(..stored) else { return };
        let (covered, place) = head.split_at_mut(FRAME_HEAD - 8);
        sum = chained(sum, covered, payload);
        place.copy_from_slice(&sum.to_le_bytes());
        at += FRAME_HEAD + stored;
    }
}

/// Reason why a frame with the right checksum is refused.
enum Wrong {
    Frame(&'static str),
    Head(StreamError),
}

/// Decompresses a payload of `length` bytes.
fn expand(codec: u8, length: u64, payload: Vec<u8>) -> Result<Vec<u8>, Wrong> {
    let length = usize::try_from(length).ok().filter(|length| *length <= PIECE as usize).ok_or(Wrong::Frame("too long a frame"))?;
    let bytes = match codec {
        PLAIN => payload,
        LZ4 => lz4_flex::block::decompress(&payload, length).map_err(|_| Wrong::Frame("data that cannot be decompressed"))?,
        ZSTD => zstd::bulk::decompress(&payload, length).map_err(|_| Wrong::Frame("data that cannot be decompressed"))?,
        _ => return Err(Wrong::Frame("an unknown compression")),
    };
    if bytes.len() == length { Ok(bytes) } else { Err(Wrong::Frame("data of another length")) }
}
