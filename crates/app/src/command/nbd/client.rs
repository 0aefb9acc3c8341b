//! An NBD connection, after the NBD protocol document: fixed newstyle handshake, and simple
//! replies, or structured replies if extents are requested.

use std::io::{self, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const OPTION_GO: u32 = 7;
const OPTION_STRUCTURED_REPLY: u32 = 8;
const OPTION_SET_META_CONTEXT: u32 = 10;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const REPLY_META_CONTEXT: u32 = 4;
const REPLY_IS_ERROR: u32 = 1 << 31;
const INFO_EXPORT: u16 = 0;
/// FIXED_NEWSTYLE and NO_ZEROES, in both directions.
const NEWSTYLE: u16 = 0b11;
/// Longest option reply accepted, in bytes.
const MAX_OPTION: u32 = 4096;
/// Replies to one option accepted.
const MAX_REPLIES: usize = 64;
/// Time after which a server that does not answer is given up.
const PATIENCE: Duration = Duration::from_secs(120);

const COMMAND_READ: u16 = 0;
const COMMAND_WRITE: u16 = 1;
const COMMAND_DISCONNECT: u16 = 2;
const COMMAND_FLUSH: u16 = 3;
const COMMAND_WRITE_ZEROES: u16 = 6;

/// A connection to the default export of a unix socket.
pub struct Nbd {
    input: BufReader<UnixStream>,
    output: UnixStream,
    size: u64,
    /// Id of the metadata context that was negotiated for [`Nbd::extents`].
    pub(super) context: Option<u32>,
}

pub(super) fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("NBD: {what}"))
}

impl Nbd {
    /// Connects and negotiates.
    ///
    /// # Errors
    /// The host's I/O error, or that the server violates the protocol.
    pub fn connect(path: &Path) -> io::Result<Nbd> {
        let mut nbd = Nbd::greet(path)?;
        nbd.go()?;
        Ok(nbd)
    }

    /// Connects for [`Nbd::extents`] of one metadata context, like `base:allocation`. Such a
    /// connection cannot read, because it negotiates structured replies.
    ///
    /// # Errors
    /// Those of [`Nbd::connect`], or that the server does not have the context.
    pub fn connect_for_extents(path: &Path, context: &str) -> io::Result<Nbd> {
        let mut nbd = Nbd::greet(path)?;
        nbd.option(OPTION_STRUCTURED_REPLY, &[])?;
        // an export name of length 0, and one query
        let mut asked = [0u32.to_be_bytes(), 1u32.to_be_bytes()].concat();
        asked.extend(u32::try_from(context.len()).map_err(|_| broken("too long"))?.to_be_bytes());
        asked.extend(context.as_bytes());
        let replies = nbd.option(OPTION_SET_META_CONTEXT, &asked)?;
        let id = replies.iter().find(|(kind, _)| *kind == REPLY_META_CONTEXT).and_then(|(_, data)| data.first_chunk());
        nbd.context = Some(u32::from_be_bytes(*id.ok_or_else(|| broken(&format!("the server has no {context}")))?));
        nbd.go()?;
        Ok(nbd)
    }

