//! The socket of one front end: accepted features, memory, queues, and when queues run.
//!
//! A queue runs from the moment when it has addresses and a kick descriptor and is enabled, until
//! the front end asks for its position. While the memory changes, all queues are stopped
//! (INV-VHOST-1).

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::config::{self, Offer};
use super::dirty::DirtyLog;
use super::inflight::{InflightMemory, part_size};
use super::queue::{MAX_QUEUE_SIZE, QueueSetup};
use super::wire::{self, Fields, Header, InflightArea, Region, VringAddress, code, protocol};

/// Maximum number of memory regions that a front end may add one by one: as many as QEMU has on
/// x86.
pub const MAX_REGIONS: usize = 509;
/// Maximum size of a record of requests in flight in bytes: far more than 256 queues of 1024 need.
const MAX_INFLIGHT: u64 = 64 << 20;
/// Maximum size of a log of dirty pages in bytes: enough for a guest of 32 TiB.
const MAX_LOG: u64 = 1 << 30;

/// Reason for which a front end is disconnected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The front end sent an invalid message, or one that was not agreed on.
    #[error("message {0} is not as it should be")]
    Malformed(u32),
    /// The front end requested something impossible with a message that has no reply.
    #[error("message {code} was refused: {reason}")]
    Refused {
        /// Code of the message.
        code: u32,
        /// Reason.
        reason: String,
    },
}

/// Executes the front end's requests: maps memory and runs queues. Errors are texts for a log.
pub trait Backend {
    /// Mapped region of the guest's memory.
    type Region: Clone;

    /// Returns the current size, sectors and features.
    ///
    /// # Errors
    /// When the disk does not exist any more.
    fn offer(&mut self) -> Result<Offer, String>;
    /// Returns the same for a read of the configuration space. `fresh` is true if no queue has run
    /// on this connection, so that the guest cannot have seen other values.
    ///
    /// # Errors
    /// When the disk does not exist any more.
    fn configuration(&mut self, fresh: bool) -> Result<Offer, String>;
    /// Maps a region.
    ///
    /// # Errors
    /// When it cannot be mapped, or must not be.
    fn map(&mut self, region: &Region, file: OwnedFd) -> Result<Self::Region, String>;
    /// Replaces the guest's memory. No queue runs during the call.
    ///
    /// # Errors
    /// When the regions overlap.
    fn set_memory(&mut self, regions: Vec<Self::Region>) -> Result<(), String>;
    /// Creates a record of requests in flight of `size` bytes.
    ///
    /// # Errors
    /// When the host cannot.
    fn make_inflight(&mut self, size: u64) -> Result<OwnedFd, String>;
    /// Maps a record of requests in flight, or a log of dirty pages.
    ///
    /// # Errors
    /// When the host cannot.
    fn map_shared(&mut self, file: OwnedFd, offset: u64, size: u64) -> Result<InflightMemory, String>;
    /// Replaces the log of dirty pages. On return, nothing is written to the old one any more.
    ///
    /// # Errors
    /// When the disk does not exist any more.
    fn set_log(&mut self, log: DirtyLog) -> Result<(), String>;
    /// Sets the features that the guest has accepted.
    ///
    /// # Errors
    /// When the disk does not exist any more.
    fn set_features(&mut self, features: u64) -> Result<(), String>;
    /// Sets whether the guest wants a write cache.
    ///
    /// # Errors
    /// When the disk does not exist any more.
    fn set_write_cache(&mut self, on: bool) -> Result<(), String>;
    /// Starts a queue.
    ///
    /// # Errors
    /// When it cannot run as described.
    fn start(&mut self, index: usize, setup: QueueSetup, kick: Arc<OwnedFd>) -> Result<(), String>;
    /// Stops a queue and waits until its requests in flight are answered. Returns the entry to
    /// continue with.
    ///
    /// # Errors
    /// When the queue did not run.
    fn stop(&mut self, index: usize) -> Result<u16, String>;
    /// Sets the descriptor through which the guest is notified about answers on a queue, or about
    /// its failure.
    ///
    /// # Errors
    /// When the descriptor is of a wrong kind.
    fn set_signal(&mut self, index: usize, signal: Signal, fd: Option<OwnedFd>) -> Result<(), String>;
    /// Checks a queue's kick descriptor.
    ///
    /// # Errors
    /// When the descriptor is of a wrong kind.
    fn check_kick(&mut self, fd: &OwnedFd) -> Result<(), String>;
    /// Sets the socket on which the front end is notified about changes.
    ///
    /// # Errors
    /// When the descriptor is of a wrong kind.
    fn set_channel(&mut self, fd: OwnedFd) -> Result<(), String>;
}

/// Purpose of a queue's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Notifies the guest about answers.
    Call,
    /// Notifies the guest that the queue has failed.
    Error,
}

/// State of a queue, according to the front end.
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

/// Session of one front end.
pub struct Session<B: Backend> {
    rings: Vec<Ring>,
    features: u64,
    protocol: u64,
    regions: Vec<Mapped<B::Region>>,
    inflight: Option<(InflightMemory, InflightArea)>,
    write_cache: Option<bool>,
    /// True if a queue has run.
    has_run: bool,
    /// Status of the guest's driver, according to the front end.
    status: u64,
}

/// Reply to a message: bytes, and a descriptor that may go with them.
#[derive(Debug, Default)]
pub struct Reply {
    /// Bytes to send; empty if there is no reply.
    pub bytes: Vec<u8>,
    /// Descriptor to send with the bytes.
    pub fd: Option<OwnedFd>,
}

/// Reason for which a message was not carried out.
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

/// Result of a message.
enum Answer {
    /// Carried out; a reply is sent only if the front end asked for one.
    Done,
    Bytes(Vec<u8>),
    With(Vec<u8>, OwnedFd),
}

impl<B: Backend> Session<B> {
    /// Makes a session for a front end that may have `queues` queues.
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

    /// Carries out a message. Descriptors that the message does not need are closed.
    ///
    /// # Errors
    /// When the connection has to be closed.
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
                // Running queues were started with the old features.
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
                self.ring(index)?.base = base as u16; // split rings use 16 bits; the others are for packed rings
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
                // The queue stays stopped until the front end sets a new kick descriptor.
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

    /// Stops all queues. The driver has released the device, or the virtual machine pauses: front
    /// ends send the same message for both. So the guest's settings stay: a write cache that it has
    /// disabled must be disabled when it continues.
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
        // Only this message has an empty reply for success, independent of the accepted features.
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
        // A reply without bytes after the head reports an error.
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

    /// Changes the state of a queue. A running queue is stopped and, if possible, started with the
    /// new state.
    fn restart(&mut self, backend: &mut B, index: usize, change: impl FnOnce(&mut Ring)) -> Result<Answer, Trouble> {
        self.stop(backend, index)?;
        change(self.ring(index)?);
        self.start(backend, index)?;
        Ok(Answer::Done)
    }

    /// Makes a change while no queue runs.
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

    /// Starts a queue if its state is complete.
    fn start(&mut self, backend: &mut B, index: usize) -> Result<(), Trouble> {
        // Without the protocol features no message enables a queue.
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

    /// Converts an address of the front end into the guest's.
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

/// Returns the only descriptor of a message, if `comes` announces one.
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
