//! Formats of metrics; the tables, `docs/metrics.md`, and the shipped dashboard and alerts have the
//! same series.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use millpond_api::sample;
use millpond_block::{CacheMode, SectorProfile};
use millpond_engine::{Compression, LimitEffect, Limits, Rate, ReadCacheUse, Time, VolumeInfo, VolumeOptions};

use super::series::{Kind, Series, Subject};
use super::*;
use crate::events::EventCount;
use crate::fetch::FetchCounts;

#[test]
fn plain_text_is_the_default_and_openmetrics_has_to_be_named() {
    for (accept, format) in [
        ("", Format::Plain),
        ("*/*", Format::Plain),
        ("text/html,application/xhtml+xml,*/*;q=0.8", Format::Plain),
        ("application/openmetrics-text", Format::OpenMetrics),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1", Format::OpenMetrics),
        ("text/plain;version=0.0.4;q=1,application/openmetrics-text;q=0.5", Format::Plain),
        ("Application/OpenMetrics-Text; version=1.0.0; q=0, text/plain; q=0", Format::Plain),
        ("application/openmetrics-text;q=many", Format::OpenMetrics),
    ] {
        assert_eq!(Format::accepted(accept), format, "{accept}");
    }
}

/// A row of the page for each name.
fn rows() -> Vec<String> {
    fn of<T: Subject>(table: &[Series<T>]) -> Vec<String> {
        let row = |series: &Series<T>| {
            let kind = match series.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
                Kind::Info => "info",
            };
            let labels = [T::LABELS, series.labels].concat().join(", ");
            let labels = if labels.is_empty() { "-".to_owned() } else { labels };
            format!("| `{}` | {kind} | {labels} | {} |", series.full_name(), series.help)
        };
        table.iter().map(row).collect()
    }
    let first = [of(service::SERVICE), of(pools::POOLS), of(devices::DEVICES), of(volumes::VOLUMES)];
    [first.concat(), of(exports::EXPORTS), of(jobs::JOBS), of(policies::POLICIES)].concat()
}

fn page(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_page_has_the_row_of_each_series_and_no_other() {
    let text = page("docs/metrics.md");
    let described: Vec<&str> = text.lines().filter(|line| line.starts_with("| `millpond_")).collect();
    let rows = rows();
    let missing: Vec<&String> = rows.iter().filter(|row| !described.contains(&row.as_str())).collect();
    let missing: String = missing.into_iter().map(|row| format!("{row}\n")).collect();
    assert!(missing.is_empty(), "docs/metrics.md lacks these rows:\n{missing}");
    for row in described {
        assert!(rows.iter().any(|known| known == row), "docs/metrics.md describes a series that does not exist: {row}");
    }
}

fn policy() -> millpond_api::Policy {
    let text = r#"{"name":"p","keep":"1h:1d","keeps":24,"group":false,"at":null,"zone":"UTC","lock_seconds":null,"expire_seconds":null,
        "template":"{time}","state":"ok","reason":null,"volumes":[],"taken":3,"destroyed":1,"missed":0}"#;
    serde_json::from_str(text).expect("a policy")
}

