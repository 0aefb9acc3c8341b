//! FUSE requests on images in memory.

use super::*;
use crate::fuse::Image;
use crate::fuse::wire::{
    Dirent, FallocateIn, LseekIn, LseekOut, OpenIn, OpenOut, ROOT, S_IFDIR, S_IFREG, StatfsOut, WriteIn, fallocate_mode, whence,
};
use crate::testing::{MemoryMount, MemoryTree};
use millpond_testing::Random;

const SIZE: usize = 256 << 10;

fn pond() -> MemoryMount {
    let mut tree = MemoryTree { now: 9_000_500, ..MemoryTree::default() };
    tree.add_volume(1, "vm1", SIZE);
    tree.add_volume(2, "vm2", 2 * SIZE);
    tree.add_snapshot(5, 1, "monday");
    MemoryMount::ready(tree)
}

fn lookup(mount: &mut MemoryMount, parent: u64, name: &str) -> Result<EntryOut, i32> {
    mount.get(opcode::LOOKUP, parent, &[0u8; 0], &[name.as_bytes(), &[0]].concat())
}

fn open(mount: &mut MemoryMount, node: u64, flags: u32) -> Result<u64, i32> {
    mount.get::<OpenOut>(opcode::OPEN, node, &OpenIn { flags, open_flags: 0 }, &[]).map(|out| out.fh)
}

fn write(mount: &mut MemoryMount, node: u64, offset: u64, bytes: &[u8]) -> Result<u32, i32> {
    let wanted = WriteIn { offset, size: bytes.len() as u32, ..WriteIn::default() };
    mount.get::<WriteOut>(opcode::WRITE, node, &wanted, bytes).map(|out| out.size)
}

fn read(mount: &mut MemoryMount, node: u64, offset: u64, size: u32) -> Result<Vec<u8>, i32> {
    match mount.ask(opcode::READ, node, &ReadIn { offset, size, ..ReadIn::default() }, &[]) {
        (0, bytes) => Ok(bytes),
        (error, _) => Err(error),
    }
}

fn allocate(mount: &mut MemoryMount, node: u64, mode: u32, offset: u64, length: u64) -> i32 {
    mount.ask(opcode::FALLOCATE, node, &FallocateIn { fh: 0, offset, length, mode, padding: 0 }, &[]).0
}

fn seek(mount: &mut MemoryMount, node: u64, offset: u64, whence: u32) -> Result<u64, i32> {
    mount.get::<LseekOut>(opcode::LSEEK, node, &LseekIn { fh: 0, offset, whence, padding: 0 }, &[]).map(|out| out.offset)
}

/// Returns all names in a directory with their node numbers, from answers of `size` bytes.
/// `between` runs after each answer.
fn list(mount: &mut MemoryMount, node: u64, size: u32, mut between: impl FnMut(&mut MemoryTree)) -> Vec<(String, u64)> {
    let (mut names, mut offset) = (Vec::new(), 0);
    loop {
        let (error, bytes) = mount.ask(opcode::READDIR, node, &ReadIn { offset, size, ..ReadIn::default() }, &[]);
        assert_eq!(error, 0);
        let mut rest = bytes.as_slice();
        if rest.is_empty() {
            return names;
        }
        while !rest.is_empty() {
            let (entry, after) = Dirent::read_from_prefix(rest).expect("an entry");
            let (name, after) = after.split_at(entry.namelen as usize);
            names.push((String::from_utf8(name.to_vec()).expect("a name"), entry.ino));
            rest = &after[(24 + name.len()).next_multiple_of(8) - 24 - name.len()..];
            offset = entry.off;
        }
        between(&mut mount.tree);
    }
}

