//! Options of the handshake, one by one.

use millpond_block::SectorProfile;

use super::*;
use crate::nbd::{Limits, Phase, Session};
use crate::testing::{Loopback, MemoryDisk, go, hello, meta_context, name_option, option as message};

mod tls;

const SIZE: u64 = 1 << 20;
const FLAGS: u16 = 0b1100_0110_1101;

/// Answer to an option: the option, the type of the answer, and its data.
type Answer = (u32, u32, Vec<u8>);

fn fresh() -> Loopback {
    let mut loopback = Loopback::new(MemoryDisk::new(SIZE as usize, SectorProfile::S512e));
    loopback.feed(&[]);
    assert_eq!(loopback.take_output(), [&b"NBDMAGICIHAVEOPT"[..], &[0, 3]].concat());
    loopback
}

/// Returns a session that has received the client's flags.
fn greeted() -> Loopback {
    let mut loopback = fresh();
    loopback.feed(&hello());
    loopback
}

fn answers(bytes: &[u8]) -> Vec<Answer> {
    let mut reader = Reader(bytes);
    let mut answers = Vec::new();
    while !reader.0.is_empty() {
        assert_eq!(reader.u64(), Some(wire::OPTION_REPLY_MAGIC));
        let (option, kind, length) = (reader.u32().unwrap(), reader.u32().unwrap(), reader.u32().unwrap());
        answers.push((option, kind, reader.take(length).expect("as long as it says").to_vec()));
    }
    answers
}

fn ask(loopback: &mut Loopback, bytes: &[u8]) -> Vec<Answer> {
    assert_eq!(loopback.feed(bytes), bytes.len());
    answers(&loopback.take_output())
}

fn info_export() -> Vec<u8> {
    [&[0, 0], &SIZE.to_be_bytes()[..], &FLAGS.to_be_bytes()].concat()
}

fn info_block_size(minimum: u32) -> Vec<u8> {
    [&[0, 3], &minimum.to_be_bytes()[..], &4096u32.to_be_bytes(), &(32u32 << 20).to_be_bytes()].concat()
}

fn reason(loopback: &Loopback) -> Option<CloseReason> {
    loopback.session.close_reason()
}

#[test]
fn go_binds_and_tells_size_flags_and_blocks() {
    let mut loopback = greeted();
    let answers = ask(&mut loopback, &go("disk"));
    assert_eq!(answers, [(7, 3, info_export()), (7, 3, info_block_size(512)), (7, 1, vec![])]);
    assert_eq!(loopback.session.phase(), Phase::Transmission);
    assert_eq!(loopback.session.bound(), Some(ExportId(1)));
}

#[test]
fn go_tells_what_is_asked_and_ignores_what_is_unknown() {
    let mut loopback = greeted();
    let answers = ask(&mut loopback, &name_option(option::GO, b"", &[3, 1, 77, 2]));
    let name = [&[0, 1], &b"disk"[..]].concat();
    let description = [&[0, 2], &b"a disk in memory"[..]].concat();
    let expected = [(7, 3, info_export()), (7, 3, name), (7, 3, description), (7, 3, info_block_size(512)), (7, 1, vec![])];
    assert_eq!(answers, expected);
}

#[test]
fn sectors_of_4_kib_are_the_minimum_block() {
    let mut loopback = Loopback::new(MemoryDisk::new(SIZE as usize, SectorProfile::S4kn));
    loopback.feed(&hello());
    loopback.take_output();
    assert!(ask(&mut loopback, &go("")).contains(&(7, 3, info_block_size(4096))));
}

#[test]
fn info_does_not_bind() {
    let mut loopback = greeted();
    let answers = ask(&mut loopback, &name_option(option::INFO, b"disk", &[]));
    assert_eq!(answers, [(6, 3, info_export()), (6, 3, info_block_size(512)), (6, 1, vec![])]);
    assert_eq!(loopback.session.phase(), Phase::Handshake);
    assert_eq!(loopback.session.bound(), None);
}

#[test]
fn an_unknown_name_is_refused_and_another_may_follow() {
    let mut loopback = greeted();
    let answers = ask(&mut loopback, &go("other"));
    assert_eq!(answers.first().map(|(_, kind, _)| *kind), Some(reply::ERR_UNKNOWN));
    assert_eq!(ask(&mut loopback, &go("disk")).last(), Some(&(7, 1, vec![])));
}

