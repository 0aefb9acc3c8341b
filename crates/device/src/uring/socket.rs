//! Sockets: listeners, readiness, immediate receive and send, closing.
//!
//! A place keeps its generation when it is free, so that a stale id names nothing; `slab` has no
//! generations.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::opcode;
use io_uring::types::{CancelBuilder, Fd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};

use super::event::{ConnectionId, Event, ListenerId, Wait};
use super::ring::Ring;
use super::slots::Op;

/// How long a listener pauses when the process has run out of descriptors or memory.
const REST: Duration = Duration::from_millis(50);
/// Maximum slices of one system call: a turn's replies at queue depth 128. The list is on the
/// stack, 4 KiB.
const SLICES: usize = 256;

#[derive(Default)]
pub(super) struct Sockets {
    connections: Vec<Connection>,
    free_connections: Vec<u32>,
    listeners: Vec<Listener>,
    free_listeners: Vec<u32>,
    /// Listeners whose accept has failed, and when to try again.
    resting: VecDeque<(Instant, u32)>,
}

#[derive(Default)]
struct Connection {
    socket: Option<Socket>,
    generation: u32,
    /// The polls in flight.
    input: Option<u32>,
    output: Option<u32>,
    closing: bool,
}

#[derive(Default)]
struct Listener {
    socket: Option<OwnedFd>,
    generation: u32,
    /// The accept in flight.
    accept: Option<u32>,
    closing: bool,
    /// True when another process or thread also listens on the socket.
    shared: bool,
}

/// The socket of a connection, which any thread may use. It is closed when the ring has closed the
/// connection and every copy of this is dropped.
#[derive(Clone, Debug)]
pub struct Socket(Arc<OwnedFd>);

impl Socket {
    /// Receives available data; 0 bytes mean that the peer will send no more.
    ///
    /// # Errors
    /// `WOULDBLOCK` when there is no data, else the socket's error.
    pub fn receive(&self, target: &mut [u8]) -> Result<usize, Errno> {
        loop {
            match rustix::net::recv(&*self.0, &mut *target, RecvFlags::DONTWAIT) {
                Err(Errno::INTR) => {}
                other => return other.map(|(count, _)| count),
            }
        }
    }

