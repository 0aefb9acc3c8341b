//! The connection of a load: NBD, or the queue of a vhost-user disk.

use super::client::{Client, Done};
use super::endpoint::Endpoint;
use super::op::Op;
use super::spec::{Durability, LoadSpec};
use super::vhost::Disk;
use anyhow::{Context, Result, ensure};

/// A connection to a disk with a fixed number of request slots. [`Client`] documents the methods.
pub(super) enum Link {
    Nbd(Box<Client>),
    Vhost(Box<Disk>),
}

impl Link {
    /// Connects for a load.
    pub fn connect(endpoint: &Endpoint, spec: &LoadSpec) -> Result<Link> {
        let fua = spec.durability == Durability::Fua;
        let connecting = || format!("connecting to {endpoint}");
        let Some((socket, poll)) = endpoint.vhost() else {
            return Ok(Link::Nbd(Box::new(
                Client::connect_in(spec.dialect, endpoint, spec.depth, spec.block, fua).with_context(connecting)?,
            )));
        };
        ensure!(spec.jobs <= 1, "one job: a front end has one queue here, and an export one front end");
        ensure!(!fua, "virtio-blk has no FUA");
        Ok(Link::Vhost(Box::new(Disk::connect(socket, spec.depth, spec.block, poll).with_context(connecting)?)))
    }

    /// Size of the disk in bytes.
    pub fn size(&self) -> u64 {
        match self {
            Link::Nbd(client) => client.size(),
            Link::Vhost(disk) => disk.size(),
        }
    }

    pub fn data(&mut self, slot: usize) -> &mut [u8] {
        match self {
            Link::Nbd(client) => client.data(slot),
            Link::Vhost(disk) => disk.data(slot),
        }
    }

    pub fn submit(&mut self, slot: usize, op: Op, offset: u64, length: usize) -> Result<()> {
        match self {
            Link::Nbd(client) => client.submit(slot, op, offset, length),
            Link::Vhost(disk) => disk.submit(slot, op, offset, length)?,
        }
        Ok(())
    }

    pub fn kick(&mut self) -> Result<()> {
        match self {
            Link::Nbd(client) => Ok(client.kick()?),
            Link::Vhost(disk) => disk.kick(),
        }
    }

    pub fn wait(&mut self, done: &mut Vec<Done>) -> Result<()> {
        match self {
            Link::Nbd(client) => Ok(client.wait(done)?),
            Link::Vhost(disk) => disk.wait(done),
        }
    }
}
