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
use super::error::{Refusal, SessionError, Trouble};
use super::inflight::{InflightMemory, part_size};
use super::queue::{MAX_QUEUE_SIZE, QueueSetup};
use super::wire::{self, Fields, Header, InflightArea, Malformed, Region, VringAddress, code, protocol};

/// Maximum number of memory regions that a front end may add one by one: as many as QEMU has on
/// x86.
pub const MAX_REGIONS: usize = 509;
/// Maximum size of a record of requests in flight in bytes: far more than 256 queues of 1024 need.
const MAX_INFLIGHT: u64 = 64 << 20;
/// Maximum size of a log of dirty pages in bytes: enough for a guest of 32 TiB.
const MAX_LOG: u64 = 1 << 30;

/// Executes the front end's requests: maps memory and runs queues.
pub trait Backend {
    /// Mapped region of the guest's memory.
    type Region: Clone;
    /// Reason why a request is not carried out.
    type Error;

    /// Returns the current size, sectors and features.
    ///
    /// # Errors
    /// When the disk does not exist any more.
    fn offer(&mut self) -> Result<Offer, Self::Error>;
    /// Returns the same for a read of the configuration space. `fresh` is true if no queue has run
    /// on this connection, so that the guest cannot have seen other values.
    ///
    /// # Errors
    /// When the disk does not exist any more.
    fn configuration(&mut self, fresh: bool) -> Result<Offer, Self::Error>;
    /// Maps a region.
    ///
    /// # Errors
    /// When it cannot be mapped, or must not be.
    fn map(&mut self, region: &Region, file: OwnedFd) -> Result<Self::Region, Self::Error>;
    /// Replaces the guest's memory. No queue runs during the call.
    ///
    /// # Errors
    /// When the regions overlap.
    fn set_memory(&mut self, regions: Vec<Self::Region>) -> Result<(), Self::Error>;
    /// Creates a record of requests in flight of `size` bytes.
    ///
    /// # Errors
    /// When the host cannot.
    fn make_inflight(&mut self, size: u64) -> Result<OwnedFd, Self::Error>;
    /// Maps a record of requests in flight, or a log of dirty pages.
    ///
    /// # Errors
    /// When the host cannot.
    fn map_shared(&mut self, file: OwnedFd, offset: u64, size: u64) -> Result<InflightMemory, Self::Error>;
    /// Replaces the log of dirty pages. On return, nothing is written to the old one any more.
    ///
    /// # Errors
    /// When the disk does not exist any more.
    fn set_log(&mut self, log: DirtyLog) -> Result<(), Self::Error>;
    /// Sets the features that the guest has accepted.
    ///
    /// # Errors
    /// When the disk does not exist any more.
    fn set_features(&mut self, features: u64) -> Result<(), Self::Error>;
    /// Sets whether the guest wants a write cache.
    ///
    /// # Errors
    /// When the disk does not exist any more.
    fn set_write_cache(&mut self, on: bool) -> Result<(), Self::Error>;
    /// Starts a queue.
    ///
    /// # Errors
    /// When it cannot run as described.
    fn start(&mut self, index: usize, setup: QueueSetup, kick: Arc<OwnedFd>) -> Result<(), Self::Error>;
    /// Stops a queue and waits until its requests in flight are answered. Returns the entry to
    /// continue with.
    ///
    /// # Errors
    /// When the queue did not run.
    fn stop(&mut self, index: usize) -> Result<u16, Self::Error>;
    /// Sets the descriptor through which the guest is notified about answers on a queue, or about
    /// its failure.
    ///
    /// # Errors
    /// When the descriptor is of a wrong kind.
    fn set_signal(&mut self, index: usize, signal: Signal, fd: Option<OwnedFd>) -> Result<(), Self::Error>;
    /// Checks a queue's kick descriptor.
    ///
    /// # Errors
    /// When the descriptor is of a wrong kind.
    fn check_kick(&mut self, fd: &OwnedFd) -> Result<(), Self::Error>;
    /// Sets the socket on which the front end is notified about changes.
    ///
    /// # Errors
    /// When the descriptor is of a wrong kind.
    fn set_channel(&mut self, fd: OwnedFd) -> Result<(), Self::Error>;
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
    pub fn handle(&mut self, backend: &mut B, header: &Header, payload: &[u8], fds: Vec<OwnedFd>) -> Result<Reply, SessionError<B::Error>> {
        let acknowledge = header.need_reply && self.protocol & protocol::REPLY_ACK != 0;
        let status = |failed: bool| Reply { bytes: header.reply(&u64::from(failed).to_ne_bytes()), fd: None };
        match self.dispatch(backend, header, payload, fds) {
            Ok(Answer::Bytes(bytes)) => Ok(Reply { bytes: header.reply(&bytes), fd: None }),
            Ok(Answer::With(bytes, fd)) => Ok(Reply { bytes: header.reply(&bytes), fd: Some(fd) }),
            Ok(Answer::Done) if acknowledge => Ok(status(false)),
            Ok(Answer::Done) => Ok(Reply::default()),
            Err(Trouble::Refused(_) | Trouble::Backend(_)) if acknowledge => Ok(status(true)),
            Err(Trouble::Refused(reason)) => Err(SessionError::Refused { code: header.code, reason }),
            Err(Trouble::Backend(error)) => Err(SessionError::Backend { code: header.code, error }),
            Err(Trouble::Malformed) => Err(Malformed(header.code).into()),
        }
    }

