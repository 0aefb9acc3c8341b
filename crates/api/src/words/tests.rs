//! Words in JSON, in text and in schemas.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use utoipa::PartialSchema;

use crate::{
    DeviceClass, DeviceHealth, DeviceLayout, DeviceState, ExportKind, ExportState, ExtentKind, FoundState, FullCopyState, JobKind,
    JobState, PoolHealth, ScrubState, TlsCredentials, Verified, VolumeCache, VolumeCompression, VolumeSector,
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
    check::<DeviceClass>(&["data", "special", "log", "cache", "spare", "unknown"]);
    check::<DeviceLayout>(&["linear", "stripe", "mirror", "parity1", "parity2", "unknown"]);
    check::<DeviceState>(&["online", "available", "missing", "failed", "faulted", "resilvering", "replacing", "unavailable"]);
    check::<DeviceHealth>(&["ok", "slow", "failing", "silent", "full", "failed", "missing", "filling"]);
    check::<PoolHealth>(&["planned", "opening", "online", "readonly", "degraded", "closing", "faulted", "unavailable"]);
    check::<FoundState>(&["importable", "degraded", "incomplete", "outdated", "contradictory", "imported", "in-use", "no-answer"]);
    check::<JobKind>(&["reclaim", "resilver", "replace", "remove", "rejoin", "rebalance", "wipe", "scrub", "copy"]);
    check::<JobState>(&["running", "stopped"]);
    check::<ScrubState>(&["running", "done", "stopped"]);
    check::<Verified>(&["yes", "no", "unknown"]);
    check::<ExportKind>(&["nbd", "vhost-user", "fuse"]);
    check::<ExportState>(&["online", "stopped", "unavailable"]);
    check::<TlsCredentials>(&["certificate", "psk"]);
    check::<FullCopyState>(&["planned", "running", "done", "failed"]);
    check::<ExtentKind>(&["data", "zero"]);
    check::<VolumeSector>(&["512n", "512e", "4kn"]);
    check::<VolumeCache>(&["none", "directsync", "writethrough", "writeback", "unsafe"]);
    check::<VolumeCompression>(&["off", "lz4", "zstd"]);
}
