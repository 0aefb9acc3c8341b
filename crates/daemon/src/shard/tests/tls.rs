//! TLS with helpers: whoever encrypts, each connection gets its replies complete and in step, and a
//! client that goes leaves nothing behind.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;

use millpond_testing::Random;
use s2n_tls::connection::{Builder, Connection};
use s2n_tls::enums::{Mode, PskHmac};
use s2n_tls::error::Error;
use s2n_tls::psk::Psk;
use s2n_tls::security::Policy;
use s2n_tls_tokio::{TlsConnector, TlsStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::client::{Client, PATIENCE, READ, Stream, WRITE, in_memory, on_unix, wait};
use crate::budget::Budget;
use crate::helpers::Helpers;
use crate::shard::{NbdExport, ShardHandle, TlsOffer};
use crate::tls::TlsFiles;

/// Bytes of the disk that a client has for itself.
const PART: u64 = 2 << 20;

#[derive(Clone)]
struct Key;

impl Builder for Key {
    type Output = Connection;

    fn build_connection(&self, mode: Mode) -> Result<Connection, Error> {
        let mut connection = Connection::new(mode);
        let mut config = s2n_tls::config::Builder::new();
        config.set_security_policy(&Policy::from_version("default_tls13")?)?;
        config.with_system_certs(false)?;
        config.set_max_blinding_delay(0)?;
        connection.set_config(config.build()?)?;
        let mut psk = Psk::builder()?;
        psk.set_identity(b"alice")?.set_secret(&[0x5a; 32])?.set_hmac(PskHmac::SHA256)?;
        connection.append_psk(&psk.build()?)?;
        Ok(connection)
    }
}

/// A socket whose calls wait.
struct Waiting(UnixStream);

impl AsyncRead for Waiting {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, target: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let count = self.0.read(target.initialize_unfilled())?;
        target.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Waiting {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(self.0.write(bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// An encrypted stream.
struct Encrypted(TlsStream<Waiting, Connection>);

impl Stream for Encrypted {}

fn ready<T>(poll: Poll<io::Result<T>>) -> io::Result<T> {
    match poll {
        Poll::Ready(result) => result,
        Poll::Pending => Err(io::Error::from(io::ErrorKind::WouldBlock)),
    }
}

impl Read for Encrypted {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let mut space = ReadBuf::new(target);
        ready(Pin::new(&mut self.0).poll_read(&mut Context::from_waker(Waker::noop()), &mut space))?;
        Ok(space.filled().len())
    }
}

impl Write for Encrypted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        ready(Pin::new(&mut self.0).poll_write(&mut Context::from_waker(Waker::noop()), bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT".as_slice(), &number.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
}

/// Returns type and data of an answer to an option.
fn answer(stream: &mut impl Read) -> (u32, Vec<u8>) {
    let mut head = [0; 20];
    stream.read_exact(&mut head).expect("an answer");
    let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four bytes"));
    let mut data = vec![0; word(16) as usize];
    stream.read_exact(&mut data).expect("its data");
    (word(12), data)
}

/// Returns a client with TLS, and its socket.
fn encrypted(path: &Path) -> (Client, UnixStream) {
    let mut stream = UnixStream::connect(path).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    stream.read_exact(&mut [0; 18]).expect("greeting");
    stream.write_all(&3u32.to_be_bytes()).expect("flags");
    stream.write_all(&option(5, &[])).expect("STARTTLS");
    assert_eq!(answer(&mut stream).0, 1);
    let socket = stream.try_clone().expect("a copy");
    let connecting = TlsConnector::new(Key).connect("localhost", Waiting(stream)).await_here();
    let mut stream = Encrypted(connecting.expect("a handshake"));
    stream.write_all(&option(7, &[0; 6])).expect("GO");
    while answer(&mut stream).0 != 1 {}
    (Client { stream: Box::new(stream), size: 8 << 20, flags: 0 }, socket)
}

/// Futures whose calls wait are ready when they are polled.
trait Here: Future + Sized {
    fn await_here(self) -> Self::Output {
        let mut future = Box::pin(self);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return output;
            }
        }
    }
}

impl<F: Future> Here for F {}

/// A shard that serves with TLS at one path and without at another, helpers, and a budget.
struct Served {
    shard: ShardHandle,
    helpers: Arc<Helpers>,
    budget: Arc<Budget>,
    tls: PathBuf,
    plain: PathBuf,
    _dir: tempfile::TempDir,
}

fn serve(helpers: usize) -> Served {
    let dir = tempfile::tempdir().expect("directory");
    let (tls, plain, keys) = (dir.path().join("t"), dir.path().join("p"), dir.path().join("keys.psk"));
    std::fs::write(&keys, format!("alice:{}\n", "5a".repeat(32))).expect("keys");
    let credentials = TlsFiles::Psk { keys }.load().expect("credentials");
    let (shard, helpers, budget) = (in_memory(), Arc::new(Helpers::start(helpers)), Arc::new(Budget::default()));
    shard.set_helpers(Arc::clone(&helpers));
    shard.set_budget(Arc::clone(&budget));
    let offer = Some(TlsOffer { required: true, credentials });
    wait(shard.export_nbd(NbdExport { tls: offer, ..on_unix(1, &tls) })).expect("export");
    wait(shard.export_nbd(on_unix(2, &plain))).expect("export");
    Served { shard, helpers, budget, tls, plain, _dir: dir }
}

impl Served {
    /// Waits until no client is left, and checks that none has left memory behind.
    fn end(self) {
        while wait(self.shard.exports()).expect("exports").iter().any(|export| !export.clients.is_empty()) {
            thread::yield_now();
        }
        assert_eq!(self.budget.use_of().1, 0);
        wait(self.shard.shutdown()).expect("shutdown");
    }
}

/// Sends groups of requests of all sizes, and checks the bytes of each read: those that were
/// written last. Requests of a group are for different places.
fn exercise(mut client: Client, part: u64, seed: u64) {
    const PLACES: usize = 8;
    const PLACE: u64 = PART / PLACES as u64;
    let mut random = Random::new(seed);
    let mut content = vec![0; PART as usize];
    for _ in 0..60 {
        let mut reads = Vec::new();
        for place in 0..PLACES {
            let length = [512, 4096, 20_480, 65_536, 200_704, PLACE][random.index(6)];
            let at = place as u64 * PLACE + random.index(((PLACE - length) / 512 + 1) as usize) as u64 * 512;
            let here = at as usize..(at + length) as usize;
            if random.index(3) == 0 {
                random.fill(&mut content[here.clone()]);
                client.send(WRITE, place as u64, part + at, length as u32, &content[here]);
            } else {
                client.send(READ, place as u64, part + at, length as u32, &[]);
                reads.push((place as u64, here));
            }
        }
        for _ in 0..PLACES {
            let (error, cookie) = client.reply().expect("a reply");
            assert_eq!(error, 0);
            if let Some((_, here)) = reads.iter().find(|(place, _)| *place == cookie) {
                let mut bytes = vec![0; here.len()];
                client.stream.read_exact(&mut bytes).expect("data");
                assert!(bytes == content[here.clone()], "other bytes came back");
            }
        }
    }
}

#[test]
fn connections_stay_in_step_whoever_encrypts() {
    for helpers in [0, 1, 3] {
        let served = serve(helpers);
        thread::scope(|scope| {
            for nth in 0..4 {
                let client = if nth == 3 { Client::unix(&served.plain) } else { encrypted(&served.tls).0 };
                scope.spawn(move || exercise(client, nth * PART, nth + 1));
            }
        });
        assert_eq!(served.helpers.connections_served() > 0, helpers > 0);
        served.end();
    }
}

#[test]
fn a_client_that_goes_with_buffers_in_flight_leaves_nothing_behind() {
    let served = serve(2);
    let witness = encrypted(&served.tls).0;
    thread::scope(|scope| {
        scope.spawn(|| exercise(witness, 3 * PART, 9));
        for nth in 0..24 {
            let (mut client, socket) = encrypted(&served.tls);
            for request in 0..16 {
                client.send(READ, request, 0, 1 << 20, &[]);
            }
            let mut some = vec![0; 1 + nth * 150_000];
            if nth % 3 == 0 {
                // with a part of a payload on its way, too
                let header = client.stream.write(&[0; 10]);
                assert_eq!(header.expect("bytes"), 10);
            }
            if nth % 2 == 0 {
                client.stream.read_exact(&mut some).expect("replies");
            }
            if nth % 4 == 0 {
                socket.shutdown(std::net::Shutdown::Read).expect("shutdown");
            }
        }
    });
    served.end();
}

#[test]
fn a_client_alone_with_one_request_is_served_by_the_shard() {
    let served = serve(2);
    let mut client = encrypted(&served.tls).0;
    let handshakes = served.helpers.connections_served();
    for nth in 0..20 {
        assert_eq!(client.write(0, &vec![nth; 300 << 10]), 0);
        assert!(client.read(0, 300 << 10).expect("read") == vec![nth; 300 << 10]);
        assert!(client.read(4096, 4096).expect("read") == [nth; 4096]);
    }
    assert_eq!(served.helpers.connections_served(), handshakes, "another thread would only delay it");
    drop(client);
    served.end();
}