    fn dispatch(&mut self, backend: &mut B, header: &Header, payload: &[u8], fds: Vec<OwnedFd>) -> Result<Answer, Trouble<B::Error>> {
        let mut fields = Fields(payload);
        match header.code {
            code::GET_FEATURES => number(backend.offer().map_err(Trouble::Backend)?.feature_bits()),
            code::SET_FEATURES => self.set_features(backend, fields.u64()?),
            code::SET_OWNER => Ok(Answer::Done),
            code::RESET_OWNER => {
                self.stop_all(backend)?;
                self.rings.iter_mut().for_each(|ring| *ring = Ring::default());
                Ok(Answer::Done)
            }
            code::GET_PROTOCOL_FEATURES => number(protocol::ALL),
            code::SET_PROTOCOL_FEATURES => self.set_protocol_features(fields.u64()?),
            code::GET_QUEUE_NUM => number(self.rings.len() as u64),
            code::SET_MEM_TABLE => self.set_memory_table(backend, payload, fds),
            code::GET_MAX_MEM_SLOTS => number(MAX_REGIONS as u64),
            code::ADD_MEM_REG => self.add_region(backend, payload, fds),
            code::REM_MEM_REG => self.remove_region(backend, payload),
            code::SET_VRING_NUM => {
                let (index, size) = wire::vring_state(payload)?;
                let ring = self.ring(index)?;
                let fits = u16::try_from(size).ok().filter(|size| size.is_power_of_two() && *size <= MAX_QUEUE_SIZE);
                ring.size = fits.ok_or(Refusal::QueueSize(size))?;
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
                let fd = single(fds, comes)?.ok_or(Refusal::Polled)?;
                backend.check_kick(&fd).map_err(Trouble::Backend)?;
                self.restart(backend, index, |ring| ring.kick = Some(Arc::new(fd)))
            }
            code::SET_VRING_CALL => self.set_signal(backend, Signal::Call, payload, fds),
            code::SET_VRING_ERR => self.set_signal(backend, Signal::Error, payload, fds),
            code::SET_VRING_ENABLE => {
                let (index, enabled) = wire::vring_state(payload)?;
                self.restart(backend, index, |ring| ring.enabled = enabled != 0)
            }
            code::GET_VRING_BASE => self.stop_and_get_base(backend, payload),
            code::GET_CONFIG => self.get_config(backend, payload),
            code::SET_CONFIG => self.set_config(backend, payload),
            code::SET_BACKEND_REQ_FD => {
                let fd = single(fds, true)?.ok_or(Trouble::Malformed)?;
                backend.set_channel(fd).map_err(Trouble::Backend)?;
                Ok(Answer::Done)
            }
            code::GET_INFLIGHT_FD => self.make_inflight(backend, payload),
            code::SET_INFLIGHT_FD => self.set_inflight(backend, payload, fds),
            code::SET_LOG_BASE => self.set_log(backend, payload, fds),
            code::SET_LOG_FD => Err(Refusal::LogDescriptor.into()),
            code::SET_STATUS => self.set_status(backend, fields.u64()?),
            code::GET_STATUS => number(self.status),
            _ => Err(Trouble::Malformed),
        }
    }

