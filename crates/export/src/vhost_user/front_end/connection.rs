//! A front end's connection: messages, replies, and the handshake.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use super::message::{configuration, longs, memory_table, record_of, ring_address, words};
use super::{RingPlaces, Violation};
use crate::vhost_user::config::{PROTOCOL_FEATURES, SECTOR};
use crate::vhost_user::wire::{HEADER, MAX_PAYLOAD, Region, code, protocol, request};

/// Bytes of the disk's capacity, at the beginning of the configuration space.
const CAPACITY: usize = 8;
/// Bytes of the fields before the configuration in the reply: offset, size, flags.
const CONFIG_HEAD: usize = 12;

/// Stream of messages to a back end, which passes descriptors as well.
pub trait Channel {
    /// Sends all bytes of a message, and a descriptor with them.
    ///
    /// # Errors
    /// The stream's error.
    fn send(&mut self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()>;

    /// Fills `bytes` completely. Returns a descriptor that arrived with them.
    ///
    /// # Errors
    /// The stream's error, or its end.
    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<Option<OwnedFd>>;
}

/// Eventfds of a queue: the kick, and those for answers and for the end of a broken queue.
#[derive(Clone, Copy, Debug)]
pub struct Signals<'a> {
    /// The driver signals that there are requests.
    pub kick: BorrowedFd<'a>,
    /// The device signals that there are answers.
    pub call: Option<BorrowedFd<'a>>,
    /// The device signals that the queue broke.
    pub error: Option<BorrowedFd<'a>>,
}

/// A front end with one region of memory.
#[derive(Debug)]
pub struct FrontEnd<C> {
    channel: C,
    features: u64,
    protocol: u64,
    region: Option<Region>,
}

impl<C: Channel> FrontEnd<C> {
    /// Makes a front end that has not sent anything yet.
    pub fn new(channel: C) -> FrontEnd<C> {
        FrontEnd { channel, features: 0, protocol: 0, region: None }
    }

    /// Accepts of the back end's features at most `features`, and of its protocol features at most
    /// `protocol`. Without virtio's bit for them, no protocol features are negotiated.
    ///
    /// # Errors
    /// The channel's error, or a [`Violation`].
    pub fn negotiate(&mut self, features: u64, protocol: u64) -> io::Result<()> {
        self.send(code::SET_OWNER, &[], None)?;
        self.features = self.ask(code::GET_FEATURES, &[])? & features;
        self.send(code::SET_FEATURES, &longs(&[self.features]), None)?;
        self.protocol = 0;
        if self.features & PROTOCOL_FEATURES != 0 {
            self.protocol = self.ask(code::GET_PROTOCOL_FEATURES, &[])? & protocol;
            self.send(code::SET_PROTOCOL_FEATURES, &longs(&[self.protocol]), None)?;
        }
        Ok(())
    }

    /// Returns the features that were negotiated.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Returns the protocol features that were negotiated.
    pub fn protocol(&self) -> u64 {
        self.protocol
    }

    /// Returns the channel.
    pub fn channel(&mut self) -> &mut C {
        &mut self.channel
    }

    /// Shares the memory, which is a part of a file.
    ///
    /// # Errors
    /// The channel's error, or that the back end refuses.
    pub fn share_memory(&mut self, region: Region, file: BorrowedFd<'_>) -> io::Result<()> {
        self.set(code::SET_MEM_TABLE, &memory_table(&[region]), Some(file))?;
        self.region = Some(region);
        Ok(())
    }

    /// Gets an empty record of the requests in flight of `queues` queues with `size` entries:
    /// its file, and its description.
    ///
    /// # Errors
    /// The channel's error, or a [`Violation`].
    pub fn make_record(&mut self, queues: u16, size: u16) -> io::Result<(OwnedFd, Vec<u8>)> {
        self.send(code::GET_INFLIGHT_FD, &record_of(queues, size), None)?;
        let (description, fd) = self.reply(code::GET_INFLIGHT_FD)?;
        Ok((fd.ok_or(Violation::NoDescriptor(code::GET_INFLIGHT_FD))?, description))
    }

    /// Shares a record of the requests in flight, new or of an earlier connection.
    ///
    /// # Errors
    /// The channel's error, or that the back end refuses.
    pub fn share_record(&mut self, file: BorrowedFd<'_>, description: &[u8]) -> io::Result<()> {
        self.set(code::SET_INFLIGHT_FD, description, Some(file))
    }