#[test]
fn the_longest_name_is_looked_up_and_a_longer_one_is_too_big() {
    let mut loopback = greeted();
    let kind = |answers: Vec<Answer>| answers.last().map(|(_, kind, _)| *kind);
    assert_eq!(kind(ask(&mut loopback, &name_option(option::INFO, &[b'x'; 4096], &[]))), Some(reply::ERR_UNKNOWN));
    assert_eq!(kind(ask(&mut loopback, &name_option(option::INFO, &[b'x'; 4097], &[]))), Some(reply::ERR_TOO_BIG));
    assert_eq!(kind(ask(&mut loopback, &name_option(option::GO, &[b'x'; 100_000], &[]))), Some(reply::ERR_TOO_BIG));
    assert_eq!(kind(ask(&mut loopback, &message(option::LIST, &[0; 600_000]))), Some(reply::ERR_TOO_BIG));
    assert_eq!(loopback.session.phase(), Phase::Handshake);
}

#[test]
fn malformed_go_is_invalid_and_the_handshake_goes_on() {
    let lies: [&[u8]; 7] = [
        b"",
        b"\0\0\0",
        b"\0\0\0\x05disk\0\0",
        b"\0\0\0\x04disk",
        b"\0\0\0\x04disk\0\x01",
        b"\0\0\0\x04disk\0\0\0",
        b"\0\0\0\x02\xff\xfe\0\0",
    ];
    for data in lies {
        let mut loopback = greeted();
        let answers = ask(&mut loopback, &message(option::GO, data));
        assert_eq!(answers.first().map(|(_, kind, _)| *kind), Some(reply::ERR_INVALID), "{data:?}");
        assert_eq!(answers.len(), 1);
        assert_eq!(ask(&mut loopback, &go("disk")).last(), Some(&(7, 1, vec![])));
    }
}

#[test]
fn list_names_every_export() {
    let mut loopback = greeted();
    let mut second = loopback.exports.first().cloned().expect("one export");
    second.name = "second".to_owned();
    second.description.clear();
    loopback.exports.push(second);
    let answers = ask(&mut loopback, &message(option::LIST, b""));
    let first = [&4u32.to_be_bytes(), &b"disk"[..], b"a disk in memory"].concat();
    let second = [&6u32.to_be_bytes(), &b"second"[..]].concat();
    assert_eq!(answers, [(3, 2, first), (3, 2, second), (3, 1, vec![])]);
    let answers = ask(&mut loopback, &message(option::LIST, b"x"));
    assert_eq!(answers.first().map(|(_, kind, _)| *kind), Some(reply::ERR_INVALID));
}

#[test]
fn structured_replies_are_agreed_on_and_allow_for_single_chunks() {
    let mut loopback = greeted();
    assert_eq!(ask(&mut loopback, &message(option::STRUCTURED_REPLY, b"?"))[0].1, reply::ERR_INVALID);
    assert_eq!(ask(&mut loopback, &name_option(option::INFO, b"disk", &[]))[0], (6, 3, info_export()));
    assert_eq!(ask(&mut loopback, &message(option::STRUCTURED_REPLY, &[])), [(8, 1, vec![])]);
    assert_eq!(ask(&mut loopback, &message(option::STRUCTURED_REPLY, &[])), [(8, 1, vec![])]);
    let mut info = info_export();
    info[11] |= 1 << 7;
    assert_eq!(ask(&mut loopback, &go("disk"))[0], (7, 3, info));
}

/// Returns number and name of each context in the answers, and the type of the last answer.
fn contexts(answers: &[Answer]) -> (Vec<(u32, String)>, u32) {
    let (last, rest) = answers.split_last().expect("an answer");
    let context = |(_, kind, data): &Answer| {
        assert_eq!(*kind, reply::META_CONTEXT);
        let (id, name) = data.split_first_chunk().expect("a number");
        (u32::from_be_bytes(*id), String::from_utf8(name.to_vec()).expect("a name"))
    };
    (rest.iter().map(context).collect(), last.1)
}

