//! Messages of the vhost-user socket: constants, layout, limits.
//!
//! Integers are in the host's byte order, because both sides are on one machine. Source: QEMU's
//! `docs/interop/vhost-user.rst`.

/// Size of a header in bytes: code, flags, length of the payload.
pub const HEADER: usize = 12;
/// Maximum length of a payload in bytes. The longest valid ones, a configuration space of 256 bytes
/// or a table of 8 regions, have 268.
pub const MAX_PAYLOAD: usize = 4096;
/// Maximum number of descriptors in one message: a table of 8 regions.
pub const MAX_DESCRIPTORS: usize = 8;

/// Version 1, in the two lowest bits of the flags.
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;
/// Bit in the payload of `SET_VRING_KICK` and similar messages: no descriptor comes with it.
const NO_DESCRIPTOR: u64 = 1 << 8;
/// Code of the server's message that the configuration has changed, on the socket of
/// `SET_BACKEND_REQ_FD`.
const CONFIG_CHANGE: u32 = 2;
/// Flag of a ring's addresses: writes to the used ring are logged.
const LOG_USED: u32 = 1;

/// A message that is invalid, or was not agreed on: its code, or 0 where the code is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("message {0} is not as it should be")]
pub struct Malformed(pub u32);

/// Codes of the requests.
#[allow(missing_docs, reason = "the names are the protocol's")]
pub mod code {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_LOG_BASE: u32 = 6;
    pub const SET_LOG_FD: u32 = 7;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const GET_CONFIG: u32 = 24;
    pub const SET_CONFIG: u32 = 25;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
    pub const SET_STATUS: u32 = 39;
    pub const GET_STATUS: u32 = 40;
}

/// Bits of the protocol features.
#[allow(missing_docs, reason = "the names are the protocol's")]
pub mod protocol {
    pub const MQ: u64 = 1 << 0;
    pub const LOG_SHMFD: u64 = 1 << 1;
    pub const REPLY_ACK: u64 = 1 << 3;
    pub const BACKEND_REQ: u64 = 1 << 5;
    pub const CONFIG: u64 = 1 << 9;
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
    pub const STATUS: u64 = 1 << 16;
    /// All supported bits.
    pub const ALL: u64 = MQ | LOG_SHMFD | REPLY_ACK | BACKEND_REQ | CONFIG | INFLIGHT_SHMFD | CONFIGURE_MEM_SLOTS | STATUS;
}

/// Header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Code of the request; see [`code`].
    pub code: u32,
    /// True if the front end waits for a reply with the result, provided that `REPLY_ACK` was
    /// agreed on.
    pub need_reply: bool,
    /// Length of the payload in bytes.
    pub length: usize,
}

impl Header {
    /// Decodes a header.
    ///
    /// # Errors
    /// [`Malformed`] for another version, a reply, or a payload beyond
    /// [`MAX_PAYLOAD`].
    pub fn read(bytes: &[u8; HEADER]) -> Result<Header, Malformed> {
        let mut fields = Fields(bytes);
        let (code, flags, length) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let length = usize::try_from(length).ok().filter(|length| *length <= MAX_PAYLOAD);
        match length {
            Some(length) if flags & VERSION_MASK == VERSION && flags & REPLY == 0 => {
                Ok(Header { code, need_reply: flags & NEED_REPLY != 0, length })
            }
            _ => Err(Malformed(code)),
        }
    }

    /// Encodes a reply to this message.
    pub(super) fn reply(&self, payload: &[u8]) -> Vec<u8> {
        message(self.code, VERSION | REPLY, payload)
    }
}

/// Encodes the message that the configuration has changed. It asks for no reply, because the front
/// end first reads the configuration, over the socket that is being served.
pub fn config_change() -> Vec<u8> {
    message(CONFIG_CHANGE, VERSION, &[])
}

/// Encodes a message.
fn message(code: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u32; // replies are no longer than requests
    let mut bytes = Vec::with_capacity(HEADER + payload.len());
    [code, flags, length].into_iter().for_each(|field| bytes.extend_from_slice(&field.to_ne_bytes()));
    bytes.extend_from_slice(payload);
    bytes
}

/// Encodes a request, for front ends.
pub fn request(code: u32, need_reply: bool, payload: &[u8]) -> Vec<u8> {
    message(code, VERSION | if need_reply { NEED_REPLY } else { 0 }, payload)
}

/// Decoder of integers; too few bytes are an error.
pub(super) struct Fields<'a>(pub &'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed(0))?;
        self.0 = rest;
        Ok(*first)
    }

    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.take().map(u16::from_ne_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_ne_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_ne_bytes)
    }
}

/// Region of the guest's memory, as the front end describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Address in the guest.
    pub guest: u64,
    /// Size in bytes.
    pub size: u64,
    /// Address in the front end, by which it names the parts of queues.
    pub user: u64,
    /// Offset of the region in its file.
    pub offset: u64,
}

impl Region {
    pub(super) fn read(fields: &mut Fields<'_>) -> Result<Region, Malformed> {
        Ok(Region { guest: fields.u64()?, size: fields.u64()?, user: fields.u64()?, offset: fields.u64()? })
    }
}

/// Decodes index and value, the payload of most messages about queues.
pub(super) fn vring_state(payload: &[u8]) -> Result<(usize, u32), Malformed> {
    let mut fields = Fields(payload);
    Ok((fields.u32()? as usize, fields.u32()?))
}

/// Decodes the index of a descriptor's queue, and whether the message contains a descriptor.
pub(super) fn vring_descriptor(payload: &[u8]) -> Result<(usize, bool), Malformed> {
    let value = Fields(payload).u64()?;
    Ok(((value & 0xff) as usize, value & NO_DESCRIPTOR == 0))
}

/// Places of the parts of a queue, by addresses of the front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VringAddress {
    pub index: usize,
    pub descriptors: u64,
    pub used: u64,
    pub available: u64,
    /// Guest address under which writes to the used ring are logged; `None` if they are not.
    pub log: Option<u64>,
}

impl VringAddress {
    pub fn read(payload: &[u8]) -> Result<VringAddress, Malformed> {
        let mut fields = Fields(payload);
        let (index, flags) = (fields.u32()? as usize, fields.u32()?);
        let [descriptors, used, available, log] = [fields.u64()?, fields.u64()?, fields.u64()?, fields.u64()?];
        Ok(VringAddress { index, descriptors, used, available, log: (flags & LOG_USED != 0).then_some(log) })
    }
}

/// Area for the record of requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InflightArea {
    pub size: u64,
    pub offset: u64,
    pub queues: u16,
    pub queue_size: u16,
}

impl InflightArea {
    pub fn read(payload: &[u8]) -> Result<InflightArea, Malformed> {
        let mut fields = Fields(payload);
        Ok(InflightArea { size: fields.u64()?, offset: fields.u64()?, queues: fields.u16()?, queue_size: fields.u16()? })
    }

    /// Encodes the area with the length of the request, because some front ends count the padding
    /// at the end.
    pub fn write(&self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(24);
        bytes.extend_from_slice(&self.size.to_ne_bytes());
        bytes.extend_from_slice(&self.offset.to_ne_bytes());
        bytes.extend_from_slice(&self.queues.to_ne_bytes());
        bytes.extend_from_slice(&self.queue_size.to_ne_bytes());
        bytes.resize(length, 0);
        bytes
    }
}