#[test]
fn the_kernel_is_agreed_with() {
    let init = |major, minor| InitIn { major, minor, flags: u32::MAX, max_readahead: 77, ..InitIn::default() };
    let mut mount = MemoryMount::new(MemoryTree::default());
    assert_eq!(mount.ask(opcode::STATFS, ROOT, &[0u8; 0], &[]).0, errno::EIO, "before anything is agreed on");
    for old in [init(6, 99), init(7, 27)] {
        assert_eq!(mount.ask(opcode::INIT, 0, &old, &[]).0, errno::EPROTO);
    }
    let later: InitOut = mount.get(opcode::INIT, 0, &init(8, 0), &[]).expect("an answer");
    assert_eq!((later.major, mount.ask(opcode::STATFS, ROOT, &[0u8; 0], &[]).0), (7, errno::EIO), "it asks again with our version");
    let out: InitOut = mount.get(opcode::INIT, 0, &init(7, 45), &[]).expect("an answer");
    assert_eq!((out.major, out.minor, out.flags, out.max_readahead), (7, 36, FLAGS, 77));
    assert_eq!((out.max_write, out.max_pages), (1 << 20, 256));
    // kernels before 5.17 send 16 bytes
    let mut mount = MemoryMount::new(MemoryTree::default());
    let out: InitOut = mount.get(opcode::INIT, 0, &[7u32, 31, 0, init_flag::ASYNC_DIO], &[]).expect("an answer");
    assert_eq!((out.minor, out.flags), (31, init_flag::ASYNC_DIO));
    assert_eq!(mount.ask(opcode::STATFS, ROOT, &[0u8; 0], &[]).0, 0);
}

#[test]
fn names_lead_to_files_with_attributes() {
    let mut mount = pond();
    let volume = lookup(&mut mount, ROOT, "vm1").expect("a volume");
    assert_eq!((volume.attr.size, volume.attr.mode, volume.attr.nlink), (SIZE as u64, S_IFREG | 0o640, 1));
    assert_eq!((volume.attr.uid, volume.attr.gid, volume.entry_valid, volume.attr_valid), (7, 8, 0, 0));
    assert_eq!((volume.attr.mtime, volume.attr.mtimensec), (9000, 500_000_000), "it may have been written just now");
    let folder = lookup(&mut mount, ROOT, ".snapshots").expect("the snapshots");
    assert_eq!(folder.attr.mode, S_IFDIR | 0o750, "who may read may enter");
    let of_volume = lookup(&mut mount, folder.nodeid, "vm1").expect("those of a volume");
    let snapshot = lookup(&mut mount, of_volume.nodeid, "monday").expect("a snapshot");
    assert_eq!((snapshot.attr.mode, snapshot.attr.mtime), (S_IFREG | 0o440, 5));
    for (parent, name) in
        [(ROOT, "vm3"), (ROOT, "monday"), (folder.nodeid, "vm3"), (of_volume.nodeid, "vm1"), (volume.nodeid, "x"), (ROOT, "")]
    {
        assert_eq!(lookup(&mut mount, parent, name), Err(errno::ENOENT), "{name} in {parent}");
    }
    assert_eq!(lookup(&mut mount, ROOT, &"x".repeat(256)), Err(errno::ENAMETOOLONG));
    assert_eq!(lookup(&mut mount, 4000, "vm1"), Err(errno::ENOENT), "a volume that never was");
    // changes of names and sizes are visible at once
    mount.tree.volumes.get_mut(&1).expect("vm1").0 = "renamed".to_owned();
    assert_eq!(lookup(&mut mount, ROOT, "renamed").map(|entry| entry.nodeid), Ok(volume.nodeid));
    mount.tree.volumes.remove(&1);
    assert_eq!(mount.ask(opcode::GETATTR, volume.nodeid, &[0u64; 2], &[]).0, errno::ESTALE);
    assert_eq!(read(&mut mount, volume.nodeid, 0, 10), Err(errno::ESTALE));
    assert_eq!(write(&mut mount, volume.nodeid, 0, &[1]), Err(errno::ESTALE));
    let space: StatfsOut = mount.get(opcode::STATFS, ROOT, &[0u8; 0], &[]).expect("room");
    assert_eq!((space.blocks, space.bavail, space.bsize), (1 << 18, 1 << 17, 4096));
}

