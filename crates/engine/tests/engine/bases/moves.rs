//! A base moves: its blocks are fetched from another place.

use millpond_engine::{Absent, MAX_BASE_SOURCE};

use super::*;

fn source_of(harness: &Harness, base: VolumeId) -> Option<BaseInfo> {
    harness.engine.volumes().into_iter().find(|info| info.id == base)?.base
}

#[test]
fn a_base_that_moves_keeps_what_it_has_and_its_new_place() {
    let (mut harness, base, clone) = pool(64, Compression::Off);
    let (mut store, volume) = (Store::default(), base.volume);
    store.check(&mut harness, Target::Head(clone), 0, &content(0, 4 * UNIT));
    let fetched = store.fetches();
    harness.command(CatalogCommand::MoveBase { volume, source: "another store".into() }).unwrap();
    let moved = Some(BaseInfo { unit: UNIT as u32, source: "another store".into() });
    assert_eq!(source_of(&harness, volume), moved);
    // from the log, then from a checkpoint
    harness.reopen();
    assert_eq!(source_of(&harness, volume), moved);
    harness.command(Command::Checkpoint).unwrap();
    harness.settle();
    harness.reopen();
    assert_eq!(source_of(&harness, volume), moved);
    store.check(&mut harness, Target::Head(clone), 0, &content(0, 4 * UNIT));
    assert_eq!(store.fetches(), fetched, "what was fetched from the old place is kept");
    store.check(&mut harness, Target::Head(clone), 0, &content(0, SIZE));
    harness.audit();
}

#[test]
fn a_read_that_waits_goes_on_from_the_new_place() {
    let (mut harness, base, clone) = pool(64, Compression::Off);
    harness.submit(Target::Head(clone), Op::Read, 0, 4096);
    harness.settle();
    let old = harness.engine.pop_fetch().unwrap();
    harness.command(CatalogCommand::MoveBase { volume: base.volume, source: "another store".into() }).unwrap();
    assert!(harness.engine.pop_fetch().is_none(), "the chunk is being fetched");
    harness.engine.fetched(old, Err(FetchError::NotNow));
    harness.settle();
    assert!(harness.engine.pop_completion().is_none());
    let new = harness.engine.pop_fetch().unwrap();
    assert!(new.chunk == old.chunk && new.id != old.id);
    let result = Store::default().result(new);
    harness.engine.fetched(new, result);
    harness.settle();
    let done = harness.engine.pop_completion().unwrap().result.unwrap();
    assert!(done.iter().map(|piece| piece.bytes()).collect::<Vec<_>>().concat() == content(0, 4096));
}

#[test]
fn only_bases_move() {
    let (mut harness, base, clone) = pool(64, Compression::Off);
    let moved = |volume, source: &str| CatalogCommand::MoveBase { volume, source: source.to_owned() };
    assert_eq!(harness.command(moved(clone, "x")), Err(CommandError::Invalid(Invalid::NotBase)));
    assert_eq!(harness.command(moved(VolumeId(77), "x")), Err(CommandError::NotFound(Absent::Volume)));
    let long = "x".repeat(MAX_BASE_SOURCE + 1);
    assert_eq!(harness.command(moved(base.volume, &long)), Err(CommandError::Invalid(Invalid::Base)));
    harness.command(moved(base.volume, &long[1..])).unwrap();
    harness.reopen();
    assert_eq!(source_of(&harness, base.volume).unwrap().source, long[1..]);
    harness.command(CatalogCommand::DestroyVolume { volume: clone }).unwrap();
    harness.command(CatalogCommand::DestroyVolume { volume: base.volume }).unwrap();
    assert_eq!(harness.command(moved(base.volume, "x")), Err(CommandError::NotFound(Absent::Volume)));
}
