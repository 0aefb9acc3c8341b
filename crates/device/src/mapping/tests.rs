use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Guard, MAX_MAPPINGS, Mapping, PAGE};

/// Serialises the tests: all share the places of the process.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn file(pages: usize) -> File {
    let mut file = tempfile::tempfile().expect("a file");
    for page in 0..pages {
        file.write_all(&[page as u8 + 1; PAGE]).expect("write");
    }
    file
}

#[test]
fn what_is_written_later_is_read() {
    let _turn = turn();
    let mut file = file(4);
    let mapping = Mapping::new(file.as_fd(), 4 * PAGE as u64).expect("mapped");
    let mut two = [0; 2 * PAGE];
    assert!(mapping.read(PAGE as u64 / 2, &mut two));
    assert!(two[..PAGE / 2].iter().all(|b| *b == 1) && two[PAGE + PAGE / 2..].iter().all(|b| *b == 3));
    file.seek(SeekFrom::Start(PAGE as u64)).expect("seek");
    file.write_all(&[9; PAGE]).expect("write");
    assert!(mapping.read(PAGE as u64, &mut two[..PAGE]) && two[..PAGE] == [9; PAGE]);
    // beyond the mapping
    for (offset, length) in [(3 * PAGE as u64 + 1, PAGE), (4 * PAGE as u64, 1), (u64::MAX, 1), (0, 2 * PAGE + 1)] {
        assert_eq!(mapping.read(offset, &mut vec![0; length]), length > 2 * PAGE);
    }
}

#[test]
fn a_file_that_was_cut_short_is_read_otherwise() {
    let _turn = turn();
    let whole = file(64);
    let other = file(2);
    let mapping = Mapping::new(whole.as_fd(), 64 * PAGE as u64).expect("mapped");
    let neighbour = Mapping::new(other.as_fd(), 2 * PAGE as u64).expect("mapped");
    let mut page = [0; PAGE];
    assert!(mapping.read(63 * PAGE as u64, &mut page) && page == [64; PAGE]);
    whole.set_len(8 * PAGE as u64).expect("cut");
    assert!(!mapping.read(7 * PAGE as u64, &mut [0; 3 * PAGE]));
    // the whole mapping is refused now, because other pages may have been replaced
    assert!(!mapping.read(0, &mut page));
    assert!(neighbour.read(0, &mut page) && page == [1; PAGE]);
}

#[test]
fn too_many_are_none() {
    let _turn = turn();
    let file = file(1);
    let mut mapped = Vec::new();
    while let Some(mapping) = Mapping::new(file.as_fd(), PAGE as u64) {
        mapped.push(mapping);
        assert!(mapped.len() <= MAX_MAPPINGS);
    }
    mapped.pop();
    assert!(Mapping::new(file.as_fd(), PAGE as u64).is_some());
}

#[test]
fn watched_memory_that_is_taken_away_breaks_its_guard_alone() {
    let _turn = turn();
    let map = |file: &std::fs::File| {
        let flags = rustix::mm::MapFlags::SHARED;
        let access = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4 * PAGE, access, flags, file, 0) }.expect("map").cast::<u8>();
        (base, Guard::new(base, 4 * PAGE, PAGE).expect("a place"))
    };
    let files = [(); 2].map(|()| tempfile::tempfile_in("/dev/shm").expect("file"));
    files.iter().for_each(|file| file.set_len(4 * PAGE as u64).expect("size"));
    let [(cut, broken), (kept, whole)] = [map(&files[0]), map(&files[1])];
    files[0].set_len(PAGE as u64).expect("size");
    // SAFETY: both mappings are four pages long and belong to this test.
    unsafe {
        cut.write_volatile(1);
        assert!(!broken.is_broken(), "that page is there");
        cut.add(2 * PAGE).write_volatile(7);
        kept.add(2 * PAGE).write_volatile(7);
        assert!(broken.is_broken() && !whole.is_broken());
        assert_eq!((cut.add(2 * PAGE).read_volatile(), cut.add(3 * PAGE).read_volatile()), (7, 0), "empty pages of this process");
        drop((broken, whole));
        let _ = [cut, kept].map(|base| rustix::mm::munmap(base.cast(), 4 * PAGE).expect("unmap"));
    }
}