#[test]
fn sizes_owners_and_modes_stay() {
    let mut mount = pond();
    let node = lookup(&mut mount, ROOT, "vm1").expect("a volume").nodeid;
    let mut set = |valid, size, mode, uid| {
        let wanted = SetattrIn { valid, size, mode, uid, gid: 8, ..SetattrIn::default() };
        mount.ask(opcode::SETATTR, node, &wanted, &[]).0
    };
    assert_eq!(set(setattr_flag::SIZE, 0, 0, 0), errno::EPERM);
    assert_eq!(set(setattr_flag::SIZE, SIZE as u64 + 1, 0, 0), errno::EPERM);
    assert_eq!(set(setattr_flag::SIZE, SIZE as u64, 0, 0), 0);
    assert_eq!(set(setattr_flag::MODE, 0, 0o644, 0), errno::EPERM);
    assert_eq!(set(setattr_flag::MODE | setattr_flag::UID | setattr_flag::GID, 0, 0o100_640, 7), 0);
    assert_eq!(set(setattr_flag::UID, 0, 0, 0), errno::EPERM);
    assert_eq!(set(1 << 4 | 1 << 5 | 1 << 7, 0, 0, 0), 0, "times are passed over");
    for code in [opcode::CREATE, opcode::UNLINK, opcode::MKDIR, opcode::RENAME2] {
        assert_eq!(mount.ask(code, ROOT, &[0u64; 4], b"x\0").0, errno::EPERM);
    }
    for code in [3000, 22, 36, 47, 44] {
        assert_eq!(mount.ask(code, ROOT, &[0u64; 4], b"x\0").0, errno::ENOSYS, "{code}");
    }
}

#[test]
fn a_directory_is_told_in_pieces_while_it_changes() {
    let mut mount = pond();
    let names = |found: &[(String, u64)]| found.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    for size in [120, 4096] {
        let root = list(&mut mount, ROOT, size, |_| {});
        assert_eq!(names(&root), [".", "..", ".snapshots", "vm1", "vm2"], "{size}");
        let node = lookup(&mut mount, ROOT, "vm2").expect("a volume").nodeid;
        assert_eq!(root[4].1, node);
    }
    let folder = lookup(&mut mount, ROOT, ".snapshots").expect("the snapshots").nodeid;
    assert_eq!(names(&list(&mut mount, folder, 120, |_| {})), [".", "..", "vm1", "vm2"]);
    let of_volume = lookup(&mut mount, folder, "vm1").expect("those of a volume").nodeid;
    (100..3100).for_each(|id| mount.tree.add_snapshot(id, 1, &format!("s{id}")));
    // with each answer, one snapshot is removed and another one added
    let mut next = 50_000;
    let found = list(&mut mount, of_volume, 2000, |tree| {
        let first = tree.snapshots.range(100..).next().map(|(id, _)| *id);
        first.map(|id| tree.snapshots.remove(&id));
        if next < 50_100 {
            tree.add_snapshot(next, 1, &format!("s{next}"));
            next += 1;
        }
    });
    let mut seen = std::collections::BTreeSet::new();
    assert!(found.iter().all(|(name, _)| seen.insert(name.clone())), "one is told twice");
    assert!((1000..3100).all(|id| seen.contains(&format!("s{id}"))), "one that stayed is missing");
    assert!(seen.contains("monday") && seen.contains("s50000") && next > 50_010);
    assert_eq!(mount.ask(opcode::READDIR, 8, &ReadIn { size: 100, ..ReadIn::default() }, &[]).0, errno::ENOTDIR);
    let end = ReadIn { offset: u64::MAX, size: 100, ..ReadIn::default() };
    assert_eq!(mount.ask(opcode::READDIR, of_volume, &end, &[]), (0, Vec::new()));
}

#[test]
fn files_end_where_disks_end() {
    let mut mount = pond();
    let node = lookup(&mut mount, ROOT, "vm1").expect("a volume").nodeid;
    let size = SIZE as u64;
    assert_eq!(write(&mut mount, node, size - 3, b"abcdef"), Ok(3), "what has no room is not written");
    assert_eq!(write(&mut mount, node, size, b"x"), Err(errno::ENOSPC));
    assert_eq!(write(&mut mount, node, u64::MAX, b"x"), Err(errno::ENOSPC));
    assert_eq!(write(&mut mount, node, 0, b""), Ok(0));
    assert_eq!(read(&mut mount, node, size - 4, 100), Ok(b"\0abc".to_vec()));
    assert_eq!(read(&mut mount, node, size, 100), Ok(Vec::new()));
    assert_eq!(read(&mut mount, node, u64::MAX, 100), Ok(Vec::new()));
    use fallocate_mode::{KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE};
    for (mode, offset, length, expected) in [
        (0, 0, size, 0),
        (0, 1, size, errno::ENOSPC),
        (KEEP_SIZE, 1, size, errno::ENOSPC),
        (PUNCH_HOLE | KEEP_SIZE, size - 2, 100, 0),
        (PUNCH_HOLE | KEEP_SIZE, size + 2, 100, 0),
        (PUNCH_HOLE | KEEP_SIZE, 0, 0, errno::EINVAL),
        (PUNCH_HOLE | KEEP_SIZE, u64::MAX, 2, errno::EINVAL),
        (PUNCH_HOLE, 0, 10, errno::EOPNOTSUPP),
        (ZERO_RANGE, size - 2, 100, errno::ENOSPC),
        (ZERO_RANGE | KEEP_SIZE, size - 2, 100, 0),
        (8, 0, 4096, errno::EOPNOTSUPP),
    ] {
        assert_eq!(allocate(&mut mount, node, mode, offset, length), expected, "{mode:#x} {offset} {length}");
    }
    assert_eq!(read(&mut mount, node, size - 4, 4), Ok(b"\0a\0\0".to_vec()));
}

