//! What a load measured.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Requests measured.
    pub count: u64,
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 99 of 100 are at most this.
    pub p99_us: f64,
    /// 999 of 1,000 are at most this.
    pub p999_us: f64,
    /// Longest.
    pub max_us: f64,
}

impl Latency {
    /// Of a histogram in nanoseconds.
    pub fn of(histogram: &Histogram<u64>) -> Latency {
        if histogram.is_empty() {
            return Latency::default();
        }
        let us = |nanoseconds: u64| nanoseconds as f64 / 1e3;
        Latency {
            count: histogram.len(),
            mean_us: histogram.mean() / 1e3,
            p50_us: us(histogram.value_at_quantile(0.5)),
            p99_us: us(histogram.value_at_quantile(0.99)),
            p999_us: us(histogram.value_at_quantile(0.999)),
            max_us: us(histogram.max()),
        }
    }

    /// Of single measurements in microseconds.
    pub fn of_samples(samples: &[f64]) -> Latency {
        if samples.is_empty() {
            return Latency::default();
        }
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let rank = |quantile: f64| {
            let index = ((sorted.len() as f64 * quantile).ceil() as usize).clamp(1, sorted.len()) - 1;
            sorted[index]
        };
        Latency {
            count: sorted.len() as u64,
            mean_us: sorted.iter().sum::<f64>() / sorted.len() as f64,
            p50_us: rank(0.5),
            p99_us: rank(0.99),
            p999_us: rank(0.999),
            max_us: rank(1.0),
        }
    }
}

/// One interval of a series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Requests that ended in it.
    pub ops: u64,
    /// The sum of their latencies.
    #[serde(default)]
    pub sum_us: f64,
    /// The longest of them.
    pub max_us: f64,
}

/// What a load did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadResult {
    /// Requests per second in the measured time.
    pub iops: f64,
    /// MiB per second in the measured time.
    pub mib_s: f64,
    /// Measured seconds.
    pub secs: f64,
    /// All requests, ramp and tail included: what the server's CPU time is divided by.
    pub total_ops: u64,
    /// Requests that the server refused.
    pub errors: u64,
    /// NBD error number of the first.
    pub first_error: u32,
    /// CPU microseconds of this client per request.
    pub client_cpu_us: f64,
    /// Of reads.
    pub read: Latency,
    /// Of writes and discards (with their flush where one was asked for).
    pub write: Latency,
    /// Per interval, if asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<Point>,
    /// When the measured time began.
    #[serde(skip)]
    pub started: Option<Instant>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_samples_are_samples() {
        let samples: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let latency = Latency::of_samples(&samples);
        assert_eq!((latency.p50_us, latency.p99_us, latency.max_us, latency.count), (50.0, 99.0, 100.0, 100));
        assert_eq!(Latency::of_samples(&[]), Latency::default());
    }
}
