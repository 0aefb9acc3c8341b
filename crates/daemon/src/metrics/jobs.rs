//! Series of background jobs. They exist while their job runs.

use millpond_api::{Job, JobState};

use super::series::Kind::Gauge;
use super::series::{Series, Subject};

impl Subject for Job {
    const LABELS: &'static [&'static str] = &["pool", "kind", "job"];

    fn values(&self) -> Vec<&str> {
        vec![&self.pool, self.kind.as_str(), &self.id]
    }
}

pub(super) const JOBS: &[Series<Job>] = &[
    Series {
        name: "millpond_job_state",
        kind: Gauge,
        help: "1 for the state of a job, 0 for the others",
        labels: &["state"],
        read: |job, to| to.put_state(JobState::WORDS, job.state.as_str()),
    },
    Series {
        name: "millpond_job_remaining_bytes",
        kind: Gauge,
        help: "Bytes that remain",
        labels: &[],
        read: |job, to| to.put(&[], job.remaining_bytes),
    },
    Series {
        name: "millpond_job_done_bytes",
        kind: Gauge,
        help: "Bytes done; 0 if the total is not known",
        labels: &[],
        read: |job, to| to.put(&[], job.done_bytes),
    },
    Series {
        name: "millpond_job_bytes_per_second",
        kind: Gauge,
        help: "Recent rate, if it is known",
        labels: &[],
        read: |job, to| job.rate.into_iter().for_each(|rate| to.put(&[], rate)),
    },
    Series {
        name: "millpond_job_remaining_seconds",
        kind: Gauge,
        help: "Time until the end at the recent rate, if it is known",
        labels: &[],
        read: |job, to| job.eta_seconds.into_iter().for_each(|left| to.put(&[], left)),
    },
    Series {
        name: "millpond_job_errors",
        kind: Gauge,
        help: "Pieces that no copy has",
        labels: &[],
        read: |job, to| to.put(&[], job.errors),
    },
];