    /// Sends the slices one after another, as far as the socket has room, and returns the number of
    /// bytes sent.
    ///
    /// # Errors
    /// The socket's error; some bytes may have been sent before.
    pub fn send<'a>(&self, slices: impl Iterator<Item = &'a [u8]>) -> Result<usize, Errno> {
        let mut slices = slices.peekable();
        let mut sent = 0;
        while slices.peek().is_some() {
            let mut vectors = [IoSlice::new(&[]); SLICES];
            let mut listed = 0;
            let mut bytes = 0;
            for (vector, slice) in vectors.iter_mut().zip(&mut slices) {
                *vector = IoSlice::new(slice);
                listed += 1;
                bytes += slice.len();
            }
            let mut vectors = vectors.get_mut(..listed).unwrap_or_default();
            while bytes > 0 {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                match rustix::net::sendmsg(&*self.0, vectors, &mut SendAncillaryBuffer::default(), flags) {
                    Ok(count) => {
                        sent += count;
                        bytes = bytes.saturating_sub(count);
                        IoSlice::advance_slices(&mut vectors, count);
                    }
                    Err(Errno::INTR) => {}
                    Err(Errno::WOULDBLOCK) => return Ok(sent),
                    Err(errno) => return Err(errno),
                }
            }
        }
        Ok(sent)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Ring {
    /// Accepts connections on a listening socket until [`Ring::close_listener`]. Each connection is
    /// an [`Event::Accepted`].
    pub fn listen(&mut self, socket: OwnedFd) -> ListenerId {
        self.listen_on(socket, false)
    }

    /// As [`Ring::listen`], for a socket that is also open elsewhere and keeps listening when this
    /// listener ends: connections wait in it for the next accept.
    pub fn listen_shared(&mut self, socket: OwnedFd) -> ListenerId {
        self.listen_on(socket, true)
    }

    fn listen_on(&mut self, socket: OwnedFd, shared: bool) -> ListenerId {
        let index = place(&mut self.sockets.listeners, &mut self.sockets.free_listeners);
        let mut generation = 0;
        if let Some(listener) = self.sockets.listeners.get_mut(index as usize) {
            generation = listener.generation;
            *listener = Listener { socket: Some(socket), generation, accept: None, closing: false, shared };
        }
        self.arm_accept(index);
        ListenerId { index, generation }
    }

    /// Stops accepting; [`Event::Unlistened`] follows when that is done. Accepted connections stay
    /// open.
    pub fn close_listener(&mut self, id: ListenerId) {
        let Some(listener) = self.sockets.listeners.get_mut(id.index as usize) else { return };
        if listener.generation != id.generation || listener.closing {
            return;
        }
        listener.closing = true;
        match listener.accept {
            Some(accept) => self.cancel(accept),
            None => self.end_listener(id.index),
        }
    }

    /// Adds a connected stream socket. [`Event::Readable`] follows when there is data to receive,
    /// also for data that is there already.
    pub fn connect(&mut self, socket: OwnedFd) -> ConnectionId {
        let index = place(&mut self.sockets.connections, &mut self.sockets.free_connections);
        let mut generation = 0;
        if let Some(connection) = self.sockets.connections.get_mut(index as usize) {
            generation = connection.generation;
            *connection = Connection { socket: Some(Socket(Arc::new(socket))), generation, ..Connection::default() };
        }
        self.arm_input(index);
        ConnectionId { index, generation }
    }

    /// Receives available data; 0 bytes mean that the peer will send no more.
    ///
    /// # Errors
    /// `WOULDBLOCK` when there is no data: wait for [`Event::Readable`]. `BADF` when the connection
    /// was closed. Else the socket's error.
    pub fn receive(&mut self, id: ConnectionId, target: &mut [u8]) -> Result<usize, Errno> {
        self.sockets.socket(id).ok_or(Errno::BADF)?.receive(target)
    }

    /// Sends the slices one after another, as far as the socket has room, and returns the number of
    /// bytes sent. If that is not all, request [`Event::Writable`] with [`Ring::watch_writable`].
    ///
    /// # Errors
    /// `BADF` when the connection was closed, else the socket's error; some bytes may have been
    /// sent before.
    pub fn send<'a>(&mut self, id: ConnectionId, slices: impl Iterator<Item = &'a [u8]>) -> Result<usize, Errno> {
        self.sockets.socket(id).ok_or(Errno::BADF)?.send(slices)
    }

    /// Returns the socket of an open connection, for another thread.
    pub fn socket(&self, id: ConnectionId) -> Option<Socket> {
        self.sockets.socket(id).cloned()
    }

    /// Requests one [`Event::Writable`] when there is room to send.
    pub fn watch_writable(&mut self, id: ConnectionId) {
        let Some(socket) = self.sockets.socket(id) else { return };
        let fd = Fd(socket.as_fd().as_raw_fd());
        let Some(connection) = self.sockets.connections.get_mut(id.index as usize) else { return };
        if connection.output.is_none() {
            let slot = self.slots.insert(Op::PollOut { connection: id.index });
            connection.output = Some(slot);
            self.push(slot, opcode::PollAdd::new(fd, u32::from(libc::POLLOUT.cast_unsigned())).build());
        }
    }

    /// Closes a connection: the peer sees the end at once; the only further event is
    /// [`Event::Closed`].
    pub fn close(&mut self, id: ConnectionId) {
        let Some(socket) = self.sockets.socket(id) else { return };
        // This fails when the peer has closed the connection, which has the same effect, and for
        // message devices, where it does not matter.
        let _ = rustix::net::shutdown(socket, Shutdown::Both);
        let Some(connection) = self.sockets.connections.get_mut(id.index as usize) else { return };
        connection.closing = true;
        let polls = [connection.input, connection.output];
        polls.into_iter().flatten().for_each(|poll| self.cancel(poll));
        self.end_connection(id.index);
    }

    /// Removes a closing connection when its polls have ended.
    fn end_connection(&mut self, index: u32) {
        let Some(connection) = self.sockets.connections.get_mut(index as usize) else { return };
        if !connection.closing || connection.input.is_some() || connection.output.is_some() {
            return;
        }
        let id = ConnectionId { index, generation: connection.generation };
        *connection = Connection { generation: connection.generation.wrapping_add(1), ..Connection::default() };
        self.sockets.free_connections.push(index);
        self.events.push_back(Event::Closed(id));
    }

    pub(super) fn readable(&mut self, index: u32, result: i32, goes_on: bool) {
        let Some(connection) = self.sockets.connections.get_mut(index as usize) else { return };
        if !goes_on {
            connection.input = None;
        }
        if connection.closing {
            return self.end_connection(index);
        }
        let id = ConnectionId { index, generation: connection.generation };
        let ends = i32::from(libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR);
        let ended = result < 0 || result & ends != 0;
        self.events.push_back(Event::Readable { connection: id, ended });
        if !goes_on {
            self.arm_input(index);
        }
    }

    pub(super) fn writable(&mut self, index: u32) {
        let Some(connection) = self.sockets.connections.get_mut(index as usize) else { return };
        connection.output = None;
        if connection.closing {
            return self.end_connection(index);
        }
        let id = ConnectionId { index, generation: connection.generation };
        self.events.push_back(Event::Writable(id));
    }

    fn arm_input(&mut self, index: u32) {
        let Some(connection) = self.sockets.connections.get_mut(index as usize) else { return };
        let Some(socket) = &connection.socket else { return };
        let fd = Fd(socket.as_fd().as_raw_fd());
        let slot = self.slots.insert(Op::PollIn { connection: index });
        connection.input = Some(slot);
        let wanted = u32::from((libc::POLLIN | libc::POLLRDHUP).cast_unsigned());
        self.push(slot, opcode::PollAdd::new(fd, wanted).multi(true).build());
    }

    pub(super) fn accepted(&mut self, index: u32, result: i32, goes_on: bool) {
        let socket = take_descriptor(result);
        let Some(listener) = self.sockets.listeners.get_mut(index as usize) else { return };
        let id = ListenerId { index, generation: listener.generation };
        if !goes_on {
            listener.accept = None;
        }
        let closing = listener.closing;
        if let Some(socket) = socket.filter(|_| !closing) {
            self.events.push_back(Event::Accepted { listener: id, socket });
        }
        if goes_on {
            return;
        }
        if closing {
            return self.end_listener(index);
        }
        let short = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
        if result < 0 && short.contains(&Errno::from_raw_os_error(-result)) {
            self.sockets.resting.push_back((Instant::now() + REST, index));
        } else {
            self.arm_accept(index);
        }
    }

    /// Starts the accepts of listeners whose pause is over.
    pub(super) fn rearm_listeners(&mut self) {
        while let Some((when, index)) = self.sockets.resting.front().copied() {
            if when > Instant::now() {
                return;
            }
            self.sockets.resting.pop_front();
            self.arm_accept(index);
        }
    }

    fn arm_accept(&mut self, index: u32) {
        let Some(listener) = self.sockets.listeners.get_mut(index as usize) else { return };
        let Some(socket) = &listener.socket else { return };
        let fd = Fd(socket.as_raw_fd());
        let slot = self.slots.insert(Op::Accept { listener: index });
        listener.accept = Some(slot);
        self.push(slot, opcode::AcceptMulti::new(fd).flags(libc::SOCK_CLOEXEC).build());
    }

    fn end_listener(&mut self, index: u32) {
        let Some(listener) = self.sockets.listeners.get_mut(index as usize) else { return };
        let id = ListenerId { index, generation: listener.generation };
        if let Some(socket) = listener.socket.as_ref().filter(|_| !listener.shared) {
            // The kernel may keep the socket a moment longer than its accept; it must stop
            // listening now.
            let _ = rustix::net::shutdown(socket, Shutdown::Both);
        }
        *listener = Listener { generation: listener.generation.wrapping_add(1), ..Listener::default() };
        self.sockets.resting.retain(|(_, resting)| *resting != index);
        self.sockets.free_listeners.push(index);
        self.events.push_back(Event::Unlistened(id));
    }

    pub(super) fn cancel(&mut self, target: u32) {
        let index = self.slots.insert(Op::Cancel);
        let entry = opcode::AsyncCancel2::new(CancelBuilder::user_data(u64::from(target))).build();
        self.push(index, entry);
    }
}

