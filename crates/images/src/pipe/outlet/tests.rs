//! Files get holes only where that is correct, and a reader that does not read delays no stop.
use super::*;

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

const NEVER: &dyn Fn() -> bool = &|| false;

/// Writes 4 KiB of data, 8 MiB of zeroes, 10 bytes of data and 100 bytes of zeroes.
fn written(file: File) {
    let mut outlet = Outlet::new(file).expect("a file");
    outlet.data(vec![7; 4096], NEVER).expect("written");
    outlet.zeroes(8 << 20, NEVER).expect("written");
    outlet.data(vec![5; 10], NEVER).expect("written");
    outlet.zeroes(100, NEVER).expect("written");
    outlet.end(NEVER).expect("complete");
}

/// Returns the content of a file that held `before` up to the position.
fn expected(before: &[u8]) -> Vec<u8> {
    let mut bytes = before.to_vec();
    bytes.extend(vec![7; 4096]);
    bytes.extend(vec![0; 8 << 20]);
    bytes.extend(vec![5; 10]);
    bytes.extend(vec![0; 100]);
    bytes
}

#[test]
fn a_truncated_file_has_holes_and_its_whole_length() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("out");
    let mut file = File::create(&path).expect("made");
    file.write_all(b"abc").expect("written");
    written(file);
    assert!(fs::read(&path).expect("read") == expected(b"abc"));
    assert!(fs::metadata(&path).expect("there").blocks() * 512 < 1 << 20, "zeroes were written");
}

#[test]
fn old_content_behind_the_position_is_overwritten_with_zeroes() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("out");
    fs::write(&path, vec![9; 10 << 20]).expect("written");
    written(OpenOptions::new().write(true).open(&path).expect("opened"));
    let mut wanted = expected(b"");
    wanted.resize(10 << 20, 9);
    assert!(fs::read(&path).expect("read") == wanted);
}

#[test]
fn a_file_that_is_appended_to_gets_every_zero() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("out");
    fs::write(&path, b"abc").expect("written");
    let mut file = OpenOptions::new().append(true).open(&path).expect("opened");
    file.seek(SeekFrom::End(0)).expect("at its end");
    written(file);
    assert!(fs::read(&path).expect("read") == expected(b"abc"));
}

#[test]
fn a_pipe_that_does_not_block_gets_everything() {
    let (mut reader, writer) = io::pipe().expect("a pipe");
    rustix::io::ioctl_fionbio(&writer, true).expect("it does not block");
    let reading = thread::spawn(move || {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).map(|_| bytes)
    });
    written(File::from(std::os::fd::OwnedFd::from(writer)));
    assert!(reading.join().expect("it ends").expect("read") == expected(b""));
}

#[test]
fn a_reader_that_ended_is_an_error() {
    let (reader, writer) = io::pipe().expect("a pipe");
    drop(reader);
    let mut outlet = Outlet::new(File::from(std::os::fd::OwnedFd::from(writer))).expect("a pipe");
    outlet.data(vec![1], NEVER).expect("it is only sent");
    assert_eq!(outlet.end(NEVER).expect_err("closed").kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn a_reader_that_does_not_read_does_not_hold_up_a_stop() {
    let (_reader, writer) = io::pipe().expect("a pipe");
    let mut outlet = Outlet::new(File::from(std::os::fd::OwnedFd::from(writer))).expect("a pipe");
    let stop = AtomicBool::new(false);
    let stopped = || stop.load(Relaxed);
    outlet.data(vec![1; 1 << 20], &stopped).expect("it is only sent");
    stop.store(true, Relaxed);
    let begun = Instant::now();
    assert_eq!(outlet.data(vec![1], &stopped).expect_err("stopped").kind(), io::ErrorKind::Interrupted);
    assert!(begun.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_writer_collects_and_passes_everything_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("out");
    let mut writer = OutletWriter::new(File::create(&path).expect("made")).expect("a file");
    let bytes: Vec<u8> = (0..5_000_000u32).map(|n| (n % 251) as u8).collect();
    for part in bytes.chunks(333_333) {
        writer.write_all(part).expect("written");
    }
    writer.end().expect("complete");
    assert!(fs::read(&path).expect("read") == bytes);
}

#[test]
fn a_writer_to_a_reader_that_does_not_read_is_stopped_by_an_error_that_ends_write_all() {
    let (_reader, writer) = io::pipe().expect("a pipe");
    let mut writer = OutletWriter::new(File::from(std::os::fd::OwnedFd::from(writer))).expect("a pipe");
    let stop = Arc::new(AtomicBool::new(false));
    writer.stop_with(&stop);
    let stopper = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        stop.store(true, Relaxed);
    });
    let error = (0..100).find_map(|_| writer.write_all(&vec![1; 1 << 20]).err()).expect("stopped");
    assert_ne!(error.kind(), io::ErrorKind::Interrupted);
    assert_eq!(writer.end().expect_err("stopped").to_string(), "interrupted");
    stopper.join().expect("it ends");
}
