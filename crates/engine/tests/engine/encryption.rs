//! Pools with encrypted blocks: this version refuses them.

use millpond_block::Op;
use millpond_engine::{Compression, Layout, Target};
use millpond_format::{BatchHeader, Encoder, Item, KeyId, Mark, Record};

use crate::harness::Harness;

const PAGE: usize = 4096;

/// Applies a change to the items of all batches on a device, each of which has a header of one page.
fn with_items(mut media: Vec<u8>, change: impl Fn(&mut Item)) -> Vec<u8> {
    for at in (0..media.len()).step_by(PAGE) {
        let Ok((header, mut items)) = BatchHeader::decode(&media[at..]) else { continue };
        let before = items.clone();
        items.iter_mut().for_each(&change);
        if items != before {
            let mut encoder = Encoder::default();
            items.iter().for_each(|item| item.encode(&mut encoder));
            header.encode(encoder.bytes(), &mut media[at..at + PAGE]);
        }
    }
    media
}

/// A pool whose labels do not name the feature has no marks and no encrypted volumes. Without this check
/// an import would drop both, and return encrypted bytes as the content of the volume.
#[test]
fn a_log_with_encryption_is_refused() {
    let mut harness = Harness::new(&[32], Layout::Linear);
    let volume = harness.volume("disk", 1 << 20, Compression::Off);
    harness.request(Target::Head(volume), Op::Write, 0, 4096, &[0xa7; 4096]).unwrap();
    let media = harness.media.remove(0);
    let refused = |change: &dyn Fn(&mut Item)| {
        let why = Harness::import(vec![with_items(media.clone(), change)]).err();
        why.is_some_and(|why| why.contains("is of a pool with encryption, which its labels do not name"))
    };
    assert!(Harness::import(vec![with_items(media.clone(), |_| ())]).is_ok());
    assert!(refused(&|item| {
        if let Item::Blocks { stored, .. } = item {
            stored.iter_mut().for_each(|block| block.mark = Mark::Encrypted);
        }
    }));
    assert!(refused(&|item| {
        if let Item::Record(Record::CreateVolume { volume }) = item {
            *item = Item::Record(Record::CreateEncrypted { volume: volume.clone(), key: KeyId(5) });
        }
    }));
}