impl Sockets {
    /// Returns the socket of an open connection.
    pub(super) fn socket(&self, id: ConnectionId) -> Option<&Socket> {
        let connection = self.connections.get(id.index as usize)?;
        let open = connection.generation == id.generation && !connection.closing;
        connection.socket.as_ref().filter(|_| open)
    }

    /// Shuts down every connection and stops every listener that is not shared.
    pub fn shut_all(&self) {
        let connections = self.connections.iter().filter_map(|connection| connection.socket.as_ref());
        let listeners = self.listeners.iter().filter(|listener| !listener.shared).filter_map(|listener| listener.socket.as_ref());
        for socket in connections.map(Socket::as_fd).chain(listeners.map(OwnedFd::as_fd)) {
            let _ = rustix::net::shutdown(socket, Shutdown::Both);
        }
    }

    /// Shortens a wait to the end of the first pause of a listener.
    pub fn bound_wait(&self, wait: Wait) -> Wait {
        let Some((when, _)) = self.resting.front() else { return wait };
        let left = when.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        match wait {
            Wait::No => Wait::No,
            Wait::AtMost(time) => Wait::AtMost(time.min(left)),
            Wait::Forever => Wait::AtMost(left),
        }
    }
}

/// Takes ownership of the descriptor that an accept returned.
pub(super) fn take_descriptor(result: i32) -> Option<OwnedFd> {
    // SAFETY: a non-negative result of an accept is a new descriptor that no other code has; each
    // completion is handled once.
    (result >= 0).then(|| unsafe { OwnedFd::from_raw_fd(result) })
}

/// Returns a free place in a table; the table grows if necessary.
fn place<T: Default>(table: &mut Vec<T>, free: &mut Vec<u32>) -> u32 {
    free.pop().unwrap_or_else(|| {
        let index = u32::try_from(table.len()).unwrap_or_else(|_| std::process::abort());
        table.push(T::default());
        index
    })
}
