//! Bytes are collected from a slow writer, and waiting for one delays no stop.
use super::*;

use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

fn pipe() -> (Input, io::PipeWriter) {
    let (reader, writer) = io::pipe().expect("a pipe");
    (Input::new(File::from(OwnedFd::from(reader))), writer)
}

#[test]
fn short_writes_make_whole_pieces() {
    let (mut input, mut writer) = pipe();
    let writing = thread::spawn(move || {
        for n in 0..=255u8 {
            writer.write_all(&[n; 3]).expect("written");
            thread::sleep(Duration::from_micros(50));
        }
    });
    let wanted: Vec<u8> = (0..=255u8).flat_map(|n| [n; 3]).collect();
    assert_eq!(input.next(700, &|| false).expect("read"), wanted[..700]);
    assert_eq!(input.next(700, &|| false).expect("read"), wanted[700..]);
    assert_eq!(input.next(700, &|| false).expect("read").len(), 0, "it is the end");
    writing.join().expect("it ends");
}

#[test]
fn a_pipe_that_does_not_block_is_waited_for() {
    let (reader, mut writer) = io::pipe().expect("a pipe");
    rustix::io::ioctl_fionbio(&reader, true).expect("it does not block");
    let mut input = Input::new(File::from(OwnedFd::from(reader)));
    let writing = thread::spawn(move || {
        thread::sleep(Duration::from_millis(150));
        writer.write_all(b"late").expect("written");
    });
    assert_eq!(input.next(700, &|| false).expect("read"), b"late");
    writing.join().expect("it ends");
}

#[test]
fn a_writer_that_does_not_write_delays_no_stop() {
    let (mut input, _writer) = pipe();
    let stop = AtomicBool::new(false);
    let asked = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(50));
            stop.store(true, Relaxed);
        });
        input.next(1, &|| stop.load(Relaxed))
    });
    assert_eq!(asked.expect_err("stopped").kind(), io::ErrorKind::Interrupted);
}

#[test]
fn a_reader_counts_and_stops_with_an_error_that_ends_read_exact() {
    let (reader, mut writer) = io::pipe().expect("a pipe");
    let progress = CopyProgress::default();
    let mut input = InputReader::new(File::from(OwnedFd::from(reader)), &progress);
    writer.write_all(b"some").expect("written");
    input.read_exact(&mut [0; 4]).expect("read");
    assert_eq!(progress.done.load(Relaxed), 4);
    let stopped = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(50));
            progress.stop.store(true, Relaxed);
        });
        input.read_exact(&mut [0; 4])
    });
    assert_eq!(stopped.expect_err("stopped").to_string(), "interrupted");
}
