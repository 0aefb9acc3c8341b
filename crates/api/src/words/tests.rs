//! Words in JSON, in text and in schemas.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use utoipa::PartialSchema;

use crate::failure::{Code, Failure};
use crate::{
    AlertState, CallerKind, ConditionKind, CreateExport, CreatePool, DeviceClass, DeviceGroup, DeviceHealth, DeviceLayout, DeviceState,
    ErrorBody, ErrorKind, EventKind, EventSeverity, ExportKind, ExportState, ExportTlsMode, ExtentKind, FoundState, FullCopyState, JobKind,
    JobState, LayoutSpec, OtherLayout, Pool, PoolHealth, PoolIo, PoolLayout, ScrubState, Severity, TlsCredentials, TlsMode, Verified,
    VolumeCache, VolumeCompression, VolumeSector, WipePool,
};

/// Checks that an enum reads and writes exactly these words, shows them, and lists them in its
/// schema, and that it keeps any other word.
fn check<T>(words: &[&str])
where
    T: Serialize + DeserializeOwned + PartialSchema + From<String> + PartialEq + std::fmt::Debug + std::fmt::Display,
{
    let schema = serde_json::to_value(T::schema()).expect("a schema");
    assert_eq!((&schema["type"], &schema["enum"]), (&json!("string"), &json!(words)));
    let about = schema["description"].as_str().expect("a description");
    for word in words {
        assert!(about.contains(&format!("- `{word}`: ")), "{about}");
    }
    for word in words.iter().chain(&["a word of a later version", ""]) {
        let value: T = serde_json::from_value(json!(word)).expect("any word is read");
        assert_eq!(serde_json::to_value(&value).expect("a word"), json!(word));
        assert_eq!(format!("{value}|{value:>30}"), format!("{word}|{word:>30}"));
        assert_eq!(value, T::from((*word).to_owned()));
        let is_other = format!("{value:?}").starts_with("Other(");
        assert_eq!(is_other, !words.contains(word), "{value:?}");
    }
    assert!(serde_json::from_value::<T>(json!(7)).is_err());
}

#[test]
fn every_word_is_read_and_written_and_other_words_are_kept() {
    let kinds: Vec<&str> = ConditionKind::ALL.iter().map(ConditionKind::as_str).collect();
    check::<ConditionKind>(&kinds);
    check::<AlertState>(&["begun", "ended", "test"]);
    check::<DeviceClass>(&["data", "special", "log", "cache", "spare", "unknown"]);
    check::<DeviceLayout>(&["linear", "stripe", "mirror", "parity1", "parity2", "unknown"]);
    check::<DeviceState>(&["online", "available", "missing", "failed", "faulted", "resilvering", "replacing", "unavailable"]);
    check::<DeviceHealth>(&["ok", "slow", "failing", "silent", "full", "failed", "missing", "filling"]);
    check::<PoolHealth>(&["planned", "opening", "online", "readonly", "degraded", "closing", "faulted", "unavailable"]);
    check::<FoundState>(&["importable", "degraded", "incomplete", "outdated", "contradictory", "newer", "imported", "in-use", "no-answer"]);
    check::<JobKind>(&["reclaim", "resilver", "replace", "remove", "rejoin", "rebalance", "wipe", "scrub", "copy"]);
    check::<JobState>(&["running", "stopped"]);
    check::<CallerKind>(&["unix", "token", "session"]);
    check::<ScrubState>(&["running", "done", "stopped"]);
    check::<Verified>(&["yes", "no", "unknown"]);
    check::<ExportKind>(&["nbd", "vhost-user", "fuse"]);
    check::<ExportState>(&["online", "stopped", "unavailable"]);
    check::<ExportTlsMode>(&["allow", "require"]);
    check::<TlsCredentials>(&["certificate", "psk"]);
    check::<FullCopyState>(&["planned", "running", "done", "failed"]);
    check::<ExtentKind>(&["data", "zero"]);
    check::<VolumeSector>(&["512n", "512e", "4kn"]);
    check::<VolumeCache>(&["none", "directsync", "writethrough", "writeback", "unsafe"]);
    check::<VolumeCompression>(&["off", "lz4", "zstd"]);
    check::<EventKind>(&EventKind::ALL.iter().map(EventKind::as_str).collect::<Vec<_>>());
    check::<EventSeverity>(&["info", "warning", "error"]);
    check::<ErrorKind>(&[
        "usage",
        "invalid",
        "not_found",
        "exists",
        "busy",
        "no_space",
        "unavailable",
        "not_supported",
        "unauthenticated",
        "forbidden",
        "too_many",
        "internal",
    ]);
}

