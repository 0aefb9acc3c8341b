//! The socket's side of one front end: what it has agreed to, told of its memory and queues, and when queues run.
//!
//! A queue runs from when it has an address and a descriptor to be kicked by, and is enabled, until the front end asks where it stands. While
//! the memory changes, all queues stand still (INV-VHOST-1).

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::config::{self, Offer};
use super::dirty::DirtyLog;
use super::inflight::{InflightMemory, part_size};
use super::queue::{MAX_QUEUE_SIZE, QueueSetup};
use super::wire::{self, Fields, Header, InflightArea, Region, VringAddress, code, protocol};

/// Regions of memory that a front end may add one by one: as many as QEMU has on x86.
pub const MAX_REGIONS: usize = 509;
/// Bytes of a record of requests in flight: far more than 256 queues of 1024 need.
const MAX_INFLIGHT: u64 = 64 << 20;
/// Bytes of a log of dirty pages: enough for 32 TiB of guest.
const MAX_LOG: u64 = 1 << 30;

/// Why a front end is broken off.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// It sent what is no message, or one that was not agreed on.
    #[error("message {0} is not as it should be")]
    Malformed(u32),
    /// It asked for what cannot be done, and does not wait to be told so.
    #[error("message {code} was refused: {reason}")]
    Refused {
        /// The message.
        code: u32,
        /// Why.
        reason: String,
    },
}

/// Who runs the queues: all that is not talk. Errors are words for a log.
pub trait Backend {
    /// A region of the guest's memory, mapped.
    type Region: Clone;

    /// Size, sectors and features at this moment.
    ///
    /// # Errors
    /// The disk is gone.
    fn offer(&mut self) -> Result<Offer, String>;
    /// The same, asked for by who reads the configuration. `fresh`: no queue has run on this connection, so that the guest behind it can
    /// have seen nothing else.
    ///
    /// # Errors
    /// The disk is gone.
    fn configuration(&mut self, fresh: bool) -> Result<Offer, String>;
    /// Maps a region.
    ///
    /// # Errors
    /// It cannot be, or must not.
    fn map(&mut self, region: &Region, file: OwnedFd) -> Result<Self::Region, String>;
    /// The memory from now on. No queue runs.
    ///
    /// # Errors
    /// The regions overlap.
    fn set_memory(&mut self, regions: Vec<Self::Region>) -> Result<(), String>;
    /// Makes a record of requests in flight.
    ///
    /// # Errors
    /// The host's.
    fn make_inflight(&mut self, size: u64) -> Result<OwnedFd, String>;
    /// Maps such a record, or a log of dirty pages.
    ///
    /// # Errors
    /// The host's.
    fn map_shared(&mut self, file: OwnedFd, offset: u64, size: u64) -> Result<InflightMemory, String>;
    /// The log of dirty pages from now on; when this returns, nothing is written to the one before.
    ///
    /// # Errors
    /// The disk is gone.
    fn set_log(&mut self, log: DirtyLog) -> Result<(), String>;
    /// What the guest has agreed to.
    ///
    /// # Errors
    /// The disk is gone.
    fn set_features(&mut self, features: u64) -> Result<(), String>;
    /// Whether the guest wants a write cache.
    ///
    /// # Errors
    /// The disk is gone.
    fn set_write_cache(&mut self, on: bool) -> Result<(), String>;
    /// Starts a queue.
    ///
    /// # Errors
    /// It cannot be as described.
    fn start(&mut self, index: usize, setup: QueueSetup, kick: Arc<OwnedFd>) -> Result<(), String>;
    /// Stops a queue and waits until what it has in flight is answered; gives the entry to go on with.
    ///
    /// # Errors
    /// It did not run.
    fn stop(&mut self, index: usize) -> Result<u16, String>;
    /// How the guest is told of answers on a queue, and of its end should it break.
    ///
    /// # Errors
    /// The descriptor is of a kind that cannot be.
    fn set_signal(&mut self, index: usize, signal: Signal, fd: Option<OwnedFd>) -> Result<(), String>;
    /// Checks the descriptor that a queue is kicked by.
    ///
    /// # Errors
    /// It is of a kind that cannot be.
    fn check_kick(&mut self, fd: &OwnedFd) -> Result<(), String>;
    /// Where the front end is told of changes.
    ///
    /// # Errors
    /// The descriptor is of a kind that cannot be.
    fn set_channel(&mut self, fd: OwnedFd) -> Result<(), String>;
}

/// What a descriptor of a queue is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// There are answers.
    Call,
    /// The queue broke.
    Error,
}

