//! Byte layouts against bytes written by hand from the protocol document.

use millpond_block::{Features, Geometry, SectorProfile};

use super::*;
use crate::ExportId;

#[test]
fn request_header() {
    let bytes: [u8; REQUEST_HEADER] =
        [0x25, 0x60, 0x95, 0x13, 0x00, 0x01, 0x00, 0x06, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 2, 0];
    let header = RequestHeader {
        magic: REQUEST_MAGIC,
        flags: command_flag::FUA,
        command: command::WRITE_ZEROES,
        cookie: 0x0102_0304_0506_0708,
        offset: 4096,
        length: 512,
    };
    assert_eq!(RequestHeader::read(&bytes, Style::Simple), Some(header));
    assert_eq!(RequestHeader::read(&bytes[..27], Style::Simple), None);
    assert_eq!(*header.encode(Style::Structured), bytes);
    assert_eq!((header.payload(Style::Simple), header.payload(Style::Extended)), (0, 0));
    let header = RequestHeader { command: command::WRITE, ..header };
    assert_eq!((header.payload(Style::Simple), header.payload(Style::Extended)), (512, 512));
}

#[test]
fn extended_headers() {
    let request = [0x21, 0xe4, 0x1c, 0x71, 0, 0x20, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 2, 0, 0, 0, 0];
    let header = RequestHeader {
        magic: EXTENDED_REQUEST_MAGIC,
        flags: command_flag::PAYLOAD_LEN,
        command: command::WRITE,
        cookie: 0x0102_0304_0506_0708,
        offset: 4096,
        length: 2 << 32,
    };
    assert_eq!(RequestHeader::read(&request, Style::Extended), Some(header));
    assert_eq!(RequestHeader::read(&request[..31], Style::Extended), None);
    assert_eq!(*header.encode(Style::Extended), request);
    assert_eq!(header.payload(Style::Extended), 2 << 32);
    let reply = [0x6e, 0x8a, 0x27, 0x8c, 0, 1, 0, 6, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 24];
    assert_eq!(extended_reply(CHUNK_DONE, chunk::BLOCK_STATUS_EXT, 0x0102_0304_0506_0708, 4096, 24), reply);
}

#[test]
fn replies() {
    assert_eq!(simple_reply(None, 0x0102_0304_0506_0708), [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(simple_reply(Some(Errno::Inval), 1), [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 22, 0, 0, 0, 0, 0, 0, 0, 1]);
}

#[test]
fn chunk_headers() {
    let bytes = [0x66, 0x8e, 0x33, 0xef, 0, 1, 0x80, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0x10, 8];
    assert_eq!(structured_reply(CHUNK_DONE, chunk::ERROR, 0x0102_0304_0506_0708, 4104), bytes);
}

#[test]
fn magic_words_spell() {
    assert_eq!(&GREETING_MAGIC.to_be_bytes(), b"NBDMAGIC");
    assert_eq!(&OPTION_MAGIC.to_be_bytes(), b"IHAVEOPT");
}

#[test]
fn flags_of_exports() {
    let mut info = ExportInfo {
        id: ExportId(0),
        name: String::new(),
        description: String::new(),
        geometry: Geometry { size: 0, sector: SectorProfile::S512e },
        features: Features { read_only: false, write_cache: true },
        multi_conn: false,
        default: false,
    };
    assert_eq!(transmission_flags(&info, Style::Simple, false), 0b1100_0110_1101);
    assert_eq!(transmission_flags(&info, Style::Structured, true), 0b1100_1110_1101);
    assert_eq!(transmission_flags(&info, Style::Extended, false), 0b1100_1110_1101);
    assert_eq!(transmission_flags(&info, Style::Extended, true), 0b1_1100_1110_1101);
    info.features.write_cache = false;
    assert_eq!(transmission_flags(&info, Style::Simple, false), 0b1100_0110_1101, "a flush that does nothing is accepted");
    info.features.read_only = true;
    assert_eq!(transmission_flags(&info, Style::Simple, false), 0b100_0000_1111);
    info.multi_conn = true;
    assert_eq!(transmission_flags(&info, Style::Simple, false), 0b101_0000_1111);
}

#[test]
fn errors_of_disks() {
    let zeroes = Op::WriteZeroes { may_unmap: true };
    let cases = [
        (DiskError::Io, Op::Read, 5),
        (DiskError::NoSpace, Op::Write, 28),
        (DiskError::Invalid, Op::Write, 22),
        (DiskError::OutOfBounds, Op::Read, 22),
        (DiskError::OutOfBounds, Op::Discard, 22),
        (DiskError::OutOfBounds, Op::Cache, 22),
        (DiskError::OutOfBounds, Op::Write, 28),
        (DiskError::OutOfBounds, zeroes, 28),
        (DiskError::ReadOnly, Op::Discard, 1),
        (DiskError::NotSupported, zeroes, 95),
        (DiskError::Shutdown, Op::Flush, 108),
    ];
    for (error, op, number) in cases {
        assert_eq!(Errno::of(error, op) as u32, number, "{error:?} of {op:?}");
    }
}
