use super::*;

fn load(kind: Kind) -> Load {
    Load { kind, flushes_per_write: None, fua_share: None, reads_again: None }
}

#[test]
fn the_load_decides() {
    for (load, best) in [
        (load(Kind::Database), "none"),
        (Load { reads_again: Some(0.5), ..load(Kind::Database) }, "writeback"),
        (load(Kind::Machine), "writeback"),
        (Load { reads_again: Some(0.02), ..load(Kind::Machine) }, "none"),
        (load(Kind::Scratch), "unsafe"),
        (load(Kind::NoFlush), "writethrough"),
        (Load { reads_again: Some(0.0), ..load(Kind::NoFlush) }, "directsync"),
        (Load { flushes_per_write: Some(0.0), ..load(Kind::Unknown) }, "writethrough"),
        (Load { flushes_per_write: Some(0.01), ..load(Kind::Unknown) }, "writeback"),
    ] {
        let rows = load.judge();
        let chosen: Vec<&str> = rows.iter().filter(|row| row.advice == "best").map(|row| row.mode).collect();
        assert_eq!(chosen, [best], "{load:?}");
        // `unsafe` is never advised for a load whose data must survive a power cut.
        let ignored = rows.iter().find(|row| row.mode == "unsafe").map(|row| row.advice);
        assert_eq!(ignored, Some(if load.kind == Kind::Scratch { "best" } else { "no" }));
    }
}

#[test]
fn who_flushes_each_write_loses_little_by_strict_modes() {
    let strict = |flushes| {
        let rows = Load { flushes_per_write: Some(flushes), ..load(Kind::Database) }.judge();
        rows.into_iter().find(|row| row.mode == "directsync").map(|row| row.advice)
    };
    assert_eq!((strict(0.9), strict(0.05)), (Some("fits"), Some("slow")));
}

#[test]
fn counters_tell_what_is_sure_alone() {
    let io = GuestIo { writes: 1000, flushes: 40, fua_writes: 10, read_bytes: 4 << 20, ..GuestIo::default() };
    let load = Load::measured(Kind::Unknown, [&io, &GuestIo::default()].into_iter(), 1 << 20);
    assert_eq!((load.flushes_per_write, load.fua_share, load.reads_again), (Some(0.05), Some(0.01), Some(0.75)));
    let few = GuestIo { writes: 99, read_bytes: 1 << 20, ..GuestIo::default() };
    let load = Load::measured(Kind::Unknown, [&few].into_iter(), 4 << 20);
    assert_eq!((load.flushes_per_write, load.reads_again), (None, Some(0.0)), "99 writes say nothing");
}
