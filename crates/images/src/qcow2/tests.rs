//! Valid and invalid headers.
use std::io::Write;

use super::*;

fn header(change: impl FnOnce(&mut Vec<u8>)) -> io::Result<Header> {
    let mut head = vec![0; 4096];
    let mut put = |at: usize, bytes: &[u8]| head[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"QFI\xfb");
    put(4, &3u32.to_be_bytes());
    put(20, &16u32.to_be_bytes());
    put(24, &(1u64 << 30).to_be_bytes());
    put(100, &104u32.to_be_bytes());
    change(&mut head);
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(&head).expect("written");
    Header::read(&file)
}

fn put(head: &mut [u8], at: usize, bytes: &[u8]) {
    head[at..at + bytes.len()].copy_from_slice(bytes);
}

#[test]
fn a_backing_file_its_format_and_features_are_found() {
    let read = header(|head| {
        put(head, 8, &1024u64.to_be_bytes());
        put(head, 16, &9u32.to_be_bytes());
        put(head, 1024, b"base.qcow");
        put(head, 72, &(EXTENDED_L2).to_be_bytes());
        put(head, 104, &0xe279_2acau32.to_be_bytes());
        put(head, 108, &5u32.to_be_bytes());
        put(head, 112, b"qcow2");
    });
    let wanted = Header {
        size: 1 << 30,
        backing: Some("base.qcow".into()),
        backing_format: Some("qcow2".into()),
        needs_qemu: true,
        ..Header::default()
    };
    assert_eq!(read.expect("sound"), wanted);
}

#[test]
fn snapshots_come_by_age() {
    let one = |id: &str, name: &str, seconds: u32| {
        let mut entry = vec![0; 40];
        put(&mut entry, 12, &u16::try_from(id.len()).expect("short").to_be_bytes());
        put(&mut entry, 14, &u16::try_from(name.len()).expect("short").to_be_bytes());
        put(&mut entry, 16, &seconds.to_be_bytes());
        put(&mut entry, 36, &16u32.to_be_bytes());
        entry.extend([0; 16]);
        entry.extend(id.bytes().chain(name.bytes()));
        entry.resize(entry.len().next_multiple_of(8), 0);
        entry
    };
    let read = header(|head| {
        put(head, 60, &2u32.to_be_bytes());
        put(head, 64, &2048u64.to_be_bytes());
        put(head, 2048, &[one("2", "later", 9), one("1", "first", 5)].concat());
    });
    let names: Vec<String> = read.expect("sound").snapshots.into_iter().map(|s| s.name).collect();
    assert_eq!(names, ["first", "later"]);
}

#[test]
fn absurd_headers_are_errors() {
    let refusal = |change: fn(&mut Vec<u8>)| header(change).expect_err("absurd").to_string();
    assert!(refusal(|head| put(head, 4, &7u32.to_be_bytes())).contains("version 7"));
    assert!(refusal(|head| put(head, 20, &63u32.to_be_bytes())).contains("2^63"));
    assert!(refusal(|head| put(head, 24, &u64::MAX.to_be_bytes())).contains("bytes"));
    assert!(refusal(|head| put(head, 72, &CORRUPT.to_be_bytes())).contains("corrupt"));
    assert!(refusal(|head| head.truncate(60)).contains("truncated"));
    assert!(refusal(|head| put(head, 60, &u32::MAX.to_be_bytes())).contains("4294967295 snapshots"));
    assert!(refusal(|head| put(head, 60, &300u32.to_be_bytes())).contains("truncated"));
    let far = refusal(|head| {
        put(head, 8, &u64::MAX.to_be_bytes());
        put(head, 16, &20u32.to_be_bytes());
    });
    assert!(!far.is_empty());
}
