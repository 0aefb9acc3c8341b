//! The clients and exports of a shard.

use std::collections::{BTreeMap, HashMap};

use millpond_api::GuestIo;
use millpond_device::{ConnectionId, ListenerId};
use slab::Slab;

use super::connection::Connection;
use super::listen::SocketFile;
use super::message::Answer;
use super::report::{ClientInfo, ExportId, ExportInfo};
use super::spec::NbdExport;

/// An export over NBD.
pub(super) struct Export {
    pub spec: NbdExport,
    pub file: Option<SocketFile>,
    pub listeners: Vec<Listener>,
    /// Counters of clients that are gone.
    pub past: GuestIo,
    /// Set while the export ends; the answers are sent when it has ended.
    pub closing: Option<Vec<Answer<()>>>,
}

#[derive(Clone, Copy)]
pub(super) struct Listener {
    pub id: ListenerId,
    pub tcp: Option<std::net::SocketAddr>,
}

/// Table of clients. The index of a client, plus one, is the id of its session: the upper half of
/// every tag (0 is the shard itself).
#[derive(Default)]
pub(super) struct Clients {
    table: Slab<Connection>,
    by_id: HashMap<ConnectionId, u32>,
}

impl Clients {
    /// Adds the client that `make` returns for the session's id.
    pub fn add(&mut self, id: ConnectionId, make: impl FnOnce(u32) -> Connection) -> u32 {
        let place = self.table.vacant_entry();
        let index = place.key() as u32; // clients are far fewer
        place.insert(make(index + 1));
        self.by_id.insert(id, index);
        index
    }

    pub fn get(&self, index: u32) -> Option<&Connection> {
        self.table.get(index as usize)
    }

    pub fn get_mut(&mut self, index: u32) -> Option<&mut Connection> {
        self.table.get_mut(index as usize)
    }

    /// Returns the id of a client's session.
    pub fn session_of(&self, index: u32) -> u32 {
        index + 1
    }

    /// Returns the client whose session has this id.
    pub fn by_session(&mut self, session: u32) -> Option<(u32, &mut Connection)> {
        let index = session.checked_sub(1)?;
        Some((index, self.get_mut(index)?))
    }

    pub fn by_connection(&mut self, id: ConnectionId) -> Option<(u32, &mut Connection)> {
        let index = *self.by_id.get(&id)?;
        Some((index, self.get_mut(index)?))
    }

    /// Removes a client; its session must have nothing in flight.
    pub fn remove(&mut self, index: u32) -> Option<Connection> {
        let connection = self.table.try_remove(index as usize)?;
        self.by_id.remove(&connection.id);
        Some(connection)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.table.iter().map(|(_, client)| client)
    }

    pub fn indexes(&self) -> Vec<u32> {
        self.table.iter().map(|(index, _)| index as u32).collect()
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }
}

impl Export {
    pub fn info(&self, clients: &Clients) -> ExportInfo {
        self.listed(clients.iter().filter(|client| client.export == self.spec.id).map(Connection::info).collect())
    }

    /// Returns the export as listed, with these clients.
    pub fn listed(&self, mut here: Vec<ClientInfo>) -> ExportInfo {
        here.sort_by_key(|client| client.id);
        let mut counters = self.past;
        here.iter().for_each(|client| counters.add(&client.counters));
        ExportInfo {
            id: self.spec.id,
            name: self.spec.name.clone(),
            target: Some(self.spec.target),
            unix: self.spec.unix.clone(),
            tcp: self.listeners.iter().find_map(|listener| listener.tcp),
            read_only: self.spec.read_only,
            clients: here,
            counters,
            images: Vec::new(),
        }
    }

    pub fn has_clients(&self, clients: &Clients) -> bool {
        clients.iter().any(|client| client.export == self.spec.id)
    }
}

/// Exports by id.
pub(super) type ExportTable = BTreeMap<ExportId, Export>;
