//! Results of a load.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Number of requests measured.
    pub count: u64,
    /// Mean latency.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Maximum.
    pub max_us: f64,
}

impl Latency {
    /// Computes latencies from a histogram in nanoseconds.
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

    /// Computes latencies from single measurements in microseconds.
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

/// An interval of a time series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Requests that completed in it.
    pub ops: u64,
    /// Sum of their latencies.
    #[serde(default)]
    pub sum_us: f64,
    /// Maximum of their latencies.
    pub max_us: f64,
}

/// Result of a load.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadResult {
    /// Requests per second in the measured time.
    pub iops: f64,
    /// MiB per second in the measured time.
    pub mib_s: f64,
    /// Measured seconds.
    pub secs: f64,
    /// All requests, including ramp and tail; the divisor for the server's CPU time.
    pub total_ops: u64,
    /// Requests that the server refused.
    pub errors: u64,
    /// NBD error number of the first refused request.
    pub first_error: u32,
    /// CPU time of this client per request, in microseconds.
    pub client_cpu_us: f64,
    /// Latencies of reads.
    pub read: Latency,
    /// Latencies of writes and discards, with their flush if there is one.
    pub write: Latency,
    /// Time series, if requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<Point>,
    /// Start of the measured time.
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
