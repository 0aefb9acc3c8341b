//! Drives an NBD session without sockets, with receives and sends of any size.

use millpond_block::{BufPool, Disk, Since};

use super::MemoryDisk;
use crate::nbd::wire::{Style, option};
use crate::nbd::{Encryption, Limits, Phase, SendBatch, Session};
use crate::{ExportId, ExportInfo, Exports};

/// A session with its disk and its output.
pub struct Loopback {
    /// The session under test.
    pub session: Session,
    /// The disk that the session serves.
    pub disk: MemoryDisk,
    /// Exports that clients can choose.
    pub exports: Vec<ExportInfo>,
    /// Older states of export 1.
    pub states: Vec<(String, Since)>,
    /// Bytes sent that the test has not taken.
    pub output: Vec<u8>,
    /// Maximum bytes per receive.
    pub chunk: usize,
    /// Maximum bytes per send.
    pub send_chunk: usize,
    /// True if completions are delivered only when the session cannot continue without them.
    pub hold: bool,
    /// True if the peer does not read: no sends are started.
    pub deaf: bool,
    /// Buffers.
    pub pool: BufPool,
}

struct Offers<'a> {
    exports: &'a [ExportInfo],
    states: &'a [(String, Since)],
}

impl Exports for Offers<'_> {
    fn for_each(&self, visit: &mut dyn FnMut(&ExportInfo)) {
        self.exports.iter().for_each(visit);
    }

    fn for_each_state(&self, export: ExportId, visit: &mut dyn FnMut(&str, Since)) {
        self.states.iter().filter(|_| export == ExportId(1)).for_each(|(name, since)| visit(name, *since));
    }

    fn find_state(&self, export: ExportId, name: &str) -> Option<Since> {
        self.states.iter().find(|(known, _)| known == name && export == ExportId(1)).map(|(_, since)| *since)
    }
}

impl Loopback {
    /// Makes a new session with `disk` as export 1, the only one.
    pub fn new(disk: MemoryDisk) -> Loopback {
        Loopback::with_limits(disk, Limits::default())
    }

    /// Makes the same session with these limits.
    pub fn with_limits(disk: MemoryDisk, limits: Limits) -> Loopback {
        let export = ExportInfo {
            id: ExportId(1),
            name: "disk".to_owned(),
            description: "a disk in memory".to_owned(),
            geometry: disk.geometry(),
            features: disk.features(),
            multi_conn: false,
            default: false,
        };
        Loopback {
            session: Session::new(9, limits),
            disk,
            exports: vec![export],
            states: Vec::new(),
            output: Vec::new(),
            chunk: usize::MAX,
            send_chunk: usize::MAX,
            hold: false,
            deaf: false,
            pool: BufPool::default(),
        }
    }

    /// Makes a session that offers or requires encryption. There is no cipher: after STARTTLS the
    /// bytes fed count as decrypted.
    pub fn with_encryption(disk: MemoryDisk, limits: Limits, encryption: Encryption) -> Loopback {
        let mut loopback = Loopback::with_limits(disk, limits);
        loopback.session = Session::new(9, limits).with_encryption(encryption);
        loopback
    }

    /// Makes a session in its transmission phase; the output of the handshake is discarded.
    pub fn connected(disk: MemoryDisk) -> Loopback {
        let mut loopback = Loopback::new(disk);
        loopback.feed(&super::hello_and_go());
        assert_eq!(loopback.session.phase(), Phase::Transmission);
        loopback.output.clear();
        loopback
    }

    /// Makes a session in its transmission phase with replies of `style`. Except with the simple
    /// style it has two metadata contexts: 1 is base:allocation, 2 is a dirty bitmap of the changes
    /// from now on.
    pub fn with_style(mut disk: MemoryDisk, limits: Limits, style: Style) -> Loopback {
        let since = disk.save();
        let mut loopback = Loopback::with_limits(disk, limits);
        loopback.states.push(("then".to_owned(), since));
        let contexts = super::meta_context(option::SET_META_CONTEXT, "", &["base:allocation", "qemu:dirty-bitmap:then"]);
        loopback.feed(&super::hello());
        loopback.feed(&match style {
            Style::Simple => Vec::new(),
            Style::Structured => [super::option(option::STRUCTURED_REPLY, &[]), contexts].concat(),
            Style::Extended => [super::option(option::EXTENDED_HEADERS, &[]), contexts].concat(),
        });
        loopback.feed(&super::go(""));
        assert_eq!(loopback.session.phase(), Phase::Transmission);
        loopback.output.clear();
        loopback
    }

    /// Feeds `bytes` and runs until there is no progress. Returns the number of bytes taken: fewer
    /// than all if the session closed, or waits for its peer to read.
    pub fn feed(&mut self, bytes: &[u8]) -> usize {
        let mut fed = 0;
        self.settle();
        while fed < bytes.len() {
            let Some(mut recv) = self.session.recv(&mut self.pool) else {
                if self.deliver_one() {
                    self.settle();
                    continue;
                }
                return fed;
            };
            let space = recv.space();
            assert!(!space.is_empty(), "a receive without space");
            let n = space.len().min(self.chunk).min(bytes.len() - fed);
            space[..n].copy_from_slice(&bytes[fed..fed + n]);
            self.session.received(recv, n);
            fed += n;
            self.settle();
        }
        fed
    }

    /// Ends the peer's stream, and runs until the session is closed, if it can close.
    pub fn end(&mut self) {
        self.settle();
        // While the session has no room, it requests no input and does not see the end.
        while self.session.close_reason().is_none() {
            if let Some(recv) = self.session.recv(&mut self.pool) {
                self.session.received(recv, 0);
            } else if self.deliver_one() {
                self.settle();
            } else {
                return;
            }
        }
        self.release();
    }

    /// Delivers all completions held back.
    pub fn release(&mut self) {
        while self.deliver_one() {
            self.settle();
        }
        self.settle();
    }

    /// Takes the output since the last call.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    fn deliver_one(&mut self) -> bool {
        if let Some(answer) = self.disk.pop_answer() {
            assert!(self.session.answer(answer), "an answer nobody waits for");
            return true;
        }
        let Some(completion) = self.disk.pop_completion() else { return false };
        assert!(self.session.complete(completion), "a completion nobody waits for");
        true
    }

    /// Runs until there is no progress.
    fn settle(&mut self) {
        loop {
            self.session.handshake(&Offers { exports: &self.exports, states: &self.states });
            self.session.requests(&mut self.disk);
            if self.session.is_starting_tls() {
                // There is no cipher, so encryption begins at once.
                self.session.secured();
            }
            let mut progress = !self.hold && self.deliver_one();
            if !self.deaf
                && let Some(batch) = self.session.send()
            {
                self.say(batch);
                progress = true;
            }
            if !progress {
                return;
            }
        }
    }

    fn say(&mut self, batch: SendBatch) {
        assert!(!batch.is_empty());
        assert_eq!(batch.slices().map(<[u8]>::len).sum::<usize>(), batch.len());
        assert_eq!(batch.slices().count(), batch.slice_count());
        let n = batch.len().min(self.send_chunk);
        let before = self.output.len();
        for slice in batch.slices() {
            assert!(!slice.is_empty());
            let room = before + n - self.output.len();
            self.output.extend(slice.iter().take(room));
        }
        self.session.sent(batch, n, &mut self.pool);
    }
}
