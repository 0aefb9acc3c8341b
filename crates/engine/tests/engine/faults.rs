//! Map nodes that cannot be read: operations that need them wait or fail, others continue.

use millpond_block::Op;
use millpond_engine::{Busy, CatalogCommand, Command, CommandError, Compression, Invalid, Layout, Reply, Target, VolumeId};

use crate::rig::Rig;

const SIZE: u64 = 16 << 20;

/// A volume whose nodes are only on the device, not in memory.
fn filled(name: &str) -> (Rig, VolumeId) {
    let mut rig = Rig::new(&[64], Layout::Linear);
    let volume = rig.volume(name, SIZE, Compression::Off);
    for offset in (0..SIZE).step_by(1 << 20) {
        rig.request(Target::Head(volume), Op::Write, offset, 1 << 20, &vec![7; 1 << 20]).unwrap();
    }
    rig.command(Command::Checkpoint).unwrap();
    rig.reopen();
    (rig, volume)
}

#[test]
fn a_volume_that_cannot_be_walked_holds_no_other_up() {
    let (mut rig, volume) = filled("rotten");
    rig.unreadable = true;
    // the command ends although the walk cannot continue
    assert_eq!(rig.command(CatalogCommand::DestroyVolume { volume }), Ok(Reply::Done));
    rig.unreadable = false;
    let other = rig.volume("other", SIZE, Compression::Off);
    let before = rig.engine.pool().unwrap().allocated;
    assert!(before > SIZE, "{before}");
    rig.request(Target::Head(other), Op::Write, 0, 1 << 20, &vec![8; 1 << 20]).unwrap();
    rig.command(CatalogCommand::DestroyVolume { volume: other }).unwrap();
    assert!(rig.engine.pool().unwrap().allocated <= before + (64 << 10));
    // the next import tries again
    rig.reopen();
    assert!(rig.engine.pool().unwrap().allocated < 1 << 20, "{:?}", rig.engine.pool());
    rig.audit();
}

#[test]
fn what_could_not_be_cut_off_is_not_grown_over() {
    let (mut rig, volume) = filled("disk0");
    rig.unreadable = true;
    rig.command(CatalogCommand::ResizeVolume { volume, size: SIZE / 2 }).unwrap();
    let grown = rig.command(CatalogCommand::ResizeVolume { volume, size: SIZE });
    assert!(matches!(&grown, Err(CommandError::Busy(Busy::Untrimmed(_)))), "{grown:?}");
    rig.unreadable = false;
    rig.command(CatalogCommand::ResizeVolume { volume, size: SIZE }).unwrap();
    let head = Target::Head(volume);
    assert!(rig.request(head, Op::Read, SIZE - 4096, 4096, &[]).unwrap() == [0; 4096]);
    assert!(rig.request(head, Op::Read, SIZE / 2 - 4096, 4096, &[]).unwrap() == [7; 4096]);
    rig.audit();
}

#[test]
fn names_beyond_a_segment_are_refused() {
    let mut rig = Rig::new(&[16], Layout::Linear);
    let targets = (0..250).map(|i| (rig.volume(&format!("v{i}"), 4096, Compression::Off), format!("{i:0>250}"))).collect();
    let refused = rig.command(CatalogCommand::Snapshot { targets, description: String::new(), expires: None });
    assert!(matches!(&refused, Err(CommandError::Invalid(Invalid::TooManyNames))), "{refused:?}");
    assert!(rig.engine.snapshots().is_empty());
}
