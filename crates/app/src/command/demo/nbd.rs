//! A small NBD client, so that the demo's load takes the path that a guest's would. Source: the NBD protocol document, fixed newstyle
//! handshake, simple replies.

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
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const INFO_EXPORT: u16 = 0;
/// FIXED_NEWSTYLE and NO_ZEROES, in both directions.
const NEWSTYLE: u16 = 0b11;
/// Longest option reply accepted, in bytes.
const MAX_OPTION: u32 = 4096;
/// A server that is silent this long is taken for dead.
const PATIENCE: Duration = Duration::from_secs(30);

const COMMAND_READ: u16 = 0;
const COMMAND_WRITE: u16 = 1;
const COMMAND_DISCONNECT: u16 = 2;
const COMMAND_FLUSH: u16 = 3;

/// A connection to the default export of a socket.
pub struct Nbd {
    input: BufReader<UnixStream>,
    output: UnixStream,
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("NBD: {what}"))
}

impl Nbd {
    /// Connects and negotiates.
    ///
    /// # Errors
    /// The host's; or when the server does not speak as expected.
    pub fn connect(path: &Path) -> io::Result<Nbd> {
        let output = UnixStream::connect(path)?;
        output.set_read_timeout(Some(PATIENCE))?;
        output.set_write_timeout(Some(PATIENCE))?;
        let mut nbd = Nbd { input: BufReader::with_capacity(64 << 10, output.try_clone()?), output };
        if nbd.u64()? != INIT_MAGIC || nbd.u64()? != OPTION_MAGIC || nbd.u16()? & NEWSTYLE != NEWSTYLE {
            return Err(broken("not a fixed newstyle server"));
        }
        let mut hello = u32::from(NEWSTYLE).to_be_bytes().to_vec();
        hello.extend(OPTION_MAGIC.to_be_bytes());
        hello.extend(OPTION_GO.to_be_bytes());
        // The data of GO: an empty name (length 0) and no information asked for.
        hello.extend(6u32.to_be_bytes());
        hello.extend([0; 6]);
        nbd.output.write_all(&hello)?;
        nbd.go()?;
        Ok(nbd)
    }

    fn go(&mut self) -> io::Result<()> {
        let mut export = false;
        loop {
            let (magic, option, kind, length) = (self.u64()?, self.u32()?, self.u32()?, self.u32()?);
            if magic != OPTION_REPLY_MAGIC || option != OPTION_GO || length > MAX_OPTION {
                return Err(broken("a strange option reply"));
            }
            let mut data = vec![0; usize::try_from(length).unwrap_or(0)];
            self.input.read_exact(&mut data)?;
            match kind {
                REPLY_ACK if export => return Ok(()),
                REPLY_INFO => export |= data.get(..2) == Some(&INFO_EXPORT.to_be_bytes()[..]),
                _ => return Err(broken("the export is refused")),
            }
        }
    }

    fn bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.input.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn u16(&mut self) -> io::Result<u16> {
        self.bytes().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> io::Result<u32> {
        self.bytes().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> io::Result<u64> {
        self.bytes().map(u64::from_be_bytes)
    }

    fn request(&mut self, command: u16, cookie: u64, offset: u64, length: u32, payload: &[u8]) -> io::Result<()> {
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
    /// The host's.
    pub fn start_write(&mut self, cookie: u64, offset: u64, payload: &[u8]) -> io::Result<()> {
        let length = u32::try_from(payload.len()).map_err(|_| broken("too long"))?;
        self.request(COMMAND_WRITE, cookie, offset, length, payload)
    }

    /// Waits for the next reply that carries no data, and gives its cookie.
    ///
    /// # Errors
    /// The host's; or the error that the server answered.
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

    /// Writes and waits.
    ///
    /// # Errors
    /// The host's; or the error that the server answered.
    pub fn write(&mut self, offset: u64, payload: &[u8]) -> io::Result<()> {
        self.start_write(0, offset, payload)?;
        self.reply().map(drop)
    }

    /// Reads and waits.
    ///
    /// # Errors
    /// The host's; or the error that the server answered.
    pub fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let length = u32::try_from(into.len()).map_err(|_| broken("too long"))?;
        self.request(COMMAND_READ, 0, offset, length, &[])?;
        self.reply()?;
        self.input.read_exact(into)
    }

    /// Makes what was answered before durable.
    ///
    /// # Errors
    /// The host's; or the error that the server answered.
    pub fn flush(&mut self) -> io::Result<()> {
        self.request(COMMAND_FLUSH, 0, 0, 0, &[])?;
        self.reply().map(drop)
    }
}

impl Drop for Nbd {
    fn drop(&mut self) {
        // A server that is gone needs no farewell.
        let _ = self.request(COMMAND_DISCONNECT, 0, 0, 0, &[]);
    }
}
