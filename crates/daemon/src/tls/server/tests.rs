//! The server against the library's own client, with the bytes cut as a test needs them. The
//! end-to-end tests use GnuTLS's clients.

use std::path::PathBuf;

use s2n_tls::connection::Builder;
use s2n_tls::enums::{Mode, PskHmac};
use s2n_tls::psk::Psk;
use s2n_tls::security::Policy;
use s2n_tls_tokio::TlsConnector;

use super::*;
use crate::tls::TlsFiles;

const KEY: [u8; 32] = [0x5a; 32];

#[derive(Clone)]
struct ClientKey(&'static str, [u8; 32]);

impl Builder for ClientKey {
    type Output = Connection;

    fn build_connection(&self, mode: Mode) -> Result<Connection, Error> {
        let mut connection = Connection::new(mode);
        let mut config = s2n_tls::config::Builder::new();
        config.set_security_policy(&Policy::from_version("default_tls13")?)?;
        config.with_system_certs(false)?;
        config.set_max_blinding_delay(0)?;
        connection.set_config(config.build()?)?;
        let mut psk = Psk::builder()?;
        psk.set_identity(self.0.as_bytes())?.set_secret(&self.1)?.set_hmac(PskHmac::SHA256)?;
        connection.append_psk(&psk.build()?)?;
        Ok(connection)
    }
}

/// A server and a client with buffers between them.
struct Pair {
    server: TlsServer,
    client: Accepting,
    pipe: Pipe,
    stream: Option<Stream>,
}

impl Pair {
    fn new(identity: &'static str, key: [u8; 32]) -> Pair {
        let dir = tempfile::tempdir().expect("directory");
        let keys: PathBuf = dir.path().join("keys.psk");
        let hex: String = KEY.iter().map(|byte| format!("{byte:02x}")).collect();
        std::fs::write(&keys, format!("alice:{hex}\nbob:{hex}\n")).expect("keys");
        let credentials = TlsFiles::Psk { keys }.load().expect("credentials");
        assert_eq!((credentials.is_psk(), credentials.identity()), (true, Some("alice")));
        let pipe = Pipe::default();
        let (connector, transport) = (TlsConnector::new(ClientKey(identity, key)), pipe.clone());
        let client = Box::pin(async move { connector.connect("localhost", transport).await });
        Pair { server: TlsServer::new(&credentials), client, pipe, stream: None }
    }

    /// Carries bytes in both directions, `cut` at a time, until none are left; returns the bytes
    /// that the server decrypted, or its error.
    fn settle(&mut self, cut: usize) -> Result<Vec<u8>, TlsError> {
        let (mut decrypted, mut target) = (Vec::new(), [0; 1000]);
        loop {
            if self.stream.is_none()
                && let Poll::Ready(Ok(stream)) = self.client.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            {
                self.stream = Some(stream);
            }
            let mut moved = false;
            let to_server: Vec<u8> = std::mem::take(&mut self.pipe.lock().outgoing);
            for piece in to_server.chunks(cut) {
                moved = true;
                self.server.feed(piece);
                while let Decrypted::Bytes(count) = self.server.read(&mut target)? {
                    decrypted.extend_from_slice(&target[..count]);
                }
            }
            while self.server.outgoing() > 0 {
                moved = true;
                let _ = self.server.send_with(|bytes| {
                    let count = bytes.len().min(cut);
                    self.pipe.lock().incoming.extend(&bytes[..count]);
                    Ok::<usize, ()>(count)
                });
            }
            if !moved {
                return Ok(decrypted);
            }
        }
    }

    fn client_reads(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 20];
        let mut space = ReadBuf::new(&mut bytes);
        let stream = self.stream.as_mut().expect("connected");
        let mut before = usize::MAX;
        // Until no bytes are left, or the end, which reads as no bytes.
        while before != space.filled().len() {
            before = space.filled().len();
            let _ = Pin::new(&mut *stream).poll_read(&mut Context::from_waker(Waker::noop()), &mut space);
        }
        let filled = space.filled().len();
        bytes.truncate(filled);
        bytes
    }
}

#[test]
fn bytes_go_both_ways_however_they_are_cut() {
    for cut in [1, 7, usize::MAX] {
        let mut pair = Pair::new("bob", KEY);
        assert_eq!(pair.server.agreed(), None);
        assert_eq!(pair.settle(cut).expect("handshake"), b"");
        assert!(pair.server.agreed().expect("agreed").starts_with("TLS13 TLS_AES"));
        let sent: Vec<u8> = (0..100_000u32).map(|index| (index % 251) as u8).collect();
        let client = pair.stream.as_mut().expect("connected");
        let written = Pin::new(client).poll_write(&mut Context::from_waker(Waker::noop()), &sent);
        assert!(matches!(written, Poll::Ready(Ok(100_000))));
        assert!(pair.settle(cut).expect("data") == sent);
        pair.server.write(&sent).expect("write");
        pair.settle(cut).expect("settled");
        assert!(pair.client_reads() == sent);
    }
}

#[test]
fn a_wrong_key_and_an_unknown_identity_are_told_apart() {
    for (identity, key, words) in [("alice", [0x5b; 32], "another one"), ("mallory", KEY, "none of the keys")] {
        let mut pair = Pair::new(identity, key);
        let error = pair.settle(usize::MAX).expect_err("refused");
        assert!(error.to_string().contains(words), "{error}");
        assert!(pair.server.write(b"secret").is_err());
        assert_eq!(pair.server.read(&mut [0; 10]).expect("over"), Decrypted::End);
    }
}

#[test]
fn noise_is_no_handshake_and_no_data() {
    let mut pair = Pair::new("alice", KEY);
    pair.server.feed(&[0x55; 30_000]);
    assert!(matches!(pair.server.read(&mut [0; 10]), Err(TlsError::Handshake(_))));
    let mut pair = Pair::new("alice", KEY);
    pair.settle(usize::MAX).expect("handshake");
    pair.server.feed(&[23, 3, 3, 0, 100]);
    pair.server.feed(&[0x55; 100]);
    assert!(matches!(pair.server.read(&mut [0; 10]), Err(TlsError::Broken(_))));
}

#[test]
fn both_ends_of_a_connection_are_seen() {
    let mut pair = Pair::new("alice", KEY);
    pair.settle(usize::MAX).expect("handshake");
    pair.server.write(b"last words").expect("write");
    pair.server.close();
    pair.settle(usize::MAX).expect("settled");
    assert_eq!(pair.client_reads(), b"last words");
    // The peer ends without a closing message, before and after the handshake.
    let mut pair = Pair::new("alice", KEY);
    pair.settle(usize::MAX).expect("handshake");
    pair.server.feed(&[]);
    assert_eq!(pair.server.read(&mut [0; 10]).expect("an end"), Decrypted::End);
    let mut pair = Pair::new("alice", KEY);
    pair.server.feed(&[]);
    assert!(matches!(pair.server.read(&mut [0; 10]), Err(TlsError::Handshake(_))));
}