/// What a front end has said of a queue.
#[derive(Clone, Default)]
struct Ring {
    size: u16,
    base: u16,
    address: Option<VringAddress>,
    kick: Option<Arc<OwnedFd>>,
    enabled: bool,
    running: bool,
}

struct Mapped<R> {
    region: Region,
    mapped: R,
}

/// One front end's talk.
pub struct Session<B: Backend> {
    rings: Vec<Ring>,
    features: u64,
    protocol: u64,
    regions: Vec<Mapped<B::Region>>,
    inflight: Option<(InflightMemory, InflightArea)>,
    write_cache: Option<bool>,
    /// A queue has run.
    has_run: bool,
    /// Of the guest's driver, as the front end has said.
    status: u64,
}

/// The answer to a message: bytes, and perhaps a descriptor that goes with them.
#[derive(Debug, Default)]
pub struct Reply {
    /// Empty for none.
    pub bytes: Vec<u8>,
    /// Goes with them.
    pub fd: Option<OwnedFd>,
}

/// Why a message was not done.
enum Trouble {
    Malformed,
    Refused(String),
}

impl From<String> for Trouble {
    fn from(reason: String) -> Trouble {
        Trouble::Refused(reason)
    }
}

impl From<&str> for Trouble {
    fn from(reason: &str) -> Trouble {
        Trouble::Refused(reason.to_owned())
    }
}

impl From<SessionError> for Trouble {
    fn from(_: SessionError) -> Trouble {
        Trouble::Malformed
    }
}

/// What a message is answered with.
enum Answer {
    /// With whether it was done, when the front end waits for that.
    Done,
    Bytes(Vec<u8>),
    With(Vec<u8>, OwnedFd),
}

impl<B: Backend> Session<B> {
    /// A front end has connected; it may have `queues` queues.
    pub fn new(queues: u16) -> Session<B> {
        Session {
            rings: vec![Ring::default(); usize::from(queues)],
            features: 0,
            protocol: 0,
            regions: Vec::new(),
            inflight: None,
            write_cache: None,
            has_run: false,
            status: 0,
        }
    }

    /// Does what a message asks for. Descriptors that the message has no use for are closed.
    ///
    /// # Errors
    /// The connection is to be closed.
    pub fn handle(&mut self, backend: &mut B, header: &Header, payload: &[u8], fds: Vec<OwnedFd>) -> Result<Reply, SessionError> {
        let acknowledge = header.need_reply && self.protocol & protocol::REPLY_ACK != 0;
        let status = |failed: bool| Reply { bytes: header.reply(&u64::from(failed).to_ne_bytes()), fd: None };
        match self.dispatch(backend, header, payload, fds) {
            Ok(Answer::Bytes(bytes)) => Ok(Reply { bytes: header.reply(&bytes), fd: None }),
            Ok(Answer::With(bytes, fd)) => Ok(Reply { bytes: header.reply(&bytes), fd: Some(fd) }),
            Ok(Answer::Done) if acknowledge => Ok(status(false)),
            Ok(Answer::Done) => Ok(Reply::default()),
            Err(Trouble::Refused(_)) if acknowledge => Ok(status(true)),
            Err(Trouble::Refused(reason)) => Err(SessionError::Refused { code: header.code, reason }),
            Err(Trouble::Malformed) => Err(SessionError::Malformed(header.code)),
        }
    }