/// Returns a session with structured replies and two older states.
fn with_states() -> Loopback {
    let mut loopback = greeted();
    for name in ["mon", "tue"] {
        let since = loopback.disk.save();
        loopback.states.push((name.to_owned(), since));
    }
    ask(&mut loopback, &message(option::STRUCTURED_REPLY, &[]));
    loopback
}

#[test]
fn contexts_are_listed() {
    let mut loopback = with_states();
    let all = ["base:allocation", "qemu:dirty-bitmap:mon", "qemu:dirty-bitmap:tue"];
    let cases: [(&[&str], &[&str]); 8] = [
        (&[], &all),
        (&["base:"], &all[..1]),
        (&["base:allocation", "base:"], &all[..1]),
        (&["qemu:"], &all[1..]),
        (&["qemu:dirty-bitmap:", "qemu:dirty-bitmap:mon"], &all[1..]),
        (&["qemu:dirty-bitmap:tue"], &all[2..]),
        (&["qemu:dirty-bitmap:sun", "x-other:", "base:nothing"], &[]),
        (&["qemu:", "base:"], &all),
    ];
    for (queries, expected) in cases {
        let (names, kind) = contexts(&ask(&mut loopback, &meta_context(option::LIST_META_CONTEXT, "disk", queries)));
        let expected: Vec<(u32, String)> = expected.iter().map(|name| (0, (*name).to_owned())).collect();
        assert_eq!((names, kind), (expected, reply::ACK), "{queries:?}");
    }
}

#[test]
fn contexts_are_selected_for_one_export() {
    let mut loopback = with_states();
    let select = |loopback: &mut Loopback, name: &str, queries: &[&str]| {
        contexts(&ask(loopback, &meta_context(option::SET_META_CONTEXT, name, queries)))
    };
    let queries = ["base:", "qemu:", "qemu:dirty-bitmap:tue", "base:allocation", "qemu:dirty-bitmap:tue", "qemu:dirty-bitmap:sun"];
    let expected = vec![(1, "qemu:dirty-bitmap:tue".to_owned()), (2, "base:allocation".to_owned())];
    assert_eq!(select(&mut loopback, "", &queries), (expected, reply::ACK), "wildcards and what is unknown select nothing");
    assert_eq!(select(&mut loopback, "nobody", &["base:allocation"]), (vec![], reply::ERR_UNKNOWN));
    assert_eq!(select(&mut loopback, "disk", &["no colon"]), (vec![], reply::ERR_INVALID));
    let many: Vec<String> = (0..17).map(|n| format!("s{n}")).collect();
    for name in &many {
        let since = loopback.disk.save();
        loopback.states.push((name.clone(), since));
    }
    let queries: Vec<String> = many.iter().map(|name| format!("qemu:dirty-bitmap:{name}")).collect();
    let queries: Vec<&str> = queries.iter().map(String::as_str).collect();
    assert_eq!(select(&mut loopback, "disk", &queries).1, reply::ERR_TOO_BIG);
    assert_eq!(select(&mut loopback, "disk", &queries[..16]).1, reply::ACK);
}

#[test]
fn contexts_need_structured_replies_and_lengths_that_add_up() {
    let mut loopback = greeted();
    let good = meta_context(option::SET_META_CONTEXT, "disk", &["base:allocation"]);
    assert_eq!(ask(&mut loopback, &good)[0].1, reply::ERR_INVALID);
    ask(&mut loopback, &message(option::STRUCTURED_REPLY, &[]));
    assert_eq!(ask(&mut loopback, &good).len(), 2);
    let data = &good[OPTION_HEADER..];
    for length in 0..data.len() {
        assert_eq!(ask(&mut loopback, &message(option::SET_META_CONTEXT, &data[..length]))[0].1, reply::ERR_INVALID, "{length}");
    }
    let longer = [data, &[0]].concat();
    assert_eq!(ask(&mut loopback, &message(option::LIST_META_CONTEXT, &longer))[0].1, reply::ERR_INVALID);
    let mut many = data.to_vec();
    many[8..12].fill(0xff);
    assert_eq!(ask(&mut loopback, &message(option::LIST_META_CONTEXT, &many))[0].1, reply::ERR_INVALID);
}

