//! Looks up where a sparse file has allocated bytes on its host, and whether it keeps them.

use std::fs::read_to_string;
use std::ops::Range;
use std::os::fd::AsFd;

use millpond_block::DeviceSpace;
use rustix::fs::{self, SeekFrom, Stat};

use crate::HostDeviceKind;

/// Maximum extents of a file that are looked up. The rest counts as holes, so it is prepared once
/// more than needed.
const MOST_PIECES: usize = 1 << 16;

/// Looks up the space of a file or device of `size` bytes. If the host does not report it, it
/// counts as holes: then some of it is prepared once more than needed.
pub(crate) fn space_of(file: impl AsFd, kind: HostDeviceKind, size: u64) -> DeviceSpace {
    let Ok(stat) = fs::fstat(&file) else { return DeviceSpace::default() };
    match kind {
        HostDeviceKind::Block if discards(&stat) => DeviceSpace::default(),
        HostDeviceKind::Block => DeviceSpace { kept: true, data: std::iter::once(0..size).collect() },
        HostDeviceKind::File => {
            let blocks = u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
            // a sparse file that a pool has nearly filled still has holes, so it was not allocated
            // in full beforehand
            DeviceSpace { kept: blocks >= size, data: data_of(&file, size) }
        }
    }
}

/// Returns the ranges of a file with written bytes. Space that is only reserved (`fallocate`)
/// counts as a hole, and the first write to it is as slow.
fn data_of(file: impl AsFd, size: u64) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < size && found.len() < MOST_PIECES {
        let Ok(start) = fs::seek(&file, SeekFrom::Data(at)) else { break };
        let Ok(end) = fs::seek(&file, SeekFrom::Hole(start)) else { break };
        if start >= size || end <= start {
            break;
        }
        found.push(start..end.min(size));
        at = end;
    }
    found
}

/// True when a block device supports TRIM.
fn discards(stat: &Stat) -> bool {
    let device = format!("/sys/dev/block/{}:{}", fs::major(stat.st_rdev), fs::minor(stat.st_rdev));
    // the queue of a partition is that of its disk
    let most = ["queue", "../queue"].iter().find_map(|queue| read_to_string(format!("{device}/{queue}/discard_max_bytes")).ok());
    most.is_none_or(|most| most.trim() != "0")
}

#[cfg(test)]
mod tests {
    //! Sparse, written and allocated files.

    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn file(bytes: u64) -> File {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(bytes).expect("its length");
        file
    }

    #[test]
    fn a_sparse_file_has_bytes_where_it_was_written() {
        let file = file(16 * MIB);
        assert_eq!(space_of(&file, HostDeviceKind::File, 16 * MIB), DeviceSpace::default());
        file.write_all_at(&[1; 1 << 20], 4 * MIB).expect("a write");
        file.write_all_at(&[1; 1 << 20], 5 * MIB).expect("a write");
        file.write_all_at(&[0; 1 << 20], 9 * MIB).expect("a write");
        let space = space_of(&file, HostDeviceKind::File, 16 * MIB);
        assert_eq!(space, DeviceSpace { kept: false, data: vec![4 * MIB..6 * MIB, 9 * MIB..10 * MIB] });
        assert_eq!(space.bytes(), 3 * MIB);
        assert!(space.has(&(4 * MIB..6 * MIB)) && space.has(&(9 * MIB..10 * MIB)) && space.has(&(5 * MIB..5 * MIB + 1)));
        assert!(
            !space.has(&(3 * MIB..5 * MIB))
                && !space.has(&(5 * MIB..7 * MIB))
                && !space.has(&(0..MIB))
                && !space.has(&(12 * MIB..13 * MIB))
        );
    }

    #[test]
    fn a_file_that_was_written_in_full_keeps_its_bytes() {
        let file = file(4 * MIB);
        file.write_all_at(&vec![0; 4 << 20], 0).expect("a write");
        let space = space_of(&file, HostDeviceKind::File, 4 * MIB);
        assert!(space.kept && space.has(&(0..4 * MIB)), "{space:?}");
    }

    #[test]
    fn a_sparse_file_that_is_nearly_full_gets_space_back() {
        let file = file(100 * MIB);
        file.write_all_at(&vec![0; 99 << 20], 0).expect("a write");
        let space = space_of(&file, HostDeviceKind::File, 100 * MIB);
        assert!(!space.kept && space.has(&(0..99 * MIB)), "{space:?}");
    }
}
