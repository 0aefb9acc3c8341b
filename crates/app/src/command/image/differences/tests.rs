//! Changed ranges, and a layer that lacks one.
use super::*;

/// A disk with these runs.
#[derive(Clone)]
struct Runs(Vec<(u64, Kind)>);

impl Image for Runs {
    fn open(&self) -> io::Result<Box<dyn Source>> {
        Ok(Box::new(self.clone()))
    }
}

impl Source for Runs {
    fn size(&self) -> u64 {
        self.0.iter().map(|(length, _)| length).sum()
    }

    fn runs(&mut self, offset: u64, length: u64) -> io::Result<Vec<Run>> {
        let mut at = 0;
        let all = self.0.iter().map(|(length, kind)| {
            at += length;
            Run { offset: at - length, length: *length, kind: *kind }
        });
        Ok(all.filter(|run| run.offset >= offset && run.offset < offset + length).collect())
    }

    fn read(&mut self, _: u64, into: &mut [u8]) -> io::Result<()> {
        into.fill(1);
        Ok(())
    }
}

fn changes() -> Arc<Vec<DiffExtent>> {
    let extent = |offset, length, kind| DiffExtent { offset, length, kind };
    Arc::new(vec![extent(4096, 4096, ExtentKind::Data), extent(16384, 8192, ExtentKind::Zero)])
}

#[test]
fn only_changes_are_no_keep() {
    let image = DiffImage { image: Arc::new(Runs(vec![(32768, Kind::Data)])), extents: changes() };
    let (mut source, mut at, mut found) = (image.open().expect("opened"), 0, Vec::new());
    while at < source.size() {
        let run = source.runs(at, source.size() - at).expect("runs")[0];
        found.push((run.length, run.kind));
        at += run.length;
    }
    let wanted = [(4096, Kind::Keep), (4096, Kind::Data), (8192, Kind::Keep), (8192, Kind::Zero), (8192, Kind::Keep)];
    assert_eq!(found, wanted);
}

#[test]
fn a_layer_has_all_changes_of_its_own() {
    let runs = |runs: &[(u64, Kind)]| {
        let layer = LayerImage { layer: Arc::new(Runs(runs.to_vec())), changes: changes() };
        layer.open().expect("opened").runs(0, 32768).map(|runs| runs.len())
    };
    assert_eq!(runs(&[(8192, Kind::Data), (8192, Kind::Keep), (8192, Kind::Zero), (8192, Kind::Keep)]).expect("whole"), 4);
    for lacking in [
        [(4096, Kind::Data), (12288, Kind::Keep), (16384, Kind::Zero)],
        [(8192, Kind::Data), (12288, Kind::Keep), (12288, Kind::Zero)],
        [(16384, Kind::Data), (4096, Kind::Zero), (12288, Kind::Keep)],
    ] {
        assert_eq!(runs(&lacking).expect_err("it lacks one").kind(), io::ErrorKind::InvalidData, "{lacking:?}");
    }
}