#[test]
fn extended_headers_are_agreed_on_for_good() {
    let mut loopback = with_states();
    let flags = |answers: &[Answer]| answers.first().and_then(|(_, _, data)| data.last_chunk()).map(|flags| u16::from_be_bytes(*flags));
    assert_eq!(ask(&mut loopback, &message(option::EXTENDED_HEADERS, b"?"))[0].1, reply::ERR_INVALID);
    assert_eq!(ask(&mut loopback, &message(option::EXTENDED_HEADERS, &[])), [(11, 1, vec![])]);
    assert_eq!(ask(&mut loopback, &message(option::STRUCTURED_REPLY, &[]))[0].1, reply::ERR_EXT_HEADER_REQD);
    assert_eq!(flags(&ask(&mut loopback, &name_option(option::INFO, b"disk", &[]))), Some(FLAGS | 1 << 7));
    ask(&mut loopback, &meta_context(option::SET_META_CONTEXT, "disk", &["base:allocation"]));
    assert_eq!(flags(&ask(&mut loopback, &name_option(option::INFO, b"disk", &[]))), Some(FLAGS | 1 << 7 | 1 << 12));
    loopback.feed(&message(option::EXPORT_NAME, b"disk"));
    assert_eq!(reason(&loopback), Some(CloseReason::ExportNameExtended));
}

#[test]
fn what_is_not_served_is_drained_and_refused() {
    let mut loopback = greeted();
    let unserved = [option::STARTTLS, 4, 0, 12, u32::MAX];
    for number in unserved {
        for length in [0, 1, 5000, 300_000] {
            let answers = ask(&mut loopback, &message(number, &vec![0x49; length]));
            assert_eq!(answers, [(number, reply::ERR_UNSUP, vec![])]);
        }
    }
    assert_eq!(ask(&mut loopback, &go("")).last(), Some(&(7, 1, vec![])));
}

#[test]
fn an_absurd_length_ends_the_session_without_memory_for_it() {
    for number in [option::GO, option::LIST, option::SET_META_CONTEXT, 999] {
        let mut loopback = greeted();
        let mut header = message(number, b"");
        header.truncate(12);
        header.extend(u32::MAX.to_be_bytes());
        loopback.feed(&header);
        assert_eq!(reason(&loopback), Some(CloseReason::OptionTooLong(u32::MAX)));
        assert_eq!(loopback.session.phase(), Phase::Closed);
    }
}

#[test]
fn export_name_answers_without_header() {
    let bare = [&SIZE.to_be_bytes()[..], &FLAGS.to_be_bytes()].concat();
    for (flags, padding) in [(3u32, 0), (1, 124), (0, 124), (2, 0)] {
        let mut loopback = fresh();
        loopback.feed(&flags.to_be_bytes());
        loopback.feed(&message(option::EXPORT_NAME, b"disk"));
        assert_eq!(loopback.take_output(), [bare.clone(), vec![0; padding]].concat(), "flags {flags}");
        assert_eq!(loopback.session.phase(), Phase::Transmission);
    }
}

#[test]
fn export_name_of_nothing_ends_the_session() {
    for name in [&b"other"[..], b"\xff", &[b'x'; 4097]] {
        let mut loopback = greeted();
        loopback.feed(&message(option::EXPORT_NAME, name));
        assert_eq!(reason(&loopback), Some(CloseReason::UnknownExport));
        assert!(loopback.output.is_empty());
    }
}

#[test]
fn abort_is_acknowledged() {
    let mut loopback = greeted();
    assert_eq!(ask(&mut loopback, &message(option::ABORT, b"")), [(2, 1, vec![])]);
    assert_eq!(reason(&loopback), Some(CloseReason::Abort));
    assert_eq!(loopback.session.phase(), Phase::Closed);
}

#[test]
fn unknown_client_flags_end_the_session() {
    let mut loopback = fresh();
    loopback.feed(&4u32.to_be_bytes());
    assert_eq!(reason(&loopback), Some(CloseReason::ClientFlags(4)));
}

#[test]
fn a_client_without_fixed_newstyle_cannot_be_refused_politely() {
    let mut loopback = fresh();
    loopback.feed(&0u32.to_be_bytes());
    loopback.feed(&message(option::LIST, b""));
    assert_eq!(reason(&loopback), Some(CloseReason::OptionUnanswerable(option::LIST)));
}