#[test]
fn snapshots_cannot_be_written() {
    let mut mount = pond();
    let node = super::Node::Image(Image::Snapshot(5)).number();
    assert!(open(&mut mount, node, 0).is_ok());
    assert_eq!(open(&mut mount, node, 1), Err(errno::EROFS));
    assert_eq!(open(&mut mount, node, 2), Err(errno::EROFS));
    assert_eq!(write(&mut mount, node, 0, b"x"), Err(errno::EROFS));
    assert_eq!(allocate(&mut mount, node, 3, 0, 4096), errno::EROFS);
    assert_eq!(mount.ask(opcode::FSYNC, node, &[0u64; 2], &[]).0, 0);
    assert_eq!(open(&mut mount, ROOT, 0), Err(errno::EISDIR));
    assert_eq!(mount.ask(opcode::RELEASE, node, &ReleaseIn { fh: 9, ..ReleaseIn::default() }, &[]).0, errno::EBADF);
}

/// For files opened with `O_SYNC` or `O_DSYNC`, the kernel sends no FSYNC after writes that bypass
/// the page cache.
#[test]
fn synchronous_writes_are_durable() {
    let mut mount = pond();
    let image = Image::Volume(1);
    for (flags, durable) in [(1, false), (1 | 0o10000, true), (2 | 0o4010000, true)] {
        let wanted = WriteIn { offset: 0, size: 3, flags, ..WriteIn::default() };
        let out: WriteOut = mount.get(opcode::WRITE, super::Node::Image(image).number(), &wanted, b"abc").expect("a write");
        assert_eq!(out.size, 3);
        let (request, _) = mount.tree.disk(image).and_then(|disk| disk.log.last()).expect("a request");
        assert_eq!(request.fua, durable, "{flags:o}");
    }
}

