//! Bodies of fuzz tests for FUSE mounts, as plain functions.

use zerocopy::{FromBytes, IntoBytes};

use super::fuse_mount::{MemoryMount, request};
use super::{MemoryTree, Order};
use crate::fuse::wire::{AttrOut, FallocateIn, InHeader, LseekIn, OpenIn, ReadIn, ReleaseIn, SetattrIn, WriteIn, opcode};
use crate::fuse::{Image, MAX_REQUESTS};

const SIZE: usize = 256 << 10;
/// Numbers of nodes that exist, and of nodes that never existed.
const NODES: [u64; 15] = [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 14, 18, 4000, u64::MAX];

fn mount(choice: u8) -> MemoryMount {
    let mut tree = MemoryTree { now: 1_000, ..MemoryTree::default() };
    let order = match choice & 3 {
        0 | 1 => Order::InOrder,
        2 => Order::Reversed,
        _ => Order::Shuffled(0x9e37_79b9_7f4a_7c15),
    };
    for (id, name, read_only) in [(1, "a", false), (2, "b", choice & 4 != 0)] {
        let disk = tree.add_volume(id, name, SIZE);
        *disk = std::mem::replace(disk, super::MemoryDisk::new(0, Default::default())).with_order(order).with_pieces(4096);
        *disk = std::mem::replace(disk, super::MemoryDisk::new(0, Default::default())).with_read_only(read_only);
    }
    (1..40).for_each(|id| tree.add_snapshot(id, 1, &format!("s{id}")));
    if choice & 8 != 0 { MemoryMount::new(tree) } else { MemoryMount::ready(tree) }
}

/// Runs requests from hostile bytes. The bits of the first byte are: 0-1 the order of answers, 2
/// one volume is read-only, 3 no INIT was sent before. Then follow, for each request: opcode; node,
/// as an index; length in 16 bits, little-endian; a byte with flags, of which bit 0 delays answers
/// and bit 1 takes the request's header from the bytes; and the given length of arguments.
///
/// # Panics
/// When the session misbehaves: no reply or two, malformed replies, too many requests in flight, or
/// a file of another size afterwards.
pub fn fuzz_mount(data: &[u8]) {
    let Some((&choice, mut rest)) = data.split_first() else { return };
    let mut mount = mount(choice);
    let mut unique = 1 << 20;
    while let Some((&[code, node, low, high, how], after)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes([low, high])).min(after.len());
        let (arguments, next) = after.split_at(length);
        rest = next;
        unique += 2;
        let node = NODES.get(usize::from(node) % NODES.len()).copied().unwrap_or(1);
        let bytes = request(unique, u32::from(code), node, arguments);
        give(&mut mount, if how & 2 == 0 { &bytes } else { arguments }, how & 1 != 0);
    }
    finish(mount);
}

/// Runs `requests` random requests that are nearly valid: made as the kernel makes them, then
/// usually damaged in one or two bytes.
///
/// # Panics
/// See [`fuzz_mount`].
pub fn fuzz_random_mount(seed: u64, requests: u64) {
    let mut random = HostileRequests::new(seed);
    let mut left = requests;
    while left > 0 {
        let mut mount = mount(random.below(16) as u8);
        for number in 0..left.min(5_000) {
            left -= 1;
            let bytes = random.damaged(number * 2 + (1 << 20));
            let hold = random.below(8) != 0;
            give(&mut mount, &bytes, hold);
        }
        finish(mount);
    }
}

/// Feeds a request, and checks that it gets one reply, or none if it needs none.
fn give(mount: &mut MemoryMount, bytes: &[u8], hold: bool) {
    if !mount.session.has_room() {
        mount.settle();
    }
    let header = InHeader::read_from_prefix(bytes).ok().map(|(header, _)| header);
    // with the number of an outstanding reply, this test could not tell the replies apart
    if header.is_some_and(|header| mount.replies.contains_key(&header.unique)) {
        return;
    }
    let before = mount.replies.len() + mount.session.in_flight();
    mount.feed(bytes);
    let silent = header.is_none_or(|header| {
        let is_whole = header.len as usize == bytes.len();
        is_whole && matches!(header.opcode, opcode::FORGET | opcode::BATCH_FORGET)
    });
    let after = mount.replies.len() + mount.session.in_flight();
    assert_eq!(after - before, usize::from(!silent), "{header:?}");
    assert!(mount.session.in_flight() <= MAX_REQUESTS, "requests in flight are not bounded");
    if !hold {
        mount.settle();
        mount.replies.clear();
    }
}

/// Checks that the session still serves requests.
fn finish(mut mount: MemoryMount) {
    mount.settle();
    mount.replies.clear();
    if mount.ask(opcode::STATFS, 1, &[0u8; 0], &[]).0 != 0 {
        // INIT was never sent
        let image = Image::Volume(1);
        assert!(mount.tree.disk(image).is_some_and(|disk| disk.bytes().len() == SIZE && disk.log.is_empty()));
        return;
    }
    let attr: AttrOut = mount.get(opcode::GETATTR, 8, &[0u64; 2], &[]).expect("a file");
    assert_eq!((attr.attr.ino, attr.attr.size), (8, SIZE as u64));
    let read = ReadIn { offset: 0, size: 4096, ..ReadIn::default() };
    assert_eq!(mount.ask(opcode::READ, 8, &read, &[]).1.len(), 4096);
}