    fn set_features(&mut self, backend: &mut B, features: u64) -> Result<Answer, Trouble<B::Error>> {
        if features & !backend.offer().map_err(Trouble::Backend)?.feature_bits() != 0 {
            return Err(Refusal::Features(features).into());
        }
        // Running queues were started with the old features.
        self.while_stopped(backend, |session, backend| {
            session.features = features;
            backend.set_features(features).map_err(Trouble::Backend)
        })
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<Answer, Trouble<B::Error>> {
        if features & !protocol::ALL != 0 {
            return Err(Refusal::ProtocolFeatures(features).into());
        }
        self.protocol = features;
        Ok(Answer::Done)
    }

    fn set_status(&mut self, backend: &mut B, status: u64) -> Result<Answer, Trouble<B::Error>> {
        if status == 0 {
            self.reset(backend)?;
        }
        self.status = status;
        Ok(Answer::Done)
    }

    fn set_signal(&mut self, backend: &mut B, signal: Signal, payload: &[u8], fds: Vec<OwnedFd>) -> Result<Answer, Trouble<B::Error>> {
        let (index, comes) = wire::vring_descriptor(payload)?;
        let fd = single(fds, comes)?;
        self.ring(index)?;
        backend.set_signal(index, signal, fd).map_err(Trouble::Backend)?;
        Ok(Answer::Done)
    }

    fn stop_and_get_base(&mut self, backend: &mut B, payload: &[u8]) -> Result<Answer, Trouble<B::Error>> {
        let (index, _) = wire::vring_state(payload)?;
        self.stop(backend, index)?;
        let ring = self.ring(index)?;
        // The queue stays stopped until the front end sets a new kick descriptor.
        ring.kick = None;
        let reply = [index as u32, u32::from(ring.base)];
        Ok(Answer::Bytes(reply.iter().flat_map(|field| field.to_ne_bytes()).collect()))
    }

    fn make_inflight(&mut self, backend: &mut B, payload: &[u8]) -> Result<Answer, Trouble<B::Error>> {
        let asked = InflightArea::read(payload)?;
        let size = part_size(asked.queue_size) as u64 * u64::from(asked.queues);
        if size == 0 || size > MAX_INFLIGHT || usize::from(asked.queues) > self.rings.len() {
            return Err(Refusal::RecordShape { queues: asked.queues, size: asked.queue_size }.into());
        }
        let fd = backend.make_inflight(size).map_err(Trouble::Backend)?;
        Ok(Answer::With(InflightArea { size, offset: 0, ..asked }.write(payload.len()), fd))
    }

    fn set_inflight(&mut self, backend: &mut B, payload: &[u8], fds: Vec<OwnedFd>) -> Result<Answer, Trouble<B::Error>> {
        let area = InflightArea::read(payload)?;
        let fd = single(fds, true)?.ok_or(Trouble::Malformed)?;
        let needed = part_size(area.queue_size) as u64 * u64::from(area.queues);
        if area.size < needed || area.size > MAX_INFLIGHT {
            return Err(Refusal::RecordSize(area.size).into());
        }
        let memory = backend.map_shared(fd, area.offset, area.size).map_err(Trouble::Backend)?;
        self.while_stopped(backend, |session, _| {
            session.inflight = Some((memory, area));
            Ok(())
        })
    }

    /// Stops all queues. The driver has released the device, or the virtual machine pauses: front
    /// ends send the same message for both. So the guest's settings stay: a write cache that it has
    /// disabled must be disabled when it continues.
    fn reset(&mut self, backend: &mut B) -> Result<(), Trouble<B::Error>> {
        self.stop_all(backend)?;
        self.rings.iter_mut().for_each(|ring| (ring.kick, ring.enabled) = (None, false));
        Ok(())
    }

    fn set_log(&mut self, backend: &mut B, payload: &[u8], fds: Vec<OwnedFd>) -> Result<Answer, Trouble<B::Error>> {
        if self.protocol & protocol::LOG_SHMFD == 0 {
            return Err(Refusal::LogNotShared.into());
        }
        let mut fields = Fields(payload);
        let (size, offset) = (fields.u64()?, fields.u64()?);
        let fd = single(fds, true)?.ok_or(Trouble::Malformed)?;
        if size == 0 || size > MAX_LOG {
            return Err(Refusal::LogSize(size).into());
        }
        let memory = backend.map_shared(fd, offset, size).map_err(Trouble::Backend)?;
        backend.set_log(DirtyLog::new(memory)).map_err(Trouble::Backend)?;
        // Only this message has an empty reply for success, independent of the accepted features.
        Ok(Answer::Bytes(Vec::new()))
    }

    fn ring(&mut self, index: usize) -> Result<&mut Ring, Trouble<B::Error>> {
        self.rings.get_mut(index).ok_or(Trouble::Refused(Refusal::NoQueue(index)))
    }

    fn set_memory_table(&mut self, backend: &mut B, payload: &[u8], fds: Vec<OwnedFd>) -> Result<Answer, Trouble<B::Error>> {
        let mut fields = Fields(payload);
        let (count, _padding) = (fields.u32()? as usize, fields.u32()?);
        if count == 0 || count > wire::MAX_DESCRIPTORS || fds.len() != count {
            return Err(Trouble::Malformed);
        }
        let mut regions = Vec::with_capacity(count);
        for fd in fds {
            let region = Region::read(&mut fields)?;
            regions.push(Mapped { region, mapped: backend.map(&region, fd).map_err(Trouble::Backend)? });
        }
        self.while_stopped(backend, |session, backend| {
            session.regions = regions;
            session.tell_memory(backend)
        })
    }

    fn add_region(&mut self, backend: &mut B, payload: &[u8], fds: Vec<OwnedFd>) -> Result<Answer, Trouble<B::Error>> {
        let mut fields = Fields(payload);
        let _padding = fields.u64()?;
        let region = Region::read(&mut fields)?;
        let fd = single(fds, true)?.ok_or(Trouble::Malformed)?;
        if self.regions.len() >= MAX_REGIONS {
            return Err(Refusal::RegionCount.into());
        }
        let mapped = backend.map(&region, fd).map_err(Trouble::Backend)?;
        self.while_stopped(backend, |session, backend| {
            session.regions.push(Mapped { region, mapped });
            let passed = session.tell_memory(backend);
            if passed.is_err() {
                session.regions.pop();
            }
            passed
        })
    }

    fn remove_region(&mut self, backend: &mut B, payload: &[u8]) -> Result<Answer, Trouble<B::Error>> {
        let mut fields = Fields(payload);
        let _padding = fields.u64()?;
        let gone = Region::read(&mut fields)?;
        let same = |region: &Region| (region.guest, region.size, region.user) == (gone.guest, gone.size, gone.user);
        if !self.regions.iter().any(|known| same(&known.region)) {
            return Err(Refusal::NoRegion.into());
        }
        self.while_stopped(backend, |session, backend| {
            session.regions.retain(|known| !same(&known.region));
            session.tell_memory(backend)
        })
    }

    fn tell_memory(&self, backend: &mut B) -> Result<(), Trouble<B::Error>> {
        let mut regions: Vec<&Mapped<B::Region>> = self.regions.iter().collect();
        regions.sort_by_key(|known| known.region.guest);
        backend.set_memory(regions.into_iter().map(|known| known.mapped.clone()).collect()).map_err(Trouble::Backend)
    }

    fn get_config(&mut self, backend: &mut B, payload: &[u8]) -> Result<Answer, Trouble<B::Error>> {
        let mut fields = Fields(payload);
        let (offset, size, _flags) = (fields.u32()? as usize, fields.u32()? as usize, fields.u32()?);
        if fields.0.len() != size {
            return Err(Trouble::Malformed);
        }
        let offer = backend.configuration(!self.has_run).map_err(Trouble::Backend)?;
        let write_cache = self.write_cache.unwrap_or(true) && offer.features.write_cache;
        let mut bytes = payload.get(..payload.len() - size).unwrap_or_default().to_vec();
        // A reply without bytes after the head reports an error.
        bytes.extend(offer.config(offset, size, write_cache).unwrap_or_default());
        Ok(Answer::Bytes(bytes))
    }

    fn set_config(&mut self, backend: &mut B, payload: &[u8]) -> Result<Answer, Trouble<B::Error>> {
        let mut fields = Fields(payload);
        let (offset, size, _flags) = (fields.u32()? as usize, fields.u32()? as usize, fields.u32()?);
        if fields.0.len() != size {
            return Err(Trouble::Malformed);
        }
        let written = config::written_cache(offset, fields.0).filter(|_| self.features & config::CONFIG_WCE != 0);
        let on = written.ok_or(Refusal::Configuration)?;
        backend.set_write_cache(on).map_err(Trouble::Backend)?;
        self.write_cache = Some(on);
        Ok(Answer::Done)
    }

    /// Changes the state of a queue. A running queue is stopped and, if possible, started with the
    /// new state.
    fn restart(&mut self, backend: &mut B, index: usize, change: impl FnOnce(&mut Ring)) -> Result<Answer, Trouble<B::Error>> {
        self.stop(backend, index)?;
        change(self.ring(index)?);
        self.start(backend, index)?;
        Ok(Answer::Done)
    }

    /// Makes a change while no queue runs.
    fn while_stopped(
        &mut self,
        backend: &mut B,
        change: impl FnOnce(&mut Self, &mut B) -> Result<(), Trouble<B::Error>>,
    ) -> Result<Answer, Trouble<B::Error>> {
        self.stop_all(backend)?;
        let changed = change(self, backend);
        for index in 0..self.rings.len() {
            self.start(backend, index)?;
        }
        changed.map(|()| Answer::Done)
    }

    fn stop_all(&mut self, backend: &mut B) -> Result<(), Trouble<B::Error>> {
        (0..self.rings.len()).try_for_each(|index| self.stop(backend, index))
    }

    fn stop(&mut self, backend: &mut B, index: usize) -> Result<(), Trouble<B::Error>> {
        let ring = self.ring(index)?;
        if ring.running {
            ring.running = false;
            ring.base = backend.stop(index).map_err(Trouble::Backend)?;
        }
        Ok(())
    }

    /// Starts a queue if its state is complete.
    fn start(&mut self, backend: &mut B, index: usize) -> Result<(), Trouble<B::Error>> {
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
                    return Err(Refusal::QueueLength { size: ring.size, record: area.queue_size }.into());
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
        backend.start(index, setup, Arc::clone(kick)).map_err(Trouble::Backend)?;
        self.has_run = true;
        self.ring(index)?.running = true;
        Ok(())
    }

    /// Converts an address of the front end into the guest's.
    fn guest_address(&self, user: u64) -> Result<u64, Refusal> {
        let place = |known: &Mapped<B::Region>| {
            let within = user.checked_sub(known.region.user).filter(|within| *within < known.region.size)?;
            known.region.guest.checked_add(within)
        };
        self.regions.iter().find_map(place).ok_or(Refusal::QueueAddress(user))
    }
}

impl<B: Backend> fmt::Debug for Session<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let running = self.rings.iter().filter(|ring| ring.running).count();
        write!(f, "Session({} regions, {running} queues running, features {:#x})", self.regions.len(), self.features)
    }
}

fn number<E>(value: u64) -> Result<Answer, Trouble<E>> {
    Ok(Answer::Bytes(value.to_ne_bytes().to_vec()))
}

/// Returns the only descriptor of a message, if `comes` announces one.
fn single(fds: Vec<OwnedFd>, comes: bool) -> Result<Option<OwnedFd>, Malformed> {
    let mut fds = fds.into_iter();
    match (fds.next(), fds.next(), comes) {
        (Some(fd), None, true) => Ok(Some(fd)),
        (None, None, false) => Ok(None),
        _ => Err(Malformed(0)),
    }
}

#[cfg(test)]
mod tests;
