//! Data of charts: a series over time, and a figure by a number.

use super::Results;
use crate::load::LoadResult;
use serde::{Deserialize, Serialize};

/// An interval of a series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tick {
    /// Requests per second in the interval.
    pub iops: f64,
    /// Their mean latency in microseconds; 0 without requests.
    pub mean_us: f64,
    /// Their maximum latency in microseconds.
    pub max_us: f64,
}

/// A marked instant of a series.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// Seconds since the start of the series.
    pub at: f64,
    /// Label of the phase that begins there; empty for an event within a phase.
    pub text: String,
}

/// A load over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// Name of the target.
    pub contender: String,
    /// Repetition, from 0.
    pub rep: usize,
    /// Length of an interval in seconds.
    pub interval: f64,
    /// Intervals from the start.
    pub ticks: Vec<Tick>,
    /// Starts of phases.
    pub marks: Vec<Mark>,
}

impl Timeline {
    /// Converts a load's series with intervals of `interval` seconds.
    pub fn of(contender: &str, rep: usize, interval: f64, load: &LoadResult, marks: Vec<Mark>) -> Timeline {
        let tick = |point: &crate::load::Point| Tick {
            iops: point.ops as f64 / interval,
            mean_us: if point.ops == 0 { 0.0 } else { point.sum_us / point.ops as f64 },
            max_us: point.max_us,
        };
        Timeline { contender: contender.to_owned(), rep, interval, ticks: load.series.iter().map(tick).collect(), marks }
    }
}

/// A recorded figure of a target over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Title of the chart, with the unit; series of one title share a chart.
    pub chart: String,
    /// Name of the target.
    pub contender: String,
    /// Repetition, from 0.
    pub rep: usize,
    /// Length of an interval in seconds.
    pub interval: f64,
    /// Values from the start.
    pub values: Vec<f64>,
    /// Marked instants.
    pub marks: Vec<Mark>,
}

/// A figure of every target, by a number for which the cases stand.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// Title of the chart.
    pub title: String,
    /// Label of the number's axis.
    pub axis: String,
    /// Name of the figure.
    pub metric: String,
    /// The numbers in rising order, each with its case.
    pub places: Vec<(f64, String)>,
}

impl Results {
    /// Medians along a curve, by target: (number, median, smallest, largest).
    pub fn lines(&self, curve: &Curve) -> Vec<(String, Vec<[f64; 4]>)> {
        let summaries = self.summaries();
        let mut lines: Vec<(String, Vec<[f64; 4]>)> = Vec::new();
        for (x, case) in &curve.places {
            for s in summaries.iter().filter(|s| s.case == *case && s.metric == curve.metric) {
                let point = [*x, s.median, s.min, s.max];
                match lines.iter_mut().find(|(name, _)| *name == s.contender) {
                    Some((_, points)) => points.push(point),
                    None => lines.push((s.contender.clone(), vec![point])),
                }
            }
        }
        lines
    }
}
