//! The ceiling: a server that only copies between its memory and the socket. It shows the cost of
//! the protocol and of the kernel's sockets, a limit that no server over NBD can exceed by much.

pub mod mount;

use super::Contender;
use crate::load::Endpoint;
use crate::process::Daemon;
use anyhow::{Context, Result, bail};
use millpond_export::nbd::wire::{
    OPTION_HEADER, OPTION_REPLY_MAGIC, REQUEST_HEADER, REQUEST_MAGIC, RequestHeader, SIMPLE_REPLY, Style, command, option, reply,
    simple_reply,
};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use std::io::{self, IoSlice, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

const INBOX_BYTES: usize = 33 << 20; // the largest write and a queue of small ones
const MAX_SLICES: usize = 128;

/// Serves `size` bytes of memory on a unix socket until the process ends, with a thread per
/// connection.
///
/// # Errors
/// The socket cannot be made.
pub fn serve(socket: &Path, size: u64) -> Result<()> {
    let listener = UnixListener::bind(socket).with_context(|| format!("listening on {}", socket.display()))?;
    let memory = Arc::new(Mutex::new(vec![1; usize::try_from(size)?]));
    for stream in listener.incoming() {
        let (stream, memory) = (stream?, memory.clone());
        thread::spawn(move || {
            let session = Session { stream, inbox: vec![0; INBOX_BYTES], filled: 0 };
            if let Err(error) = session.run(&memory, size) {
                eprintln!("a client left: {error}");
            }
        });
    }
    Ok(())
}

struct Session {
    stream: UnixStream,
    inbox: Vec<u8>,
    filled: usize,
}

/// Reply to a parsed request: header, and the range of the memory that follows it.
struct Answer {
    header: [u8; SIMPLE_REPLY],
    data: std::ops::Range<usize>,
}

impl Session {
    fn run(mut self, memory: &Mutex<Vec<u8>>, size: u64) -> io::Result<()> {
        self.handshake(size)?;
        for set in [rustix::net::sockopt::set_socket_send_buffer_size, rustix::net::sockopt::set_socket_recv_buffer_size] {
            set(&self.stream, 4 << 20)?;
        }
        let mut answers = Vec::new();
        loop {
            let count = self.stream.read(&mut self.inbox[self.filled..])?;
            if count == 0 {
                return Ok(());
            }
            self.filled += count;
            let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
            let used = match self.parse(&mut memory, &mut answers)? {
                Some(used) => used,
                None => return Ok(()),
            };
            if used > 0 {
                self.inbox.copy_within(used..self.filled, 0);
                self.filled -= used;
            }
            self.send(&memory, &answers)?;
            answers.clear();
        }
    }

    /// Executes every complete request in the inbox; returns the bytes consumed, or `None` after a
    /// disconnect request.
    fn parse(&mut self, memory: &mut MutexGuard<'_, Vec<u8>>, answers: &mut Vec<Answer>) -> io::Result<Option<usize>> {
        let bad = || io::Error::new(io::ErrorKind::InvalidData, "a request that makes no sense");
        let mut at = 0;
        while let Some(head) = RequestHeader::read(&self.inbox[at..self.filled], Style::Simple) {
            if head.magic != REQUEST_MAGIC {
                return Err(bad());
            }
            let (offset, length) = (usize::try_from(head.offset).map_err(|_| bad())?, head.length as usize);
            let end = offset.checked_add(length).filter(|end| *end <= memory.len()).ok_or_else(bad)?;
            let payload = if head.command == command::WRITE { length } else { 0 };
            let next = at + REQUEST_HEADER + payload;
            if next > self.inbox.len() {
                return Err(bad());
            }
            if next > self.filled {
                break;
            }
            match head.command {
                command::DISC => return Ok(None),
                command::WRITE => memory[offset..end].copy_from_slice(&self.inbox[next - length..next]),
                command::TRIM | command::WRITE_ZEROES => memory[offset..end].fill(0),
                _ => {}
            }
            let data = if head.command == command::READ { offset..end } else { 0..0 };
            answers.push(Answer { header: simple_reply(None, head.cookie), data });
            at = next;
        }
        Ok(Some(at))
    }

    fn send(&mut self, memory: &[u8], answers: &[Answer]) -> io::Result<()> {
        for group in answers.chunks(MAX_SLICES / 2) {
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            for (pair, answer) in slices.chunks_mut(2).zip(group) {
                pair[0] = IoSlice::new(&answer.header);
                pair[1] = IoSlice::new(&memory[answer.data.clone()]);
            }
            let mut left = &mut slices[..2 * group.len()];
            while !left.is_empty() {
                let sent = sendmsg(&self.stream, left, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)?;
                IoSlice::advance_slices(&mut left, sent);
            }
        }
        Ok(())
    }

    fn handshake(&mut self, size: u64) -> io::Result<()> {
        self.stream.write_all(b"NBDMAGICIHAVEOPT\0\x01")?; // fixed newstyle
        let mut flags = [0; 4];
        self.stream.read_exact(&mut flags)?;
        loop {
            let mut head = [0; OPTION_HEADER];
            self.stream.read_exact(&mut head)?;
            let word = u128::from_be_bytes(head);
            let (asked, length) = ((word >> 32) as u32, word as u32 as usize);
            if length > 4096 {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "an absurd option"));
            }
            self.stream.read_exact(&mut self.inbox[..length])?;
            if asked != option::GO {
                self.reply(asked, reply::ERR_UNSUP, &[])?;
                continue;
            }
            let mut info = vec![0; 2];
            info.extend_from_slice(&size.to_be_bytes());
            info.extend_from_slice(&0b1_0110_1101u16.to_be_bytes()); // flags, flush, fua, trim, write zeroes, multi-conn
            self.reply(asked, reply::INFO, &info)?;
            return self.reply(asked, reply::ACK, &[]);
        }
    }

    fn reply(&mut self, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
        let mut message = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
        message.extend_from_slice(&option.to_be_bytes());
        message.extend_from_slice(&kind.to_be_bytes());
        message.extend_from_slice(&u32::try_from(data.len()).unwrap_or(0).to_be_bytes());
        message.extend_from_slice(data);
        self.stream.write_all(&message)
    }
}