#[test]
fn names_follow_the_conventions() {
    for row in rows() {
        let (name, rest) = row.trim_start_matches("| `").split_once("` | ").expect("a name");
        assert!(name.starts_with("millpond_") && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
        let help = rest.rsplit(" | ").next().unwrap_or_default();
        assert!(help.starts_with(|first: char| first.is_uppercase() || first.is_ascii_digit()) && !help.ends_with(". |"), "{row}");
        assert_eq!(name.ends_with("_total"), rest.starts_with("counter"), "{row}");
    }
    let names: BTreeSet<String> = rows().iter().filter_map(|row| Some(row.split('`').nth(1)?.to_owned())).collect();
    assert_eq!(names.len(), rows().len(), "each name once");
}

/// Files that use series by name.
fn shipped() -> Vec<PathBuf> {
    ["integrations/grafana/millpond.json", "integrations/prometheus/millpond.rules.yml", "integrations/prometheus/millpond.rules.test.yml"]
        .map(PathBuf::from)
        .to_vec()
}

#[test]
fn dashboard_and_alerts_use_series_that_exist() {
    let rows = rows();
    let known: BTreeSet<String> = rows
        .iter()
        .flat_map(|row| {
            let name = row.split('`').nth(1).unwrap_or_default();
            let endings: &[&str] = if row.contains("| histogram |") { &["_bucket", "_sum", "_count"] } else { &[""] };
            endings.iter().map(move |ending| format!("{name}{ending}"))
        })
        .collect();
    for path in shipped() {
        let text = page(&path.display().to_string());
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let used: BTreeSet<&str> = words.filter(|word| word.starts_with("millpond_")).collect();
        assert!(used.len() > 5, "{}", path.display());
        for name in used {
            assert!(known.contains(name), "{}: there is no series {name}", path.display());
        }
    }
}

/// Facts with a value for as many series as possible.
fn exposition() -> Exposition {
    let pool = sample::pool("degraded", &[("/dev/a", "online", "ok"), ("/dev/b", "missing", "missing")]);
    let mut limits = Limits::default();
    limits.rates_mut().into_iter().for_each(|rate| *rate = Rate { sustained: 10, ..*rate });
    let info = VolumeInfo {
        id: VolumeId(1),
        name: "v".to_owned(),
        size: 4096,
        sector: SectorProfile::S512e,
        cache: CacheMode::Writeback,
        compression: Compression::Off,
        read_only: false,
        read_cache: ReadCacheUse::default(),
        options: VolumeOptions { limits, ..VolumeOptions::default() },
        referenced_bytes: 1,
        unique_bytes: 2,
        snapshots: 3,
        origin: None,
        created: Time(0),
        base: None,
    };
    let mut load = Load::default();
    (load.io.reads, load.times[0].counts[2], load.times[0].nanos) = (7, 7, 350_000);
    let volume = VolumeUse { info, load: Box::new(load), limits: LimitEffect { waiting: 1, waited: 2, waited_nanos: 500_000_000 } };
    let pools = vec![PoolFacts { pool, load: Some(load), receives: 2, fetches: FetchCounts { chunks: 9, bytes: 5 << 18, errors: 1 } }];
    let events = vec![EventCount { kind: "daemon.started".to_owned(), severity: "info".to_owned(), count: 1 }];
    let condition = serde_json::json!({
        "kind": "pool.space", "severity": "warning", "subject": "tank", "pool": "tank", "cause": "full", "since": "2027-01-01T00:00:00Z"
    });
    let condition = serde_json::from_value(condition).expect("a condition");
    let service =
        Service { version: "1", uptime: 1.5, started: 2.5, ready: true, request_memory: (10, 1), events, conditions: vec![condition] };
    Exposition {
        service: [service],
        devices: pools.iter().flat_map(DeviceFacts::of).collect(),
        pools,
        volumes: vec![VolumeFacts { pool: "tank".to_owned(), volume, snapshots: None }],
        exports: vec![ExportFacts::from(sample::export("online"))],
        jobs: Vec::new(),
        policies: vec![policy()],
    }
}

#[test]
fn openmetrics_has_units_and_an_end() {
    let text = exposition().text(Format::OpenMetrics).expect("text");
    assert!(text.ends_with("\n# EOF\n"), "{text}");
    for line in [
        "# TYPE millpond_build info",
        "millpond_build_info{version=\"1\"} 1",
        "# UNIT millpond_pool_size_bytes bytes",
        "# TYPE millpond_pool_requests counter",
        "millpond_pool_requests_total{pool=\"tank\",operation=\"read\"} 7",
        "# TYPE millpond_volume_request_duration_seconds histogram",
        "millpond_volume_request_duration_seconds_sum{pool=\"tank\",volume=\"v\",operation=\"read\"} 0.00035",
        "millpond_events_total{kind=\"daemon.started\",severity=\"info\"} 1",
    ] {
        assert!(text.lines().any(|known| known.starts_with(line) || known == line), "{line}\n{text}");
    }
}

#[test]
fn plain_text_has_states_and_cumulative_buckets() {
    let text = exposition().text(Format::Plain).expect("text");
    assert!(!text.contains("# EOF") && !text.contains("# UNIT"), "{text}");
    let has = |line: &str| assert!(text.lines().any(|known| known == line), "{line}\n{text}");
    has("# TYPE millpond_pool_requests_total counter");
    has("millpond_pool_state{pool=\"tank\",state=\"degraded\"} 1");
    has("millpond_pool_state{pool=\"tank\",state=\"online\"} 0");
    has("millpond_device_state{pool=\"tank\",class=\"data\",device=\"/dev/b\",state=\"missing\"} 1");
    has("millpond_device_health{pool=\"tank\",class=\"data\",device=\"/dev/b\",condition=\"ok\"} 0");
    has("millpond_volume_request_duration_seconds_bucket{pool=\"tank\",volume=\"v\",operation=\"read\",le=\"6.4e-05\"} 7");
    has("millpond_volume_request_duration_seconds_bucket{pool=\"tank\",volume=\"v\",operation=\"read\",le=\"+Inf\"} 7");
    has("millpond_volume_limit_delay_seconds_total{pool=\"tank\",volume=\"v\"} 0.5");
    has("millpond_export_clients{export=\"1\",protocol=\"nbd\",pool=\"tank\",name=\"tank/v\"} 0");
    assert!(!text.contains("planned"), "no pool of the daemon is planned");
    // every name is declared, with samples or without
    for row in rows() {
        let name = row.split('`').nth(1).unwrap_or_default();
        assert!(text.contains(&format!("\n# TYPE {name} ")), "{name}");
    }
}

#[test]
fn a_pool_that_does_not_answer_has_no_counters() {
    let mut exposition = exposition();
    exposition.pools[0].load = None;
    exposition.devices = exposition.pools.iter().flat_map(DeviceFacts::of).collect();
    let text = exposition.text(Format::Plain).expect("text");
    assert!(text.contains("millpond_pool_answering{pool=\"tank\"} 0"), "{text}");
    assert!(text.contains("\nmillpond_pool_state{") && text.contains("\nmillpond_device_state{"), "{text}");
    assert!(!text.contains("\nmillpond_pool_requests_total{") && !text.contains("\nmillpond_device_operations_total{"), "{text}");
}

#[test]
fn counts_of_a_pool_begin_anew_with_its_service() {
    let scrapes = Scrapes::default();
    let (first, second) = (Timestamp::UNIX_EPOCH, Timestamp::MAX);
    let load = |reads| {
        let mut load = Load::default();
        load.io.reads = reads;
        load
    };
    let reads = |since, count| scrapes.never_less("7", since, load(count)).io.reads;
    assert_eq!([reads(first, 5), reads(first, 3), reads(first, 6), reads(second, 1), reads(second, 2)], [5, 5, 6, 1, 2]);
    scrapes.keep(std::iter::empty());
    assert_eq!(reads(second, 0), 0);
}
