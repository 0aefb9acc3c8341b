//! A client that waits for its replies.

use std::io::{self, BufReader, Read, Write};

use super::negotiation::{self, Export};
use super::reply::{self, Content, Reply};
use super::violation::Violation;
use crate::nbd::wire::{RequestHeader, SIMPLE_REPLY, Style, command};

/// Bytes of replies that are received at once.
const INBOX: usize = 64 << 10;
/// Longest list of extents accepted in bytes: 128 Ki extents.
const MAX_EXTENTS: usize = 1 << 20;
/// Maximum bytes of one request for extents: servers may refuse lengths near 32 bits, and require
/// whole sectors.
const MAX_RANGE: u64 = 1 << 31;

/// A contiguous range with one status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Status flags of the metadata context.
    pub flags: u32,
}

/// A connection to the default export of a server.
pub struct Client<S: Read + Write> {
    stream: BufReader<S>,
    export: Export,
    /// Header of the reply that is received.
    head: Vec<u8>,
}

impl<S: Read + Write> Client<S> {
    /// Negotiates over a stream.
    ///
    /// # Errors
    /// The stream's error, or a [`Violation`].
    pub fn new(stream: S) -> io::Result<Client<S>> {
        Client::negotiate(stream, Style::Simple, None)
    }

    /// Negotiates for [`Client::extents`] of one metadata context, like `base:allocation`. Such a
    /// connection cannot read, because it negotiates structured replies.
    ///
    /// # Errors
    /// Those of [`Client::new`], or that the server does not have the context.
    pub fn for_extents(stream: S, context: &str) -> io::Result<Client<S>> {
        let client = Client::negotiate(stream, Style::Structured, Some(context))?;
        match client.export.context {
            Some(_) => Ok(client),
            None => Err(Violation::NoContext(context.to_owned()).into()),
        }
    }

    fn negotiate(mut stream: S, style: Style, context: Option<&str>) -> io::Result<Client<S>> {
        let export = negotiation::negotiate(&mut stream, "", style, context)?;
        Ok(Client { stream: BufReader::with_capacity(INBOX, stream), export, head: Vec::new() })
    }

    /// Size of the export in bytes.
    pub fn size(&self) -> u64 {
        self.export.size
    }

    fn request(&mut self, command: u16, cookie: u64, offset: u64, length: u32, payload: &[u8]) -> io::Result<()> {
        let header = RequestHeader { magic: Style::Simple.request_magic(), flags: 0, command, cookie, offset, length: length.into() };
        let mut request = Vec::with_capacity(header.encode(Style::Simple).len() + payload.len());
        request.extend_from_slice(&header.encode(Style::Simple));
        request.extend_from_slice(payload);
        self.stream.get_mut().write_all(&request)
    }

    /// Receives the header of a reply or of a chunk.
    fn receive(&mut self) -> io::Result<Reply> {
        self.head.clear();
        self.head.resize(SIMPLE_REPLY, 0);
        self.stream.read_exact(&mut self.head)?;
        loop {
            if let Some(reply) = reply::parse(&self.head)? {
                return Ok(reply);
            }
            let mut next = [0];
            self.stream.read_exact(&mut next)?;
            self.head.extend(next);
        }
    }

    /// Sends a write without waiting for its reply.
    ///
    /// # Errors
    /// The stream's error.
    pub fn start_write(&mut self, cookie: u64, offset: u64, payload: &[u8]) -> io::Result<()> {
        self.request(command::WRITE, cookie, offset, length_of(payload)?, payload)
    }

    /// Waits for the next reply without data and returns its cookie.
    ///
    /// # Errors
    /// The stream's error, or the error that the server returned.
    pub fn reply(&mut self) -> io::Result<u64> {
        let reply = self.receive()?;
        failure(reply)?;
        if reply.done { Ok(reply.cookie) } else { Err(Violation::Reply.into()) }
    }

    /// Writes and waits for the reply.
    ///
    /// # Errors
    /// The stream's error, or the error that the server returned.
    pub fn write(&mut self, offset: u64, payload: &[u8]) -> io::Result<()> {
        self.start_write(0, offset, payload)?;
        self.reply().map(drop)
    }

    /// Reads and waits for the reply.
    ///
    /// # Errors
    /// The stream's error, or the error that the server returned.
    pub fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.request(command::READ, 0, offset, length_of(into)?, &[])?;
        self.reply()?;
        self.stream.read_exact(into)
    }

    /// Makes a range read as zeroes, and waits for the reply.
    ///
    /// # Errors
    /// The stream's error, or the error that the server returned.
    pub fn write_zeroes(&mut self, offset: u64, length: u32) -> io::Result<()> {
        self.request(command::WRITE_ZEROES, 0, offset, length, &[])?;
        self.reply().map(drop)
    }

    /// Flushes: writes that were answered before the call are durable on return.
    ///
    /// # Errors
    /// The stream's error, or the error that the server returned.
    pub fn flush(&mut self) -> io::Result<()> {
        self.request(command::FLUSH, 0, 0, 0, &[])?;
        self.reply().map(drop)
    }

    /// Returns extents from `offset` on: at least one, not necessarily `length` bytes. Needs a
    /// connection of [`Client::for_extents`].
    ///
    /// # Errors
    /// The stream's error, or the error that the server returned.
    pub fn extents(&mut self, offset: u64, length: u64) -> io::Result<Vec<Extent>> {
        let context = self.export.context.ok_or(Violation::NotAgreed)?;
        let asked = u32::try_from(length.min(MAX_RANGE)).map_err(|_| Violation::TooLong)?;
        self.request(command::BLOCK_STATUS, 0, offset, asked, &[])?;
        let (mut extents, mut at) = (Vec::new(), offset);
        loop {
            let reply = self.receive()?;
            failure(reply)?;
            match reply.content {
                Content::Extents(id, _) if id != context => return Err(Violation::OtherContext(id).into()),
                Content::Extents(_, bytes) if bytes <= MAX_EXTENTS => {
                    let mut data = vec![0; bytes];
                    self.stream.read_exact(&mut data)?;
                    for pair in data.as_chunks::<8>().0 {
                        let pair = u64::from_be_bytes(*pair);
                        let (length, flags) = ((pair >> 32).min((offset + length).saturating_sub(at)), pair as u32);
                        if length > 0 {
                            extents.push(Extent { offset: at, length, flags });
                            at += length;
                        }
                    }
                }
                Content::None => {}
                Content::Whole | Content::Data(..) | Content::Hole(..) | Content::Extents(..) => return Err(Violation::Reply.into()),
            }
            if reply.done {
                break;
            }
        }
        if extents.is_empty() { Err(Violation::NoExtents.into()) } else { Ok(extents) }
    }
}

fn length_of(bytes: &[u8]) -> io::Result<u32> {
    Ok(u32::try_from(bytes.len()).map_err(|_| Violation::TooLong)?)
}

/// Returns the error of a reply.
fn failure(reply: Reply) -> io::Result<()> {
    match i32::try_from(reply.error) {
        Ok(0) => Ok(()),
        Ok(errno) => Err(io::Error::from_raw_os_error(errno)),
        Err(_) => Err(Violation::ErrorNumber(reply.error).into()),
    }
}

impl<S: Read + Write> Drop for Client<S> {
    fn drop(&mut self) {
        // The disconnect request is optional; the server may be gone.
        let _ = self.request(command::DISC, 0, 0, 0, &[]);
    }
}

#[cfg(test)]
mod tests;
