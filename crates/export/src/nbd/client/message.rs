//! Messages of a client.

use crate::nbd::wire::{self, RequestHeader, Style, command, option};

/// Encodes the client's flags: fixed newstyle, no zeroes.
pub fn hello() -> Vec<u8> {
    3u32.to_be_bytes().to_vec()
}

/// Encodes an option with its data.
pub fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = wire::OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend(number.to_be_bytes());
    bytes.extend(length(data));
    bytes.extend(data);
    bytes
}

/// Encodes INFO or GO for an export, with the information requests `infos`.
pub fn name_option(number: u32, name: &[u8], infos: &[u16]) -> Vec<u8> {
    let mut data = length(name).to_vec();
    data.extend(name);
    data.extend(u16::try_from(infos.len()).unwrap_or(u16::MAX).to_be_bytes());
    data.extend(infos.iter().flat_map(|kind| kind.to_be_bytes()));
    option(number, &data)
}

/// Encodes LIST_META_CONTEXT or SET_META_CONTEXT.
pub fn meta_context(number: u32, name: &str, queries: &[&str]) -> Vec<u8> {
    let text = |text: &str| [&length(text.as_bytes()), text.as_bytes()].concat();
    let mut data = text(name);
    data.extend(u32::try_from(queries.len()).unwrap_or(u32::MAX).to_be_bytes());
    data.extend(queries.iter().flat_map(|query| text(query)));
    option(number, &data)
}

/// Encodes GO without information requests.
pub fn go(name: &str) -> Vec<u8> {
    name_option(option::GO, name.as_bytes(), &[])
}

/// Encodes all messages from the flags to GO for the default export.
pub fn hello_and_go() -> Vec<u8> {
    [hello(), go("")].concat()
}

/// Encodes the same with structured replies.
pub fn hello_structured_and_go() -> Vec<u8> {
    [hello(), option(option::STRUCTURED_REPLY, &[]), go("")].concat()
}

/// Encodes a request without payload.
pub fn request(command: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let length = u64::from(length);
    RequestHeader { magic: wire::REQUEST_MAGIC, flags, command, cookie, offset, length }.encode(Style::Simple).to_vec()
}

/// Encodes an extended request without payload.
pub fn extended_request(command: u16, flags: u16, cookie: u64, offset: u64, length: u64) -> Vec<u8> {
    RequestHeader { magic: wire::EXTENDED_REQUEST_MAGIC, flags, command, cookie, offset, length }.encode(Style::Extended).to_vec()
}

/// Encodes a write with its payload.
pub fn write(flags: u16, cookie: u64, offset: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = request(command::WRITE, flags, cookie, offset, u32::from_be_bytes(length(payload)));
    bytes.extend(payload);
    bytes
}

/// Encodes the length of bytes. Servers refuse bytes that are too long for it.
fn length(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes()
}