#[test]
fn bytes_go_where_they_belong() {
    let mut mount = pond();
    let node = lookup(&mut mount, ROOT, "vm1").expect("a volume").nodeid;
    let fh = open(&mut mount, node, 2).expect("open");
    let mut twin = vec![0u8; SIZE];
    let mut random = Random::new(1);
    let mut below = |n| random.below(n);
    let (mut writes, mut bytes_written) = (0, 0);
    for round in 0..400 {
        let offset = below(SIZE as u64) as usize;
        let length = (1 + if round % 20 == 0 { below(200_000) } else { below(9000) } as usize).min(SIZE - offset);
        match below(5) {
            0 | 1 => {
                let bytes: Vec<u8> = (0..length).map(|at| (at as u64 * 31 + round) as u8).collect();
                let wanted = WriteIn { fh, offset: offset as u64, size: length as u32, ..WriteIn::default() };
                let out: WriteOut = mount.get(opcode::WRITE, node, &wanted, &bytes).expect("a write");
                assert_eq!(out.size as usize, length);
                twin[offset..offset + length].copy_from_slice(&bytes);
                (writes, bytes_written) = (writes + 1, bytes_written + length as u64);
                let owned = mount.tree.disk(Image::Volume(1)).and_then(|disk| disk.log.last()).is_some_and(|(_, owned)| *owned);
                assert_eq!(owned, length >= 32 << 10, "large ones are handed over, small ones copied");
            }
            2 => {
                let mode = if below(2) == 0 { 3 } else { 0x11 };
                assert_eq!(allocate(&mut mount, node, mode, offset as u64, length as u64), 0);
                twin[offset..offset + length].fill(0);
            }
            3 => assert_eq!(read(&mut mount, node, offset as u64, length as u32).expect("a read"), &twin[offset..offset + length]),
            _ => {
                let set = |block: usize| twin[block * 4096..(block + 1) * 4096].iter().any(|byte| *byte != 0);
                for wanted in [true, false] {
                    let found = (offset / 4096..SIZE / 4096).find(|block| set(*block) == wanted).map(|block| block * 4096);
                    let found = found.map(|at| at.max(offset) as u64);
                    let expected = if wanted { found.ok_or(errno::ENXIO) } else { Ok(found.unwrap_or(SIZE as u64)) };
                    let whence = if wanted { whence::DATA } else { whence::HOLE };
                    assert_eq!(seek(&mut mount, node, offset as u64, whence), expected, "round {round}");
                }
            }
        }
    }
    assert_eq!(mount.tree.disk(Image::Volume(1)).expect("the volume").bytes(), twin);
    assert_eq!(seek(&mut mount, node, SIZE as u64, whence::HOLE), Err(errno::ENXIO));
    assert_eq!(seek(&mut mount, node, 0, 0), Err(errno::EINVAL));
    let handle = *mount.session.handles().find(|(number, _)| *number == fh).expect("an open file").1;
    assert_eq!((handle.counters.writes, handle.counters.write_bytes, handle.pid), (writes, bytes_written, 42));
    assert_eq!(mount.ask(opcode::RELEASE, node, &ReleaseIn { fh, ..ReleaseIn::default() }, &[]).0, 0);
    assert_eq!(mount.session.handles().count(), 0);
    assert!(mount.session.counters().write_bytes >= bytes_written);
}

#[test]
fn each_image_is_counted_by_itself() {
    let mut mount = pond();
    let nodes = [1, 2].map(|id| super::Node::Image(Image::Volume(id)).number());
    let add = |mount: &mut MemoryMount, node: u64, fh: u64, flags: u32| {
        let wanted = WriteIn { fh, offset: 0, size: 3, flags, ..WriteIn::default() };
        mount.get::<WriteOut>(opcode::WRITE, node, &wanted, b"abc").expect("a write");
    };
    let close = |mount: &mut MemoryMount, node: u64, fh: u64| {
        assert_eq!(mount.ask(opcode::RELEASE, node, &ReleaseIn { fh, ..ReleaseIn::default() }, &[]).0, 0);
    };
    let opened = |mount: &MemoryMount| -> Vec<(Image, u64, u64)> {
        mount.session.loads().into_iter().map(|(image, load)| (image, load.open, load.counters.write_bytes)).collect()
    };
    let [first, second] = nodes;
    let files = [first, second, first].map(|node| (node, open(&mut mount, node, 2).expect("an open file")));
    files.iter().for_each(|(node, fh)| add(&mut mount, *node, *fh, 1 | 0o10000));
    assert_eq!(opened(&mount), [(Image::Volume(1), 2, 6), (Image::Volume(2), 1, 3)]);
    files[..2].iter().for_each(|(node, fh)| close(&mut mount, *node, *fh));
    assert_eq!(opened(&mount), [(Image::Volume(1), 1, 6), (Image::Volume(2), 0, 3)], "files that are closed count on");
    // the file is closed while its write waits, and its number belongs to another file when the
    // write is answered
    let wanted = WriteIn { fh: files[2].1, offset: 0, size: 3, ..WriteIn::default() };
    mount.start(opcode::WRITE, first, &wanted, b"abc");
    mount.start(opcode::RELEASE, first, &ReleaseIn { fh: files[2].1, ..ReleaseIn::default() }, &[]);
    mount.start(opcode::OPEN, second, &OpenIn { flags: 2, open_flags: 0 }, &[]);
    mount.settle();
    assert_eq!(opened(&mount), [(Image::Volume(1), 0, 9), (Image::Volume(2), 1, 3)]);
    let all = mount.session.counters();
    assert_eq!((all.write_bytes, all.writes, all.fua_writes), (12, 4, 3));
}

