use millpond_block::Op;
use millpond_block::Tag;
use millpond_engine::{Command, Compression, Layout, Target};

use crate::rig::Rig;

#[test]
fn a_thousand_snapshots_cost_nothing_to_read_and_return_their_space() {
    let mut rig = Rig::new(&[96], Layout::Linear);
    let volume = rig.volume("disk0", 4 << 20, Compression::Off);
    let head = Target::Head(volume);
    for block in 0..1024u64 {
        rig.request(head, Op::Write, block * 4096, 4096, &[1; 4096]).unwrap();
    }
    let before = rig.engine.pool().unwrap().allocated;
    let mut ids = Vec::new();
    for i in 0..1000u64 {
        ids.push(rig.snapshot(volume, &format!("s{i}")));
        rig.request(head, Op::Write, (i % 1024) * 4096, 4096, &[2; 4096]).unwrap();
    }
    rig.audit();
    rig.request(head, Op::Read, 0, 4096, &[]).unwrap();
    let touched = rig.engine.metrics().nodes_touched;
    rig.request(head, Op::Read, 0, 4096, &[]).unwrap();
    assert!(rig.engine.metrics().nodes_touched - touched <= 2);
    rig.command(Command::DestroySnapshots { snapshots: ids }).unwrap();
    rig.command(Command::Checkpoint).unwrap();
    rig.command(Command::Checkpoint).unwrap();
    rig.audit();
    let after = rig.engine.pool().unwrap().allocated;
    assert!(after < before + (64 << 10), "{before} -> {after}");
}

#[test]
fn rollback_keeps_newer_snapshots_and_the_old_head() {
    let mut rig = Rig::new(&[32], Layout::Linear);
    let volume = rig.volume("disk0", 4 << 20, Compression::Off);
    let head = Target::Head(volume);
    rig.request(head, Op::Write, 0, 4096, &[1; 4096]).unwrap();
    let a = rig.snapshot(volume, "a");
    rig.request(head, Op::Write, 0, 4096, &[2; 4096]).unwrap();
    let b = rig.snapshot(volume, "b");
    rig.request(head, Op::Write, 0, 4096, &[3; 4096]).unwrap();
    rig.command(Command::Rollback { snapshot: a, keep_as: "pre-rollback-1".into() }).unwrap();
    assert_eq!(rig.request(head, Op::Read, 0, 4096, &[]).unwrap(), [1; 4096]);
    assert_eq!(rig.request(Target::Snapshot(b), Op::Read, 0, 4096, &[]).unwrap(), [2; 4096]);
    let names: Vec<String> = rig.engine.snapshots().into_iter().map(|s| s.name).collect();
    assert_eq!(names, ["a", "b", "pre-rollback-1"]);
    rig.engine.start_diff(Tag(9), Some(Target::Snapshot(b)), head);
    rig.settle();
    let (_, diff) = rig.engine.pop_diff().unwrap();
    assert_eq!(diff.unwrap().len(), 1);
    let all: Vec<_> = rig.engine.snapshots().into_iter().map(|s| s.id).collect();
    for id in all.into_iter().rev() {
        rig.command(Command::DestroySnapshots { snapshots: vec![id] }).unwrap();
        rig.audit();
    }
    assert_eq!(rig.request(head, Op::Read, 0, 4096, &[]).unwrap(), [1; 4096]);
    rig.reopen();
    rig.audit();
    assert_eq!(rig.request(head, Op::Read, 0, 4096, &[]).unwrap(), [1; 4096]);
}