#[test]
fn garbage_instead_of_an_option_ends_the_session() {
    let mut loopback = greeted();
    loopback.feed(b"GET / HT");
    assert_eq!(reason(&loopback), Some(CloseReason::OptionMagic(u64::from_be_bytes(*b"GET / HT"))));
}

#[test]
fn the_end_of_the_stream_is_told_from_a_cut_message() {
    for (bytes, expected) in [
        (hello(), CloseReason::EndOfStream),
        ([hello(), b"IHA".to_vec()].concat(), CloseReason::Truncated),
        ([hello(), go("disk")].concat().split_last().expect("bytes").1.to_vec(), CloseReason::Truncated),
        ([hello(), message(999, b"xyz")].concat().split_last().expect("bytes").1.to_vec(), CloseReason::Truncated),
    ] {
        let mut loopback = fresh();
        loopback.feed(&bytes);
        loopback.end();
        assert_eq!(reason(&loopback), Some(expected));
    }
}

#[test]
fn a_handshake_cut_anywhere_is_the_same() {
    let bytes = [
        hello(),
        message(999, b"some data"),
        message(option::LIST, b""),
        name_option(option::INFO, b"disk", &[1, 2, 3]),
        go("wrong"),
        go(""),
    ]
    .concat();
    let run = |chunk: usize, send_chunk: usize| {
        let mut loopback = fresh();
        loopback.chunk = chunk;
        loopback.send_chunk = send_chunk;
        assert_eq!(loopback.feed(&bytes), bytes.len());
        assert_eq!(loopback.session.bound(), Some(ExportId(1)));
        loopback.take_output()
    };
    let whole = run(usize::MAX, usize::MAX);
    for chunk in 1..40 {
        assert_eq!(run(chunk, 50 - chunk), whole, "receives of {chunk} bytes");
    }
}

#[test]
fn a_client_that_only_asks_is_stopped_by_what_it_does_not_read() {
    let limits = Limits { unsent: 10_000, ..Limits::default() };
    let mut loopback = Loopback::with_limits(MemoryDisk::new(SIZE as usize, SectorProfile::S512e), limits);
    loopback.feed(&hello());
    loopback.take_output();
    loopback.deaf = true;
    let question = name_option(option::INFO, b"disk", &[]);
    let flood = question.repeat(100_000);
    let taken = loopback.feed(&flood);
    assert!(taken < 1 << 20, "{taken} bytes taken");
    assert!(loopback.session.unsent() < limits.unsent + 200);
    loopback.deaf = false;
    let rest = flood.get(taken..question.len() * 50_000).expect("more to come");
    assert_eq!(loopback.feed(rest), rest.len(), "and goes on when it reads");
    assert_eq!(answers(&loopback.take_output()).len(), 3 * 50_000);
}

#[test]
fn there_is_an_end_to_options() {
    let mut loopback = greeted();
    let flood = message(999, b"").repeat(1 << 10);
    for _ in 0..65 {
        loopback.feed(&flood);
    }
    assert_eq!(reason(&loopback), Some(CloseReason::TooManyOptions));
}

#[test]
fn a_server_going_down_says_so() {
    let mut loopback = greeted();
    loopback.session.shutdown();
    for bytes in [go("disk"), message(option::LIST, b""), message(999, b"abc")] {
        let answers = ask(&mut loopback, &bytes);
        assert_eq!(answers.iter().map(|(_, kind, _)| *kind).collect::<Vec<_>>(), [reply::ERR_SHUTDOWN]);
    }
    assert_eq!(ask(&mut loopback, &message(option::ABORT, b"")), [(2, 1, vec![])]);
    let mut loopback = greeted();
    loopback.session.shutdown();
    loopback.feed(&message(option::EXPORT_NAME, b"disk"));
    assert_eq!(reason(&loopback), Some(CloseReason::Shutdown));
}

#[test]
fn sessions_are_small() {
    // There may be many connections. Their data is in the input buffers, so sessions can be small.
    assert!(size_of::<Session>() < 1024, "{}", size_of::<Session>());
}
