use millpond_block::{Buf, BufSlice, DeviceSlot, IoId};

use super::*;
use millpond_testing::Random;

fn io(kind: IoKind) -> Io {
    Io { id: IoId(7), device: DeviceSlot(0), kind, urgent: false }
}

fn piece(byte: u8, pages: usize) -> BufSlice {
    let mut buf = Buf::zeroed(pages * PAGE);
    buf.bytes_mut().fill(byte);
    BufSlice::new(buf, 0..pages * PAGE)
}

fn read(device: &mut MemoryDevice, offset: u64, length: usize) -> Vec<u8> {
    let mut buf = Buf::zeroed(length);
    buf.bytes_mut().fill(0xee);
    let done = device.execute(io(IoKind::Read { offset, length, buf }));
    assert_eq!((done.id, done.result), (IoId(7), Ok(())));
    done.buf.expect("a read gives its buffer back").bytes()[..length].to_vec()
}

#[test]
fn writes_are_read_back_and_discards_give_memory_back() {
    let mut device = MemoryDevice::new(64 * GRAIN + 5);
    assert_eq!(device.geometry().size, 64 * GRAIN);
    let pieces = vec![piece(1, 1), piece(2, 2)];
    assert_eq!(device.execute(io(IoKind::Write { offset: 3 * GRAIN, pieces })).result, Ok(()));
    assert_eq!(device.resident(), 3 * GRAIN);
    let got = read(&mut device, 2 * GRAIN, 5 * PAGE);
    let want: Vec<u8> = [0, 1, 2, 2, 0].iter().flat_map(|&byte| [byte; PAGE]).collect();
    assert!(got == want);
    assert_eq!(device.execute(io(IoKind::Discard { offset: 4 * GRAIN, length: GRAIN })).result, Ok(()));
    assert_eq!(device.resident(), 2 * GRAIN);
    let want: Vec<u8> = [1, 0, 2].iter().flat_map(|&byte| [byte; PAGE]).collect();
    assert!(read(&mut device, 3 * GRAIN, 3 * PAGE) == want);
    assert_eq!(device.execute(io(IoKind::Flush)).result, Ok(()));
}

#[test]
fn the_end_is_guarded() {
    let mut device = MemoryDevice::new(2 * GRAIN);
    let outside = Err(DeviceError::Failed(INVALID));
    assert_eq!(device.execute(io(IoKind::Write { offset: GRAIN, pieces: vec![piece(1, 2)] })).result, outside);
    assert_eq!(device.execute(io(IoKind::Discard { offset: u64::MAX - 4095, length: GRAIN })).result, outside);
    assert_eq!(device.resident(), 0);
    device.write(GRAIN, &[9; PAGE]);
    let got = read(&mut device, GRAIN, 2 * PAGE);
    assert!(got[..PAGE] == [9; PAGE] && got[PAGE..] == [0; PAGE]);
    let done = device.execute(io(IoKind::Read { offset: 0, length: 2 * PAGE, buf: Buf::zeroed(PAGE) }));
    assert_eq!(done.result, outside);
    assert!(done.buf.is_some());
}

#[test]
fn unaligned_inspection_matches_a_flat_copy() {
    let mut device = MemoryDevice::new(8 * GRAIN);
    let mut twin = vec![0u8; 8 * PAGE];
    let mut random = Random::new(1);
    for round in 0..500u64 {
        let at = random.index(twin.len());
        let length = random.index(9000).min(twin.len() - at);
        if round % 2 == 0 {
            let bytes = vec![round as u8 | 1; length];
            device.write(at as u64, &bytes);
            twin[at..at + length].copy_from_slice(&bytes);
        } else {
            let mut got = vec![0xaa; length];
            device.read(at as u64, &mut got);
            assert!(got == twin[at..at + length], "round {round}: {length} bytes at {at}");
        }
    }
}
