//! The order of bytes, and the end after errors of either side.
use super::*;

use std::io::Read as _;
use std::os::fd::OwnedFd;

use crate::source::{Kind, Run, Source};

/// A disk whose data is the number of each block, with zeroes in every fifth MiB.
struct Numbers {
    size: u64,
    /// Byte at which reads fail.
    broken: u64,
}

const MIB: u64 = 1 << 20;

impl Image for Numbers {
    fn open(&self) -> io::Result<Box<dyn Source>> {
        Ok(Box::new(Numbers { ..*self }))
    }
}

impl Source for Numbers {
    fn size(&self) -> u64 {
        self.size
    }

    fn runs(&mut self, offset: u64, length: u64) -> io::Result<Vec<Run>> {
        let end = ((offset / MIB + 1) * MIB).min(offset + length);
        let kind = if (offset / MIB).is_multiple_of(5) { Kind::Zero } else { Kind::Data };
        Ok(vec![Run { offset, length: end - offset, kind }])
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        if (offset..offset + into.len() as u64).contains(&self.broken) {
            return Err(io::Error::other("a bad sector"));
        }
        for (byte, at) in into.iter_mut().zip(offset..) {
            *byte = if (at / MIB).is_multiple_of(5) { 0 } else { (at / 4096 % 251) as u8 + 1 };
        }
        Ok(())
    }
}

const NOWHERE: u64 = u64::MAX;

fn piped(source: &Numbers, limit: u64) -> (Result<(), CopyError>, Vec<u8>) {
    let (reader, writer) = io::pipe().expect("a pipe");
    let reading = thread::spawn(move || {
        let mut bytes = Vec::new();
        reader.take(limit).read_to_end(&mut bytes).map(|_| bytes)
    });
    let written = write(source, File::from(OwnedFd::from(writer)), &CopyProgress::default());
    (written, reading.join().expect("it ends").expect("read"))
}

#[test]
fn bytes_arrive_in_order() {
    for size in [1, 511, 4095, 4096, 23 * MIB + 1537] {
        let mut source = Numbers { size, broken: NOWHERE };
        let mut wanted = vec![0; size as usize];
        source.read(0, &mut wanted).expect("read");
        let (written, bytes) = piped(&source, NOWHERE);
        assert!(written.is_ok() && bytes == wanted, "{size} bytes: {written:?}");
    }
}

#[test]
fn an_error_of_the_disk_ends_it_after_the_bytes_before() {
    let (written, bytes) = piped(&Numbers { size: 40 * MIB, broken: 21 * MIB + 5 }, NOWHERE);
    assert!(matches!(written, Err(CopyError::Source(at, _)) if at == 21 * MIB), "{written:?}");
    assert_eq!(bytes.len() as u64, 21 * MIB);
}

#[test]
fn a_reader_that_ends_early_ends_it() {
    let (written, bytes) = piped(&Numbers { size: 400 * MIB, broken: NOWHERE }, 100);
    assert!(matches!(&written, Err(CopyError::Target(_, e)) if e.kind() == io::ErrorKind::BrokenPipe), "{written:?}");
    assert_eq!(bytes.len(), 100);
}
