//! Payloads of a front end's messages. Integers are in the host's byte order.

use super::RingPlaces;
use crate::vhost_user::wire::Region;

/// Encodes 32-bit fields.
pub fn words(fields: &[u32]) -> Vec<u8> {
    fields.iter().flat_map(|field| field.to_ne_bytes()).collect()
}

/// Encodes 64-bit fields.
pub fn longs(fields: &[u64]) -> Vec<u8> {
    fields.iter().flat_map(|field| field.to_ne_bytes()).collect()
}

/// Encodes a table of memory regions, for `SET_MEM_TABLE`.
pub fn memory_table(regions: &[Region]) -> Vec<u8> {
    let mut bytes = words(&[regions.len() as u32, 0]); // eight at most
    regions.iter().for_each(|region| bytes.extend(longs(&[region.guest, region.size, region.user, region.offset])));
    bytes
}

/// Encodes one memory region, for `ADD_MEM_REG` and `REM_MEM_REG`.
pub fn memory_region(region: &Region) -> Vec<u8> {
    longs(&[0, region.guest, region.size, region.user, region.offset])
}

/// Encodes the places of a queue's parts, which are addresses of the front end here, for
/// `SET_VRING_ADDR`. `log` is the guest address under which writes to the used ring are logged.
pub fn ring_address(queue: u32, places: &RingPlaces, log: Option<u64>) -> Vec<u8> {
    let mut bytes = words(&[queue, u32::from(log.is_some())]);
    bytes.extend(longs(&[places.descriptors, places.used, places.available, log.unwrap_or_default()]));
    bytes
}

/// Encodes the request for a record of requests in flight, for `GET_INFLIGHT_FD`.
pub fn record_of(queues: u16, size: u16) -> Vec<u8> {
    let mut bytes = longs(&[0, 0]);
    [queues, size].iter().for_each(|field| bytes.extend_from_slice(&field.to_ne_bytes()));
    bytes
}

/// Encodes the request for `length` bytes of the configuration space from `offset`, for
/// `GET_CONFIG`.
pub fn configuration(offset: u32, length: u32) -> Vec<u8> {
    let mut bytes = words(&[offset, length, 0]);
    bytes.resize(bytes.len() + length as usize, 0);
    bytes
}
