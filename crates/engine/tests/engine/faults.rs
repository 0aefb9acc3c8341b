//! Map nodes that cannot be read: operations that need them wait or fail, others continue.

use millpond_block::Op;
use millpond_engine::{Busy, CatalogCommand, Command, CommandError, Compression, Invalid, Layout, Reply, Target, VolumeId};

use crate::harness::Harness;

const SIZE: u64 = 16 << 20;

/// A volume whose nodes are only on the device, not in memory.
fn filled(name: &str) -> (Harness, VolumeId) {
    let mut harness = Harness::new(&[64], Layout::Linear);
    let volume = harness.volume(name, SIZE, Compression::Off);
    for offset in (0..SIZE).step_by(1 << 20) {
        harness.request(Target::Head(volume), Op::Write, offset, 1 << 20, &vec![7; 1 << 20]).unwrap();
    }
    harness.command(Command::Checkpoint).unwrap();
    harness.reopen();
    (harness, volume)
}

#[test]
fn a_volume_that_cannot_be_walked_holds_no_other_up() {
    let (mut harness, volume) = filled("rotten");
    harness.unreadable = true;
    // the command ends although the walk cannot continue
    assert_eq!(harness.command(CatalogCommand::DestroyVolume { volume }), Ok(Reply::Done));
    harness.unreadable = false;
    let other = harness.volume("other", SIZE, Compression::Off);
    let before = harness.engine.pool().unwrap().allocated;
    assert!(before > SIZE, "{before}");
    harness.request(Target::Head(other), Op::Write, 0, 1 << 20, &vec![8; 1 << 20]).unwrap();
    harness.command(CatalogCommand::DestroyVolume { volume: other }).unwrap();
    assert!(harness.engine.pool().unwrap().allocated <= before + (64 << 10));
    // the next import tries again
    harness.reopen();
    assert!(harness.engine.pool().unwrap().allocated < 1 << 20, "{:?}", harness.engine.pool());
    harness.audit();
}

#[test]
fn what_could_not_be_cut_off_is_not_grown_over() {
    let (mut harness, volume) = filled("disk0");
    harness.unreadable = true;
    harness.command(CatalogCommand::ResizeVolume { volume, size: SIZE / 2 }).unwrap();
    let grown = harness.command(CatalogCommand::ResizeVolume { volume, size: SIZE });
    assert!(matches!(&grown, Err(CommandError::Busy(Busy::Untrimmed(_)))), "{grown:?}");
    harness.unreadable = false;
    harness.command(CatalogCommand::ResizeVolume { volume, size: SIZE }).unwrap();
    let head = Target::Head(volume);
    assert!(harness.request(head, Op::Read, SIZE - 4096, 4096, &[]).unwrap() == [0; 4096]);
    assert!(harness.request(head, Op::Read, SIZE / 2 - 4096, 4096, &[]).unwrap() == [7; 4096]);
    harness.audit();
}

#[test]
fn names_beyond_a_segment_are_refused() {
    let mut harness = Harness::new(&[16], Layout::Linear);
    let targets = (0..250).map(|i| (harness.volume(&format!("v{i}"), 4096, Compression::Off), format!("{i:0>250}"))).collect();
    let refused = harness.command(CatalogCommand::Snapshot { targets, description: String::new(), expires: None, lock_millis: None });
    assert!(matches!(&refused, Err(CommandError::Invalid(Invalid::TooManyNames))), "{refused:?}");
    assert!(harness.engine.snapshots().is_empty());
}
