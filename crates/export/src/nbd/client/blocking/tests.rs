//! The client against the server side of the same crate.

use millpond_block::SectorProfile;

use super::*;
use crate::nbd::wire::extent_flag;
use crate::testing::{Loopback, MemoryDisk};

/// A stream to a session with 1 MiB in memory.
struct Server {
    loopback: Loopback,
    /// Bytes of the session that the client has not read.
    rest: Vec<u8>,
}

impl Server {
    fn new() -> Server {
        Server { loopback: Loopback::new(MemoryDisk::new(1 << 20, SectorProfile::S512e)), rest: Vec::new() }
    }
}

impl Read for Server {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.loopback.feed(&[]); // the greeting comes before any input
        self.rest.extend(self.loopback.take_output());
        let count = into.len().min(self.rest.len());
        into[..count].copy_from_slice(&self.rest[..count]);
        self.rest.drain(..count);
        Ok(count)
    }
}

impl Write for Server {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.loopback.feed(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Violation in an error.
fn violation(error: &io::Error) -> Option<&Violation> {
    error.get_ref()?.downcast_ref()
}

#[test]
fn data_is_read_as_it_was_written() {
    let mut client = Client::new(Server::new()).expect("a server");
    assert_eq!(client.size(), 1 << 20);
    client.write(4096, &[7; 8192]).expect("a write");
    client.write_zeroes(8192, 4096).expect("zeroes");
    client.flush().expect("a flush");
    let mut bytes = vec![1; 16_384];
    client.read(0, &mut bytes).expect("a read");
    assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == if (4096..8192).contains(&at) { 7 } else { 0 }));
    for cookie in [3, 9] {
        client.start_write(cookie, 0, &[1; 512]).expect("a write");
    }
    assert_eq!([client.reply().expect("a reply"), client.reply().expect("a reply")], [3, 9]);
    let beyond = client.write(1 << 20, &[1; 512]).expect_err("beyond the end");
    assert_eq!(beyond.raw_os_error(), Some(28));
}

#[test]
fn extents_tell_data_from_holes() {
    let mut server = Server::new();
    let mut disk = vec![0; 1 << 20];
    disk[65_536..69_632].fill(1);
    server.loopback.disk = MemoryDisk::new(1 << 20, SectorProfile::S512e).with_content(disk);
    let mut client = Client::for_extents(server, "base:allocation").expect("a server");
    let hole = extent_flag::HOLE | extent_flag::ZERO;
    let expected =
        [(0, 65_536, hole), (65_536, 4096, 0), (69_632, 30_720, hole)].map(|(offset, length, flags)| Extent { offset, length, flags });
    assert_eq!(client.extents(0, 100_352).map_err(|e| e.to_string()), Ok(expected.to_vec()));
}

#[test]
fn a_server_without_it_is_given_up() {
    let other = Client::for_extents(Server::new(), "no:such").map(drop).expect_err("no such context");
    assert_eq!(violation(&other), Some(&Violation::NoContext("no:such".to_owned())));
    let mut client = Client::new(Server::new()).expect("a server");
    let error = client.extents(0, 512).expect_err("no context");
    assert_eq!(violation(&error), Some(&Violation::NotAgreed));
    let refused = negotiation::negotiate(&mut Server::new(), "other", Style::Simple, None).expect_err("no such export");
    assert!(matches!(violation(&refused), Some(Violation::Refused { option: 7, .. })), "{refused}");
}
