//! The border between an image and the zeroes after it.
use super::*;

/// A disk of ones.
struct Ones(u64);

impl Image for Ones {
    fn open(&self) -> io::Result<Box<dyn Source>> {
        Ok(Box::new(Ones(self.0)))
    }
}

impl Source for Ones {
    fn size(&self) -> u64 {
        self.0
    }

    fn runs(&mut self, offset: u64, length: u64) -> io::Result<Vec<Run>> {
        assert!(offset + length <= self.0, "beyond the end");
        Ok(vec![Run { offset, length, kind: Kind::Data }])
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        assert!(offset + into.len() as u64 <= self.0, "beyond the end");
        into.fill(1);
        Ok(())
    }
}

#[test]
fn zeroes_follow_the_image() {
    let image = ExtendedImage { image: Arc::new(Ones(5000)), size: 16384 };
    let mut source = image.open().expect("opened");
    assert_eq!(source.size(), 16384);
    assert_eq!(source.runs(4096, 8192).expect("runs"), [Run { offset: 4096, length: 904, kind: Kind::Data }]);
    assert_eq!(source.runs(5000, 8192).expect("runs"), [Run { offset: 5000, length: 8192, kind: Kind::Zero }]);
    let mut read = |offset, length| {
        let mut bytes = vec![9; length];
        source.read(offset, &mut bytes).expect("read");
        bytes
    };
    assert_eq!(read(4998, 4), [1, 1, 0, 0]);
    assert_eq!(read(8192, 3), [0, 0, 0]);
    assert_eq!(read(0, 2), [1, 1]);
}