/// Generator of requests that are nearly valid.
pub struct HostileRequests(u64);

impl HostileRequests {
    /// Makes a generator; the same seed produces the same requests.
    pub fn new(seed: u64) -> HostileRequests {
        HostileRequests(seed | 1)
    }

    /// Returns a request as the kernel makes it, with up to two bytes damaged. Its number is
    /// `unique`.
    pub fn damaged(&mut self, unique: u64) -> Vec<u8> {
        let mut bytes = self.request(unique);
        for _ in 0..self.below(3) {
            // the number stays undamaged, because the reply contains it
            let at = self.below(bytes.len() as u64) as usize;
            if !(8..16).contains(&at)
                && let Some(byte) = bytes.get_mut(at)
            {
                *byte = self.below(256) as u8;
            }
        }
        bytes
    }

    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n.max(1)
    }

    /// Returns an offset in a file, often near the end of the file or of the range of numbers.
    fn offset(&mut self) -> u64 {
        match self.below(8) {
            0 => u64::MAX - self.below(5000),
            1 => (SIZE as u64 + self.below(9000)).saturating_sub(4500),
            2 => self.below(SIZE as u64) / 4096 * 4096,
            _ => self.below(SIZE as u64),
        }
    }

    fn request(&mut self, unique: u64) -> Vec<u8> {
        let node = NODES.get(self.below(NODES.len() as u64) as usize).copied().unwrap_or(1);
        let (fh, offset) = (self.below(4), self.offset());
        let size = self.below(9000) as u32;
        let (code, body) = match self.below(16) {
            0 | 1 => (opcode::READ, ReadIn { fh, offset, size, ..ReadIn::default() }.as_bytes().to_vec()),
            2 | 3 => {
                let size = if self.below(30) == 0 { 40_000 } else { size };
                let payload = vec![self.below(256) as u8; size as usize];
                (opcode::WRITE, [WriteIn { fh, offset, size, ..WriteIn::default() }.as_bytes(), &payload].concat())
            }
            4 => (opcode::OPEN, OpenIn { flags: self.below(4) as u32, open_flags: 0 }.as_bytes().to_vec()),
            5 => (opcode::RELEASE, ReleaseIn { fh, ..ReleaseIn::default() }.as_bytes().to_vec()),
            6 => {
                let mode = [0, 1, 3, 0x10, 0x11, 8][self.below(6) as usize];
                (opcode::FALLOCATE, FallocateIn { fh, offset, length: u64::from(size), mode, padding: 0 }.as_bytes().to_vec())
            }
            7 => (opcode::LSEEK, LseekIn { fh, offset, whence: self.below(6) as u32, padding: 0 }.as_bytes().to_vec()),
            8 => {
                let name = ["a", "b", ".snapshots", "s1", "..", "nothing"][self.below(6) as usize];
                (opcode::LOOKUP, [name.as_bytes(), &[0]].concat())
            }
            9 => (opcode::READDIR, ReadIn { offset: self.below(60), size, ..ReadIn::default() }.as_bytes().to_vec()),
            10 => {
                let (valid, size) = (self.below(1 << 10) as u32, [0, SIZE as u64][self.below(2) as usize]);
                (opcode::SETATTR, SetattrIn { valid, size, mode: 0o600, uid: 7, gid: 8, ..SetattrIn::default() }.as_bytes().to_vec())
            }
            11 => (opcode::FSYNC, [fh, 0].as_bytes().to_vec()),
            12 => (opcode::BATCH_FORGET, vec![self.below(256) as u8; self.below(300) as usize]),
            _ => (self.below(60) as u32, vec![self.below(256) as u8; self.below(300) as usize]),
        };
        request(unique, code, node, &body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::disallowed_methods, reason = "a person asks for more than fits into every test run")]
    fn requests_at_random_are_answered() {
        let requests = std::env::var("MILLPOND_FUZZ_REQUESTS").ok().and_then(|text| text.parse().ok()).unwrap_or(20_000);
        fuzz_random_mount(0x2545_f491_4f6c_dd1d, requests);
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "reads the committed corpus")]
    fn the_corpus_of_mounts_passes() {
        let folder = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/fuse_mount");
        let mut count = 0;
        for entry in std::fs::read_dir(&folder).expect("the corpus is committed") {
            let path = entry.expect("an entry").path();
            let bytes = std::fs::read(&path).expect("a file");
            assert!(std::panic::catch_unwind(|| fuzz_mount(&bytes)).is_ok(), "{}", path.display());
            count += 1;
        }
        assert!(count >= 20, "only {count} files in {}", folder.display());
    }

    proptest::proptest! {
        #[test]
        fn bytes_at_random_pass(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..600)) {
            fuzz_mount(&bytes);
        }
    }
}