/// The ceiling as a target: this program, run as `millpond-lab ceiling`.
#[derive(Debug, Default)]
pub struct Ceiling {
    dir: PathBuf,
    size: u64,
    daemon: Option<Daemon>,
}

impl Contender for Ceiling {
    fn name(&self) -> &'static str {
        "ceiling"
    }

    fn start(&mut self, dir: &Path, size: u64) -> Result<()> {
        (self.dir, self.size) = (dir.to_owned(), size);
        let socket = dir.join("nbd.sock");
        let mut command = Command::new(std::env::current_exe().context("the path of this program")?);
        command.args(["ceiling", "--size", &size.to_string()]).arg(&socket);
        let mut daemon = Daemon::spawn(&mut command, &dir.join("ceiling.log"))?;
        daemon.wait_ready(Duration::from_secs(20), || UnixStream::connect(&socket).is_ok())?;
        self.daemon = Some(daemon);
        Ok(())
    }

    fn endpoint(&self) -> Result<Endpoint> {
        Ok(Endpoint::unix(&self.dir.join("nbd.sock"), "disk"))
    }

    fn pid(&self) -> Result<u32> {
        Ok(self.daemon.as_ref().context("not running")?.pid())
    }

    fn kill9(&mut self) -> Result<()> {
        self.daemon.take().context("not running")?.kill9()
    }

    fn restart(&mut self) -> Result<()> {
        bail!("its memory is gone")
    }

    fn stop(&mut self) -> Result<()> {
        match self.daemon.take() {
            Some(mut daemon) => daemon.terminate(Duration::from_secs(5)).map(|_| ()),
            None => Ok(()),
        }
    }
}
