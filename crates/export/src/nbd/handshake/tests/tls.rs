//! STARTTLS in the handshake.

use super::*;
use crate::nbd::Encryption;

fn greeted_with(encryption: Encryption) -> Loopback {
    let disk = MemoryDisk::new(SIZE as usize, SectorProfile::S512e);
    let mut loopback = Loopback::with_encryption(disk, Limits::default(), encryption);
    loopback.feed(&hello());
    loopback.take_output();
    loopback
}

fn start_tls(loopback: &mut Loopback) {
    assert_eq!(ask(loopback, &message(option::STARTTLS, b"")), [(option::STARTTLS, reply::ACK, vec![])]);
}

#[test]
fn before_starttls_nothing_is_told_where_it_is_required() {
    let mut loopback = greeted_with(Encryption::Required);
    let asked = [
        go("disk"),
        name_option(option::INFO, b"disk", &[]),
        message(option::LIST, b""),
        message(option::STRUCTURED_REPLY, b""),
        message(option::EXTENDED_HEADERS, b""),
        meta_context(option::LIST_META_CONTEXT, "disk", &[]),
        message(999, b"abc"),
    ];
    assert!(!loopback.session.was_refused_in_clear());
    for bytes in asked {
        let answers = ask(&mut loopback, &bytes);
        assert_eq!(answers.iter().map(|(_, kind, data)| (*kind, data.len())).collect::<Vec<_>>(), [(reply::ERR_TLS_REQD, 0)]);
    }
    assert!(loopback.session.was_refused_in_clear());
    start_tls(&mut loopback);
    assert_eq!(ask(&mut loopback, &go("disk")).last(), Some(&(option::GO, reply::ACK, vec![])));
    assert_eq!(loopback.session.phase(), Phase::Transmission);

    let mut loopback = greeted_with(Encryption::Required);
    loopback.feed(&message(option::EXPORT_NAME, b"disk"));
    assert_eq!(reason(&loopback), Some(CloseReason::TlsRequired));
    assert!(loopback.output.is_empty());
    let mut loopback = greeted_with(Encryption::Required);
    assert_eq!(ask(&mut loopback, &message(option::ABORT, b"")), [(option::ABORT, reply::ACK, vec![])]);
}

#[test]
fn a_client_may_do_without_where_it_is_allowed() {
    let mut loopback = greeted_with(Encryption::Allowed);
    assert_eq!(ask(&mut loopback, &go("disk")).last(), Some(&(option::GO, reply::ACK, vec![])));
    assert!(!loopback.session.was_refused_in_clear());
    let mut loopback = greeted_with(Encryption::Allowed);
    start_tls(&mut loopback);
    assert_eq!(ask(&mut loopback, &go("disk")).last(), Some(&(option::GO, reply::ACK, vec![])));
}

#[test]
fn what_was_agreed_on_in_the_clear_is_void() {
    let mut loopback = greeted_with(Encryption::Allowed);
    ask(&mut loopback, &message(option::STRUCTURED_REPLY, b""));
    ask(&mut loopback, &meta_context(option::SET_META_CONTEXT, "disk", &["base:allocation"]));
    start_tls(&mut loopback);
    let answers = ask(&mut loopback, &go("disk"));
    assert_eq!(answers.first(), Some(&(option::GO, reply::INFO, info_export())), "neither DF nor contexts are announced");
}

#[test]
fn bytes_in_the_clear_behind_starttls_end_the_session() {
    for injected in [go("disk"), vec![0]] {
        let mut loopback = greeted_with(Encryption::Required);
        loopback.feed(&[message(option::STARTTLS, b""), injected].concat());
        assert_eq!(reason(&loopback), Some(CloseReason::ClearAfterStartTls));
        assert_eq!(answers(&loopback.take_output()), [(option::STARTTLS, reply::ACK, vec![])], "nothing else is answered");
        assert_eq!(loopback.session.bound(), None);
    }
}

#[test]
fn between_the_answer_and_the_cipher_nothing_is_read() {
    let mut session = Session::new(1, Limits::default()).with_encryption(Encryption::Required);
    let mut pool = millpond_block::BufPool::default();
    let bytes = [hello(), message(option::STARTTLS, b"")].concat();
    let mut recv = session.recv(&mut pool).expect("room");
    recv.space()[..bytes.len()].copy_from_slice(&bytes);
    session.received(recv, bytes.len());
    let exports: Vec<ExportInfo> = Vec::new();
    assert_eq!(session.handshake(&exports), None);
    assert!(!session.is_starting_tls(), "the answer is not sent");
    assert!(session.recv(&mut pool).is_none());
    let batch = session.send().expect("greeting and answer");
    let length = batch.len();
    session.sent(batch, length, &mut pool);
    assert!(session.is_starting_tls());
    assert!(session.recv(&mut pool).is_none());
    session.secured();
    assert!(!session.is_starting_tls());
    assert!(session.recv(&mut pool).is_some());
}

#[test]
fn starttls_is_for_once_and_has_no_data() {
    let mut loopback = greeted_with(Encryption::Allowed);
    let answers = ask(&mut loopback, &message(option::STARTTLS, b"x"));
    assert_eq!(answers.first().map(|(_, kind, _)| *kind), Some(reply::ERR_INVALID));
    start_tls(&mut loopback);
    let answers = ask(&mut loopback, &message(option::STARTTLS, b""));
    assert_eq!(answers.first().map(|(_, kind, _)| *kind), Some(reply::ERR_INVALID));
    assert_eq!(ask(&mut loopback, &go("disk")).last(), Some(&(option::GO, reply::ACK, vec![])));
}
