//! Every problem gets a line, and the worst one decides the level.

use millpond_api::sample::{export, pool};

use super::*;

fn causes_of(pools: &[Pool], exports: &[Export]) -> Vec<(Level, String)> {
    causes(pools, exports).into_iter().map(|cause| (cause.level, cause.cause)).collect()
}

#[test]
fn a_healthy_pool_has_no_cause() {
    for health in ["online", "readonly"] {
        assert_eq!(causes_of(&[pool(health, &[("/a", "online", "ok"), ("/b", "available", "ok")])], &[export("online")]), [], "{health}");
    }
}

#[test]
fn a_degraded_pool_is_one_cause_with_its_devices() {
    let degraded = pool("degraded", &[("/a", "missing", "missing"), ("/b", "online", "ok"), ("/c", "resilvering", "filling")]);
    assert_eq!(causes_of(&[degraded], &[export("online")]), [(Level::Error, "pool tank is degraded: why degraded".to_owned())]);
    let stopped = pool("faulted", &[("/a", "faulted", "ok")]);
    let causes = causes_of(&[stopped], &[export("stopped")]);
    assert_eq!(causes, [(Level::Error, "pool tank is faulted: why faulted".to_owned())]);
}

#[test]
fn devices_and_room_are_warned_of() {
    let mut unwell = pool("online", &[("/a", "online", "slow"), ("/b", "missing", "missing"), ("/c", "online", "silent")]);
    if let Some(device) = unwell.devices.get_mut(1) {
        device.class = DeviceClass::Spare;
    }
    (unwell.allocated, unwell.free, unwell.full_in_seconds) = (910, 90, Some(7200));
    let causes = causes_of(&[unwell], &[]);
    assert!(causes.iter().all(|(level, _)| *level == Level::Warning));
    let lines: Vec<&str> = causes.iter().map(|(_, line)| line.as_str()).collect();
    assert_eq!(
        lines,
        [
            "pool tank: data device /a is slow: why slow",
            "pool tank: spare device /b is missing: why missing",
            "pool tank: data device /c is silent: why silent",
            "pool tank is 91 % full, 90B of 1000B are free; full in about 2 h",
        ]
    );
}

#[test]
fn an_export_that_is_not_served_is_a_cause_of_its_own() {
    let cause = "export 1 (tank/v) is unavailable: why not".to_owned();
    assert_eq!(causes_of(&[pool("online", &[])], &[export("unavailable")]), [(Level::Error, cause.clone())]);
    // the user has exported the pool, so this is a warning only
    assert_eq!(causes_of(&[], &[export("unavailable")]), [(Level::Warning, cause)]);
}

#[test]
fn what_was_lost_and_what_waits_is_warned_of() {
    let mut pool = pool("online", &[("/a", "online", "ok")]);
    pool.fell_back = Some("a map node is damaged".to_owned());
    pool.removal_waits = Some("member 1 is away".to_owned());
    let lines: Vec<String> = causes_of(&[pool], &[]).into_iter().map(|(_, line)| line).collect();
    assert_eq!(
        lines,
        [
            "pool tank: the removal of a device waits: member 1 is away",
            "pool tank went back to an older checkpoint, without the log after it: a map node is damaged",
        ]
    );
}