    /// Returns the size of the disk in bytes, from its configuration space.
    ///
    /// # Errors
    /// The channel's error, or a [`Violation`].
    pub fn capacity(&mut self) -> io::Result<u64> {
        let reply = self.call(code::GET_CONFIG, &configuration(0, CAPACITY as u32))?;
        let sectors = reply.get(CONFIG_HEAD..).and_then(<[u8]>::first_chunk::<CAPACITY>).ok_or(Violation::NoConfiguration)?;
        Ok(u64::from_le_bytes(*sectors).saturating_mul(SECTOR))
    }

    /// Starts a queue in the shared memory at an index. Its places are guest addresses.
    ///
    /// # Errors
    /// The channel's error, or that the back end refuses.
    pub fn start(&mut self, queue: u32, places: &RingPlaces, base: u16, signals: &Signals<'_>) -> io::Result<()> {
        let region = self.region.ok_or(Violation::Place)?;
        let user = |guest: u64| guest.checked_sub(region.guest).filter(|at| *at < region.size).map(|at| region.user + at);
        let parts = [places.descriptors, places.available, places.used].map(user);
        let [Some(descriptors), Some(available), Some(used)] = parts else { return Err(Violation::Place.into()) };
        self.set(code::SET_VRING_NUM, &words(&[queue, u32::from(places.size)]), None)?;
        self.set(code::SET_VRING_BASE, &words(&[queue, u32::from(base)]), None)?;
        self.set(code::SET_VRING_ADDR, &ring_address(queue, &RingPlaces { size: places.size, descriptors, available, used }, None), None)?;
        let number = longs(&[u64::from(queue)]);
        for (code, fd) in
            [(code::SET_VRING_CALL, signals.call), (code::SET_VRING_ERR, signals.error), (code::SET_VRING_KICK, Some(signals.kick))]
        {
            if fd.is_some() {
                self.set(code, &number, fd)?;
            }
        }
        match self.features & PROTOCOL_FEATURES {
            0 => Ok(()), // the kick has started it
            _ => self.set(code::SET_VRING_ENABLE, &words(&[queue, 1]), None),
        }
    }

    /// Stops a queue; returns the index to continue with.
    ///
    /// # Errors
    /// The channel's error, or a [`Violation`].
    pub fn stop(&mut self, queue: u32) -> io::Result<u16> {
        let reply = self.call(code::GET_VRING_BASE, &words(&[queue, 0]))?;
        let base = reply.get(4..).and_then(<[u8]>::first_chunk).map(|base| u32::from_ne_bytes(*base));
        Ok(base.and_then(|base| u16::try_from(base).ok()).ok_or(Violation::Reply(code::GET_VRING_BASE))?)
    }

    /// Sends a message and returns the number in its reply.
    ///
    /// # Errors
    /// The channel's error, or a [`Violation`].
    pub fn ask(&mut self, code: u32, payload: &[u8]) -> io::Result<u64> {
        let reply = self.call(code, payload)?;
        Ok(reply.try_into().map(u64::from_ne_bytes).map_err(|_| Violation::Reply(code))?)
    }

    /// Sends a message and returns the payload of its reply.
    ///
    /// # Errors
    /// The channel's error, or a [`Violation`].
    pub fn call(&mut self, code: u32, payload: &[u8]) -> io::Result<Vec<u8>> {
        self.send(code, payload, None)?;
        self.reply(code).map(|(payload, _)| payload)
    }

    /// Sends a message without a reply. If acknowledgements were negotiated, waits for the
    /// acknowledgement and checks it.
    ///
    /// # Errors
    /// The channel's error, or that the back end refuses.
    pub fn set(&mut self, code: u32, payload: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let acknowledged = self.protocol & protocol::REPLY_ACK != 0;
        self.channel.send(&request(code, acknowledged, payload), fd)?;
        if acknowledged && self.reply(code)?.0.iter().any(|byte| *byte != 0) {
            return Err(Violation::Refused(code).into());
        }
        Ok(())
    }

    /// Sends a message and requests no acknowledgement.
    ///
    /// # Errors
    /// The channel's error.
    pub fn send(&mut self, code: u32, payload: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.channel.send(&request(code, false, payload), fd)
    }

    fn reply(&mut self, code: u32) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
        let mut header = [0; HEADER];
        let fd = self.channel.receive(&mut header)?;
        let [a, b, c, d, .., e, f, g, h] = header;
        let length = u32::from_ne_bytes([e, f, g, h]) as usize;
        if u32::from_ne_bytes([a, b, c, d]) != code || length > MAX_PAYLOAD {
            return Err(Violation::Reply(code).into());
        }
        let mut payload = vec![0; length];
        let late = self.channel.receive(&mut payload)?;
        Ok((payload, fd.or(late)))
    }
}