#[test]
fn any_number_of_snapshots_is_opened_and_volumes_stay_counted() {
    let mut mount = pond();
    (100..5100).for_each(|id| mount.tree.add_snapshot(id, 1, &format!("s{id}")));
    let images = [Image::Volume(1)].into_iter().chain((100..5100).map(Image::Snapshot));
    for image in images {
        let node = super::Node::Image(image).number();
        let fh = open(&mut mount, node, 0).expect("an open file");
        assert_eq!(mount.ask(opcode::READ, node, &ReadIn { fh, size: 10, ..ReadIn::default() }, &[]).0, 0);
        assert_eq!(mount.ask(opcode::RELEASE, node, &ReleaseIn { fh, ..ReleaseIn::default() }, &[]).0, 0);
    }
    let loads = mount.session.loads();
    assert_eq!(
        (loads.len(), loads.first_key_value().map(|(image, load)| (*image, load.counters.reads))),
        (4096, Some((Image::Volume(1), 1)))
    );
    assert!(loads.contains_key(&Image::Snapshot(5099)) && !loads.contains_key(&Image::Snapshot(100)), "the oldest make room");
    assert_eq!(mount.session.counters().reads, 5001, "the mount has all");
}

#[test]
fn errors_of_the_disk_reach_the_caller() {
    let mut mount = pond();
    let node = lookup(&mut mount, ROOT, "vm1").expect("a volume").nodeid;
    for (error, expected) in [(DiskError::Io, errno::EIO), (DiskError::NoSpace, errno::ENOSPC), (DiskError::Shutdown, errno::ESHUTDOWN)] {
        mount.tree.volumes.get_mut(&1).expect("vm1").1.fail(Some(error));
        assert_eq!(write(&mut mount, node, 0, b"x"), Err(expected));
        assert_eq!(read(&mut mount, node, 0, 1), Err(expected));
        assert_eq!(mount.ask(opcode::FSYNC, node, &[0u64; 2], &[]).0, expected);
        assert_eq!(seek(&mut mount, node, 0, whence::DATA), Err(expected));
    }
    assert_eq!(mount.session.counters().errors, 12);
}

#[test]
fn what_is_in_flight_is_bounded() {
    let mut mount = pond();
    let node = lookup(&mut mount, ROOT, "vm2").expect("a volume").nodeid;
    for count in 0.. {
        if !mount.session.has_room() {
            assert_eq!(count, MAX_REQUESTS);
            break;
        }
        mount.start(opcode::READ, node, &ReadIn { size: 1, ..ReadIn::default() }, &[]);
    }
    mount.settle();
    mount.replies.clear();
    let all = ReadIn { size: 2 * SIZE as u32, ..ReadIn::default() };
    while mount.session.has_room() {
        mount.start(opcode::READ, node, &all, &[]);
    }
    assert_eq!(mount.session.in_flight() as u64, MAX_BYTES / (2 * SIZE as u64));
    mount.settle();
    assert!(mount.session.has_room());
}

#[test]
fn a_request_waits_for_memory_and_loses_nothing() {
    let mut mount = pond();
    let node = lookup(&mut mount, ROOT, "vm1").expect("a volume").nodeid;
    mount.tree.volumes.get_mut(&1).expect("vm1").1.room = Some(u64::from(MAX_TRANSFER) - 1);
    // a write that is not copied holds its whole buffer
    let bytes: Vec<u8> = (0..40_000u32).map(|at| (at / 11) as u8).collect();
    let wanted = WriteIn { offset: 512, size: bytes.len() as u32, ..WriteIn::default() };
    let number = mount.start(opcode::WRITE, node, &wanted, &bytes);
    assert!(mount.session.is_waiting() && !mount.session.has_room());
    assert_eq!((mount.session.in_flight(), mount.session.bytes()), (0, 0));
    mount.resume();
    assert!(mount.session.is_waiting(), "there is no more memory than before");
    mount.tree.volumes.get_mut(&1).expect("vm1").1.room = Some(u64::from(MAX_TRANSFER));
    mount.resume();
    assert!(!mount.session.is_waiting() && mount.session.has_room());
    assert_eq!((mount.session.in_flight(), mount.session.bytes()), (1, u64::from(MAX_TRANSFER)));
    mount.settle();
    assert_eq!((mount.replies.remove(&number).expect("a reply").0, mount.session.bytes()), (0, 0));
    mount.tree.volumes.get_mut(&1).expect("vm1").1.room = None;
    assert!(read(&mut mount, node, 512, 40_000).expect("read") == bytes);
}
