//! The client's side of the wire, for tests: builds messages, takes replies apart.

use std::collections::HashMap;

use crate::nbd::wire::{self, RequestHeader, SIMPLE_REPLY, command, option};

/// The client's flags: fixed newstyle, no zeroes.
pub fn hello() -> Vec<u8> {
    3u32.to_be_bytes().to_vec()
}

/// An option with its data.
pub fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = wire::OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend(number.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

/// INFO or GO for an export, asking for `infos`.
pub fn name_option(number: u32, name: &[u8], infos: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name);
    data.extend((infos.len() as u16).to_be_bytes());
    data.extend(infos.iter().flat_map(|kind| kind.to_be_bytes()));
    option(number, &data)
}

/// GO without information requests.
pub fn go(name: &str) -> Vec<u8> {
    name_option(option::GO, name.as_bytes(), &[])
}

/// Everything a client says to get to the default export.
pub fn hello_and_go() -> Vec<u8> {
    [hello(), go("")].concat()
}

/// A request without payload.
pub fn request(command: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    RequestHeader { magic: wire::REQUEST_MAGIC, flags, command, cookie, offset, length }.encode().to_vec()
}

/// A write with its payload.
pub fn write(flags: u16, cookie: u64, offset: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = request(command::WRITE, flags, cookie, offset, payload.len() as u32);
    bytes.extend(payload);
    bytes
}

/// One reply of the transmission phase.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reply {
    /// Of the request.
    pub cookie: u64,
    /// Zero for success.
    pub error: u32,
    /// What was read.
    pub data: Vec<u8>,
}

/// Takes a stream of simple replies apart; `reads` has the length of each read by cookie.
///
/// # Errors
/// What is wrong with the stream, and where.
pub fn parse_replies(mut bytes: &[u8], reads: &HashMap<u64, u32>) -> Result<Vec<Reply>, String> {
    let whole = bytes.len();
    let mut replies = Vec::new();
    while !bytes.is_empty() {
        let at = whole - bytes.len();
        let (head, rest) = bytes.split_first_chunk::<SIMPLE_REPLY>().ok_or(format!("stub of a reply at {at}"))?;
        let word = u128::from_be_bytes(*head);
        if (word >> 96) as u32 != wire::SIMPLE_REPLY_MAGIC {
            return Err(format!("no reply magic at {at}"));
        }
        let (error, cookie) = ((word >> 64) as u32, word as u64);
        let length = if error == 0 { reads.get(&cookie).copied().unwrap_or(0) } else { 0 };
        let (data, rest) = rest.split_at_checked(length as usize).ok_or(format!("read data cut short at {at}"))?;
        replies.push(Reply { cookie, error, data: data.to_vec() });
        bytes = rest;
    }
    Ok(replies)
}
