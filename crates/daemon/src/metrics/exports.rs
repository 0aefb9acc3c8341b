//! Series of exports.

use millpond_api::{Export, ExportState};

use super::series::Kind::{Counter, Gauge, Info};
use super::series::{Series, Subject};

/// An export, with its id as text and its pool.
#[derive(Debug)]
pub(super) struct ExportFacts {
    id: String,
    pool: String,
    export: Export,
}

impl From<Export> for ExportFacts {
    fn from(export: Export) -> ExportFacts {
        let pool = export.name.split('/').next().unwrap_or_default().to_owned();
        ExportFacts { id: export.id.to_string(), pool, export }
    }
}

impl Subject for ExportFacts {
    const LABELS: &'static [&'static str] = &["export", "protocol", "pool", "name"];

    fn values(&self) -> Vec<&str> {
        vec![&self.id, self.export.kind.as_str(), &self.pool, &self.export.name]
    }
}

pub(super) const EXPORTS: &[Series<ExportFacts>] = &[
    Series {
        name: "millpond_export",
        kind: Info,
        help: "Address of an export, and whether writes are refused",
        labels: &["address", "readonly"],
        read: |facts, to| to.put(&[&facts.export.address, if facts.export.readonly { "true" } else { "false" }], true),
    },
    Series {
        name: "millpond_export_state",
        kind: Gauge,
        help: "1 for the state of an export, 0 for the others",
        labels: &["state"],
        read: |facts, to| to.put_state(ExportState::WORDS, facts.export.state.as_str()),
    },
    Series {
        name: "millpond_export_clients",
        kind: Gauge,
        help: "Connected clients; of a mount, open files",
        labels: &[],
        read: |facts, to| to.put(&[], facts.export.clients),
    },
    Series {
        name: "millpond_export_requests",
        kind: Counter,
        help: "Requests that were answered",
        labels: &["operation"],
        read: |facts, to| {
            let io = &facts.export.io;
            let counts = [("read", io.reads), ("write", io.writes), ("flush", io.flushes), ("discard", io.discards)];
            counts.iter().for_each(|(operation, count)| to.put(&[operation], *count));
        },
    },
    Series {
        name: "millpond_export_request_bytes",
        kind: Counter,
        help: "Bytes of reads and writes",
        labels: &["operation"],
        read: |facts, to| {
            to.put(&["read"], facts.export.io.read_bytes);
            to.put(&["write"], facts.export.io.write_bytes);
        },
    },
    Series {
        name: "millpond_export_request_errors",
        kind: Counter,
        help: "Requests that failed",
        labels: &[],
        read: |facts, to| to.put(&[], facts.export.io.errors),
    },
];
