//! Runs are cut into whole blocks; a copy ends when its target does.
use super::*;

/// A disk of data.
struct Full(u64);

impl Image for Full {
    fn open(&self) -> io::Result<Box<dyn Source>> {
        Ok(Box::new(Full(self.0)))
    }
}

impl Source for Full {
    fn size(&self) -> u64 {
        self.0
    }

    fn runs(&mut self, offset: u64, length: u64) -> io::Result<Vec<Run>> {
        Ok(vec![Run { offset, length, kind: Kind::Data }])
    }

    fn read(&mut self, _: u64, into: &mut [u8]) -> io::Result<()> {
        into.fill(1);
        Ok(())
    }
}

#[test]
fn a_copy_ends_when_all_workers_fail() {
    let (send, ended) = sync_channel(1);
    thread::spawn(move || {
        let nowhere = Target::Socket(PathBuf::from("/dev/null/socket"));
        // far more pieces than are queued
        send.send(copy(&Full(8 * (AHEAD as u64) * PIECE), &nowhere, Task::Fill, &CopyProgress::default()).is_err())
    });
    assert_eq!(ended.recv_timeout(std::time::Duration::from_secs(60)), Ok(true));
}

fn cut(size: u64, runs: &[(u64, Kind)]) -> Vec<(u64, u64, bool)> {
    cut_to(BLOCK, size, runs)
}

fn cut_to(unit: u64, size: u64, runs: &[(u64, Kind)]) -> Vec<(u64, u64, bool)> {
    let mut cutter = Cutter { covered: 0, size, unit };
    let mut at = 0;
    let mut pieces = Vec::new();
    for (length, kind) in runs {
        pieces.extend(cutter.cut(Run { offset: at, length: *length, kind: *kind }));
        at += length;
    }
    pieces.into_iter().map(|piece| (piece.offset, piece.length, piece.zero)).collect()
}

#[test]
fn whole_blocks_stay_what_they_are() {
    assert_eq!(cut(16384, &[(4096, Kind::Data), (8192, Kind::Zero), (4096, Kind::Keep)]), [(0, 4096, false), (4096, 8192, true)]);
}

#[test]
fn blocks_of_two_kinds_are_data_once() {
    let mixed = [(1000, Kind::Keep), (9000, Kind::Zero), (600, Kind::Data), (5784, Kind::Keep)];
    assert_eq!(cut(16384, &mixed), [(0, 4096, false), (4096, 4096, true), (8192, 4096, false)]);
    assert_eq!(cut(8192, &[(512, Kind::Zero), (512, Kind::Zero), (7168, Kind::Data)]), [(0, 4096, false), (4096, 4096, false)]);
}

#[test]
fn the_end_of_an_odd_disk_is_covered() {
    assert_eq!(cut(5000, &[(4096, Kind::Data), (904, Kind::Zero)]), [(0, 4096, false), (4096, 904, true)]);
    assert_eq!(cut(5000, &[(4500, Kind::Keep), (500, Kind::Data)]), [(4096, 904, false)]);
    assert_eq!(cut(5000, &[(4500, Kind::Keep), (500, Kind::Zero)]), [(4096, 904, false)]);
}

#[test]
fn pieces_are_bounded() {
    let pieces = cut(10 << 20, &[(512, Kind::Keep), ((10 << 20) - 512, Kind::Data)]);
    assert_eq!(pieces.len(), 10);
    assert!(pieces.iter().all(|piece| piece.1 <= PIECE));
    assert_eq!(cut(3 << 30, &[(3 << 30, Kind::Zero)]).len(), 3);
}

#[test]
fn clusters_of_a_layer_are_whole() {
    let k = |n: u64| n << 10;
    let runs = [(k(4), Kind::Keep), (k(4), Kind::Data), (k(60), Kind::Keep), (k(188), Kind::Zero), (k(4), Kind::Keep)];
    assert_eq!(cut_to(CLUSTER, k(260), &runs), [(0, k(64), false), (k(64), k(64), false), (k(128), k(128), true)]);
    // the last cluster ends with the disk
    assert_eq!(cut_to(CLUSTER, k(68), &[(k(64), Kind::Keep), (k(4), Kind::Zero)]), [(k(64), k(4), true)]);
    assert_eq!(cut_to(CLUSTER, k(72), &[(k(68), Kind::Keep), (k(4), Kind::Zero)]), [(k(64), k(8), false)]);
}