#[test]
fn requests_and_answers_have_the_same_words() {
    for severity in [Severity::Info, Severity::Warning, Severity::Error] {
        assert_eq!(EventSeverity::from(severity).as_str(), severity.name());
        assert_eq!(json!(EventSeverity::from(severity)), json!(severity));
    }
    for mode in [TlsMode::Allow, TlsMode::Require] {
        assert_eq!(json!(ExportTlsMode::from(mode)), json!(mode));
    }
    let (width, unit) = (3, 65536);
    for layout in [
        LayoutSpec::Linear,
        LayoutSpec::Stripe { width, unit },
        LayoutSpec::Mirror { copies: 2 },
        LayoutSpec::Parity { width, parity: 1, unit },
    ] {
        assert_eq!(json!(PoolLayout::from(layout)), json!(layout));
        assert_eq!(serde_json::from_value::<PoolLayout>(json!(layout)).expect("a layout"), PoolLayout::Known(layout));
    }
}

#[test]
fn a_layout_of_a_later_version_is_kept_with_its_fields() {
    let layout = json!({ "kind": "tree", "copies": 3, "roots": ["a", "b"] });
    let pool = json!({
        "name": "tank", "id": "7", "health": "online", "readonly": false, "layout": layout, "size": 1, "allocated": 0, "free": 1,
        "devices": [], "io": PoolIo::default(), "clients": 0,
    });
    let pool: Pool = serde_json::from_value(pool).expect("a pool");
    assert!(matches!(&pool.layout, Some(PoolLayout::Other(OtherLayout { kind, fields })) if kind == "tree" && fields.len() == 2));
    assert_eq!(serde_json::to_value(&pool).expect("JSON")["layout"], layout);
}

#[test]
fn no_filter_hides_an_event_of_unknown_severity() {
    let all = [Severity::Info, Severity::Warning, Severity::Error];
    for (word, least) in [("info", 1), ("warning", 2), ("error", 3), ("fatal", 3)] {
        let severity = EventSeverity::from(word.to_owned());
        assert_eq!(all.map(|least| severity.is_at_least(least)), [0, 1, 2].map(|nth| nth < least), "{word}");
    }
}

#[test]
fn an_error_of_unknown_kind_has_its_message_and_exit_code_1() {
    let body = json!({ "error": { "kind": "too_early", "message": "the pool rests: wait a second" } });
    let body: ErrorBody = serde_json::from_value(body).expect("an error");
    assert_eq!(body.error.kind, ErrorKind::Other("too_early".to_owned()));
    let failure = Failure::from(body.error);
    assert_eq!((failure.code, failure.to_string().as_str()), (Code::Failed, "the pool rests: wait a second"));
}

#[test]
fn a_request_with_an_unknown_word_is_refused_and_its_values_are_named() {
    let refused = |why: Result<(), serde_json::Error>| why.expect_err("refused").to_string();
    let group = |class: &str, layout: &str| {
        serde_json::from_value::<DeviceGroup>(json!({ "class": class, "layout": { "kind": layout }, "devices": [] })).map(drop)
    };
    assert_eq!(refused(group("slow", "linear")), "unknown variant `slow`, expected one of `data`, `special`, `log`, `cache`, `spare`");
    assert_eq!(refused(group("data", "tree")), "unknown variant `tree`, expected one of `linear`, `stripe`, `mirror`, `parity`");
    let wipe = serde_json::from_value::<WipePool>(json!({ "mode": "melt" })).map(drop);
    assert_eq!(refused(wipe), "unknown variant `melt`, expected `discard` or `zero`");
    let export = |tls: &str| {
        let request = json!({ "kind": "nbd", "name": "tank/v", "tls": { "mode": tls } });
        serde_json::from_value::<CreateExport>(request).map(drop)
    };
    assert_eq!(refused(export("verify")), "unknown variant `verify`, expected `allow` or `require`");
    let create = serde_json::from_value::<CreatePool>(json!({ "name": "tank", "groups": [], "io": "fast" })).map(drop);
    assert_eq!(refused(create), "unknown variant `fast`, expected `direct` or `buffered`");
    let severity = serde_json::from_value::<Severity>(json!("fatal")).map(drop);
    assert_eq!(refused(severity), "unknown variant `fatal`, expected one of `info`, `warning`, `error`");
}