    /// Size of the export in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    fn greet(path: &Path) -> io::Result<Nbd> {
        let output = UnixStream::connect(path)?;
        output.set_read_timeout(Some(PATIENCE))?;
        output.set_write_timeout(Some(PATIENCE))?;
        let mut nbd = Nbd { input: BufReader::with_capacity(64 << 10, output.try_clone()?), output, size: 0, context: None };
        if nbd.u64()? != INIT_MAGIC || nbd.u64()? != OPTION_MAGIC || nbd.u16()? & NEWSTYLE != NEWSTYLE {
            return Err(broken("not a fixed newstyle server"));
        }
        nbd.output.write_all(&u32::from(NEWSTYLE).to_be_bytes())?;
        Ok(nbd)
    }

    fn go(&mut self) -> io::Result<()> {
        // An export name of length 0, and no information requests.
        let replies = self.option(OPTION_GO, &[0; 6])?;
        let told = |(kind, data): &(u32, Vec<u8>)| {
            let export = *kind == REPLY_INFO && data.get(..2) == Some(&INFO_EXPORT.to_be_bytes()[..]);
            data.get(2..10).and_then(|size| size.first_chunk()).filter(|_| export).map(|size| u64::from_be_bytes(*size))
        };
        self.size = replies.iter().find_map(told).ok_or_else(|| broken("the export is not described"))?;
        Ok(())
    }

    /// Negotiates an option; returns the replies before the acknowledgement.
    fn option(&mut self, option: u32, data: &[u8]) -> io::Result<Vec<(u32, Vec<u8>)>> {
        let mut asked = OPTION_MAGIC.to_be_bytes().to_vec();
        asked.extend(option.to_be_bytes());
        asked.extend(u32::try_from(data.len()).map_err(|_| broken("too long"))?.to_be_bytes());
        asked.extend(data);
        self.output.write_all(&asked)?;
        let mut replies = Vec::new();
        loop {
            let (magic, of, kind, length) = (self.u64()?, self.u32()?, self.u32()?, self.u32()?);
            if magic != OPTION_REPLY_MAGIC || of != option || length > MAX_OPTION || replies.len() > MAX_REPLIES {
                return Err(broken("a strange option reply"));
            }
            let mut data = vec![0; usize::try_from(length).unwrap_or(0)];
            self.input.read_exact(&mut data)?;
            match kind {
                REPLY_ACK => return Ok(replies),
                kind if kind & REPLY_IS_ERROR != 0 => return Err(broken("the export is refused")),
                kind => replies.push((kind, data)),
            }
        }
    }

    pub(super) fn bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.input.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn u16(&mut self) -> io::Result<u16> {
        self.bytes().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> io::Result<u32> {
        self.bytes().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> io::Result<u64> {
        self.bytes().map(u64::from_be_bytes)
    }

    pub(super) fn read_payload(&mut self, into: &mut [u8]) -> io::Result<()> {
        self.input.read_exact(into)
    }

    pub(super) fn request(&mut self, command: u16, cookie: u64, offset: u64, length: u32, payload: &[u8]) -> io::Result<()> {
        let mut request = Vec::with_capacity(28 + payload.len());
        request.extend(REQUEST_MAGIC.to_be_bytes());
        request.extend(0u16.to_be_bytes());
        request.extend(command.to_be_bytes());
        request.extend(cookie.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(length.to_be_bytes());
        request.extend(payload);
        self.output.write_all(&request)
    }

    /// Sends a write without waiting for its reply.
    ///
    /// # Errors
    /// The host's I/O error.
    pub fn start_write(&mut self, cookie: u64, offset: u64, payload: &[u8]) -> io::Result<()> {
        let length = u32::try_from(payload.len()).map_err(|_| broken("too long"))?;
        self.request(COMMAND_WRITE, cookie, offset, length, payload)
    }

    /// Waits for the next reply without data and returns its cookie.
    ///
    /// # Errors
    /// The host's I/O error, or the error that the server returned.
    pub fn reply(&mut self) -> io::Result<u64> {
        let (magic, error, cookie) = (self.u32()?, self.u32()?, self.u64()?);
        if magic != REPLY_MAGIC {
            return Err(broken("a strange reply"));
        }
        match i32::try_from(error) {
            Ok(0) => Ok(cookie),
            Ok(errno) => Err(io::Error::from_raw_os_error(errno)),
            Err(_) => Err(broken("a strange error")),
        }
    }

    /// Writes and waits for the reply.
    ///
    /// # Errors
    /// The host's I/O error, or the error that the server returned.
    pub fn write(&mut self, offset: u64, payload: &[u8]) -> io::Result<()> {
        self.start_write(0, offset, payload)?;
        self.reply().map(drop)
    }

    /// Reads and waits for the reply.
    ///
    /// # Errors
    /// The host's I/O error, or the error that the server returned.
    pub fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let length = u32::try_from(into.len()).map_err(|_| broken("too long"))?;
        self.request(COMMAND_READ, 0, offset, length, &[])?;
        self.reply()?;
        self.input.read_exact(into)
    }

    /// Makes a range read as zeroes, and waits for the reply.
    ///
    /// # Errors
    /// The host's I/O error, or the error that the server returned.
    pub fn write_zeroes(&mut self, offset: u64, length: u32) -> io::Result<()> {
        self.request(COMMAND_WRITE_ZEROES, 0, offset, length, &[])?;
        self.reply().map(drop)
    }

    /// Flushes: writes that were answered before the call are durable on return.
    ///
    /// # Errors
    /// The host's I/O error, or the error that the server returned.
    pub fn flush(&mut self) -> io::Result<()> {
        self.request(COMMAND_FLUSH, 0, 0, 0, &[])?;
        self.reply().map(drop)
    }
}

impl Drop for Nbd {
    fn drop(&mut self) {
        // The disconnect request is optional; the server may be gone.
        let _ = self.request(COMMAND_DISCONNECT, 0, 0, 0, &[]);
    }
}