    fn dispatch(&mut self, backend: &mut B, header: &Header, payload: &[u8], fds: Vec<OwnedFd>) -> Result<Answer, Trouble> {
        let mut fields = Fields(payload);
        match header.code {
            code::GET_FEATURES => number(backend.offer()?.feature_bits()),
            code::SET_FEATURES => {
                let features = fields.u64()?;
                if features & !backend.offer()?.feature_bits() != 0 {
                    return Err("features that were not offered".into());
                }
                // Queues that run were started by the old ones.
                self.while_stopped(backend, |session, backend| {
                    session.features = features;
                    Ok(backend.set_features(features)?)
                })
            }
            code::SET_OWNER => Ok(Answer::Done),
            code::RESET_OWNER => {
                self.stop_all(backend)?;
                self.rings.iter_mut().for_each(|ring| *ring = Ring::default());
                Ok(Answer::Done)
            }
            code::GET_PROTOCOL_FEATURES => number(protocol::ALL),
            code::SET_PROTOCOL_FEATURES => {
                let features = fields.u64()?;
                if features & !protocol::ALL != 0 {
                    return Err("protocol features that were not offered".into());
                }
                self.protocol = features;
                Ok(Answer::Done)
            }
            code::GET_QUEUE_NUM => number(self.rings.len() as u64),
            code::SET_MEM_TABLE => self.set_memory_table(backend, payload, fds),
            code::GET_MAX_MEM_SLOTS => number(MAX_REGIONS as u64),
            code::ADD_MEM_REG => self.add_region(backend, payload, fds),
            code::REM_MEM_REG => self.remove_region(backend, payload),
            code::SET_VRING_NUM => {
                let (index, size) = wire::vring_state(payload)?;
                let ring = self.ring(index)?;
                let size = u16::try_from(size).ok().filter(|size| size.is_power_of_two() && *size <= MAX_QUEUE_SIZE);
                ring.size = size.ok_or("a queue's size is a power of two up to 32768")?;
                Ok(Answer::Done)
            }
            code::SET_VRING_BASE => {
                let (index, base) = wire::vring_state(payload)?;
                self.ring(index)?.base = base as u16; // split rings count in 16 bits; what is above is of packed ones
                Ok(Answer::Done)
            }
            code::SET_VRING_ADDR => {
                let address = VringAddress::read(payload)?;
                self.restart(backend, address.index, |ring| ring.address = Some(address))
            }
            code::SET_VRING_KICK => {
                let (index, comes) = wire::vring_descriptor(payload)?;
                let fd = single(fds, comes)?.ok_or("queues that are looked at all the time are not offered")?;
                backend.check_kick(&fd)?;
                self.restart(backend, index, |ring| ring.kick = Some(Arc::new(fd)))
            }
            code::SET_VRING_CALL | code::SET_VRING_ERR => {
                let (index, comes) = wire::vring_descriptor(payload)?;
                let fd = single(fds, comes)?;
                self.ring(index)?;
                let signal = if header.code == code::SET_VRING_CALL { Signal::Call } else { Signal::Error };
                backend.set_signal(index, signal, fd)?;
                Ok(Answer::Done)
            }
            code::SET_VRING_ENABLE => {
                let (index, enabled) = wire::vring_state(payload)?;
                self.restart(backend, index, |ring| ring.enabled = enabled != 0)
            }
            code::GET_VRING_BASE => {
                let (index, _) = wire::vring_state(payload)?;
                self.stop(backend, index)?;
                let ring = self.ring(index)?;
                // Stopped until it is kicked into life again.
                ring.kick = None;
                let reply = [index as u32, u32::from(ring.base)];
                Ok(Answer::Bytes(reply.iter().flat_map(|field| field.to_ne_bytes()).collect()))
            }
            code::GET_CONFIG => self.get_config(backend, payload),
            code::SET_CONFIG => self.set_config(backend, payload),
            code::SET_BACKEND_REQ_FD => {
                let fd = single(fds, true)?.ok_or(Trouble::Malformed)?;
                backend.set_channel(fd)?;
                Ok(Answer::Done)
            }
            code::GET_INFLIGHT_FD => {
                let asked = InflightArea::read(payload)?;
                let size = part_size(asked.queue_size) as u64 * u64::from(asked.queues);
                if size == 0 || size > MAX_INFLIGHT || usize::from(asked.queues) > self.rings.len() {
                    return Err("a record of so many queues of that size is not kept".into());
                }
                let fd = backend.make_inflight(size)?;
                Ok(Answer::With(InflightArea { size, offset: 0, ..asked }.write(payload.len()), fd))
            }
            code::SET_INFLIGHT_FD => {
                let area = InflightArea::read(payload)?;
                let fd = single(fds, true)?.ok_or(Trouble::Malformed)?;
                let needed = part_size(area.queue_size) as u64 * u64::from(area.queues);
                if area.size < needed || area.size > MAX_INFLIGHT {
                    return Err("the record of requests in flight has an impossible size".into());
                }
                let memory = backend.map_shared(fd, area.offset, area.size)?;
                self.while_stopped(backend, |session, _| {
                    session.inflight = Some((memory, area));
                    Ok(())
                })
            }
            code::SET_LOG_BASE => self.set_log(backend, payload, fds),
            code::SET_LOG_FD => Err("the log of dirty pages is looked at, not waited for".into()),
            code::SET_STATUS => {
                let status = fields.u64()?;
                if status == 0 {
                    self.reset(backend)?;
                }
                self.status = status;
                Ok(Answer::Done)
            }
            code::GET_STATUS => number(self.status),
            _ => Err(Trouble::Malformed),
        }
    }

    /// The driver lets the device go, or the virtual machine pauses: front ends say the same for both. So queues stop, but what the guest has
    /// chosen stays: a write cache that it has switched off must be off when it goes on.
    fn reset(&mut self, backend: &mut B) -> Result<(), Trouble> {
        self.stop_all(backend)?;
        self.rings.iter_mut().for_each(|ring| (ring.kick, ring.enabled) = (None, false));
        Ok(())
    }

    fn set_log(&mut self, backend: &mut B, payload: &[u8], fds: Vec<OwnedFd>) -> Result<Answer, Trouble> {
        if self.protocol & protocol::LOG_SHMFD == 0 {
            return Err("a log of dirty pages comes as shared memory".into());
        }
        let mut fields = Fields(payload);
        let (size, offset) = (fields.u64()?, fields.u64()?);
        let fd = single(fds, true)?.ok_or(Trouble::Malformed)?;
        if size == 0 || size > MAX_LOG {
            return Err("the log of dirty pages has an impossible size".into());
        }
        let memory = backend.map_shared(fd, offset, size)?;
        backend.set_log(DirtyLog::new(memory))?;
        // The one message whose answer says nothing but that it was done, whatever was agreed on.
        Ok(Answer::Bytes(Vec::new()))
    }

    fn ring(&mut self, index: usize) -> Result<&mut Ring, Trouble> {
        self.rings.get_mut(index).ok_or_else(|| Trouble::Refused(format!("there is no queue {index}")))
    }

    fn set_memory_table(&mut self, backend: &mut B, payload: &[u8], fds: Vec<OwnedFd>) -> Result<Answer, Trouble> {
        let mut fields = Fields(payload);
        let (count, _padding) = (fields.u32()? as usize, fields.u32()?);
        if count == 0 || count > wire::MAX_DESCRIPTORS || fds.len() != count {
            return Err(Trouble::Malformed);
        }
        let mut regions = Vec::with_capacity(count);
        for fd in fds {
            let region = Region::read(&mut fields)?;
            regions.push(Mapped { region, mapped: backend.map(&region, fd)? });
        }
        self.while_stopped(backend, |session, backend| {
            session.regions = regions;
            session.tell_memory(backend)
        })
    }

    fn add_region(&mut self, backend: &mut B, payload: &[u8], fds: Vec<OwnedFd>) -> Result<Answer, Trouble> {
        let mut fields = Fields(payload);
        let _padding = fields.u64()?;
        let region = Region::read(&mut fields)?;
        let fd = single(fds, true)?.ok_or(Trouble::Malformed)?;
        if self.regions.len() >= MAX_REGIONS {
            return Err("too many regions of memory".into());
        }
        let mapped = backend.map(&region, fd)?;
        self.while_stopped(backend, |session, backend| {
            session.regions.push(Mapped { region, mapped });
            let told = session.tell_memory(backend);
            if told.is_err() {
                session.regions.pop();
            }
            told
        })
    }

    fn remove_region(&mut self, backend: &mut B, payload: &[u8]) -> Result<Answer, Trouble> {
        let mut fields = Fields(payload);
        let _padding = fields.u64()?;
        let gone = Region::read(&mut fields)?;
        let same = |region: &Region| (region.guest, region.size, region.user) == (gone.guest, gone.size, gone.user);
        if !self.regions.iter().any(|known| same(&known.region)) {
            return Err("there is no such region of memory".into());
        }
        self.while_stopped(backend, |session, backend| {
            session.regions.retain(|known| !same(&known.region));
            session.tell_memory(backend)
        })
    }

    fn tell_memory(&self, backend: &mut B) -> Result<(), Trouble> {
        let mut regions: Vec<&Mapped<B::Region>> = self.regions.iter().collect();
        regions.sort_by_key(|known| known.region.guest);
        Ok(backend.set_memory(regions.into_iter().map(|known| known.mapped.clone()).collect())?)
    }

    fn get_config(&mut self, backend: &mut B, payload: &[u8]) -> Result<Answer, Trouble> {
        let mut fields = Fields(payload);
        let (offset, size, _flags) = (fields.u32()? as usize, fields.u32()? as usize, fields.u32()?);
        if fields.0.len() != size {
            return Err(Trouble::Malformed);
        }
        let offer = backend.configuration(!self.has_run)?;
        let write_cache = self.write_cache.unwrap_or(true) && offer.features.write_cache;
        let mut bytes = payload.get(..payload.len() - size).unwrap_or_default().to_vec();
        // Nothing after the head means that it cannot be had.
        bytes.extend(offer.config(offset, size, write_cache).unwrap_or_default());
        Ok(Answer::Bytes(bytes))
    }

    fn set_config(&mut self, backend: &mut B, payload: &[u8]) -> Result<Answer, Trouble> {
        let mut fields = Fields(payload);
        let (offset, size, _flags) = (fields.u32()? as usize, fields.u32()? as usize, fields.u32()?);
        if fields.0.len() != size {
            return Err(Trouble::Malformed);
        }
        let written = config::written_cache(offset, fields.0).filter(|_| self.features & config::CONFIG_WCE != 0);
        let on = written.ok_or("of the configuration the guest can change the write cache alone")?;
        backend.set_write_cache(on)?;
        self.write_cache = Some(on);
        Ok(Answer::Done)
    }

    /// Changes what is said of a queue; one that runs and can go on does so with what is new.
    fn restart(&mut self, backend: &mut B, index: usize, change: impl FnOnce(&mut Ring)) -> Result<Answer, Trouble> {
        self.stop(backend, index)?;
        change(self.ring(index)?);
        self.start(backend, index)?;
        Ok(Answer::Done)
    }

    /// Does something while no queue runs.
    fn while_stopped(&mut self, backend: &mut B, change: impl FnOnce(&mut Self, &mut B) -> Result<(), Trouble>) -> Result<Answer, Trouble> {
        self.stop_all(backend)?;
        let changed = change(self, backend);
        for index in 0..self.rings.len() {
            self.start(backend, index)?;
        }
        changed.map(|()| Answer::Done)
    }

    fn stop_all(&mut self, backend: &mut B) -> Result<(), Trouble> {
        (0..self.rings.len()).try_for_each(|index| self.stop(backend, index))
    }

    fn stop(&mut self, backend: &mut B, index: usize) -> Result<(), Trouble> {
        let ring = self.ring(index)?;
        if ring.running {
            ring.running = false;
            ring.base = backend.stop(index)?;
        }
        Ok(())
    }

    /// Starts a queue of which all is known.
    fn start(&mut self, backend: &mut B, index: usize) -> Result<(), Trouble> {
        // Without the protocol's features there is no message that enables a queue.
        let always = self.features & config::PROTOCOL_FEATURES == 0;
        let Some(ring) = self.rings.get(index) else { return Ok(()) };
        let (Some(address), Some(kick)) = (ring.address, &ring.kick) else { return Ok(()) };
        if ring.running || !(ring.enabled || always) || ring.size == 0 || self.regions.is_empty() {
            return Ok(());
        }
        let inflight = match &self.inflight {
            Some((memory, area)) if index < usize::from(area.queues) => {
                if ring.size > area.queue_size {
                    return Err("the queue is longer than its record of requests in flight".into());
                }
                Some((memory.clone(), part_size(area.queue_size) * index))
            }
            _ => None,
        };
        let setup = QueueSetup {
            size: ring.size,
            descriptors: self.guest_address(address.descriptors)?,
            available: self.guest_address(address.available)?,
            used: self.guest_address(address.used)?,
            base: ring.base,
            inflight,
            log: address.log,
        };
        backend.start(index, setup, Arc::clone(kick))?;
        self.has_run = true;
        self.ring(index)?.running = true;
        Ok(())
    }

    /// The guest's address of what the front end names by its own.
    fn guest_address(&self, user: u64) -> Result<u64, Trouble> {
        let place = |known: &Mapped<B::Region>| {
            let within = user.checked_sub(known.region.user).filter(|within| *within < known.region.size)?;
            known.region.guest.checked_add(within)
        };
        self.regions.iter().find_map(place).ok_or_else(|| "a queue lies outside the guest's memory".into())
    }
}

impl<B: Backend> fmt::Debug for Session<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let running = self.rings.iter().filter(|ring| ring.running).count();
        write!(f, "Session({} regions, {running} queues running, features {:#x})", self.regions.len(), self.features)
    }
}

fn number(value: u64) -> Result<Answer, Trouble> {
    Ok(Answer::Bytes(value.to_ne_bytes().to_vec()))
}

/// The one descriptor of a message that says whether it comes.
fn single(fds: Vec<OwnedFd>, comes: bool) -> Result<Option<OwnedFd>, Trouble> {
    let mut fds = fds.into_iter();
    match (fds.next(), fds.next(), comes) {
        (Some(fd), None, true) => Ok(Some(fd)),
        (None, None, false) => Ok(None),
        _ => Err(Trouble::Malformed),
    }
}

#[cfg(test)]
mod tests;
