//! What can be drawn: a series over time, and a figure against a number.

use super::Results;
use crate::load::LoadResult;
use serde::{Deserialize, Serialize};

/// An interval of a series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tick {
    /// Requests per second in it.
    pub iops: f64,
    /// Their mean latency in microseconds; 0 when there was none.
    pub mean_us: f64,
    /// The longest in microseconds.
    pub max_us: f64,
}

/// A moment of a series.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// Seconds since the series began.
    pub at: f64,
    /// What began then.
    pub text: String,
}

/// A load over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// Whose.
    pub contender: String,
    /// Repetition, from 0.
    pub rep: usize,
    /// Seconds of an interval.
    pub interval: f64,
    /// Intervals, from the beginning.
    pub ticks: Vec<Tick>,
    /// Phases.
    pub marks: Vec<Mark>,
}

impl Timeline {
    /// From a load's series of intervals of `interval` seconds.
    pub fn of(contender: &str, rep: usize, interval: f64, load: &LoadResult, marks: Vec<Mark>) -> Timeline {
        let tick = |point: &crate::load::Point| Tick {
            iops: point.ops as f64 / interval,
            mean_us: if point.ops == 0 { 0.0 } else { point.sum_us / point.ops as f64 },
            max_us: point.max_us,
        };
        Timeline { contender: contender.to_owned(), rep, interval, ticks: load.series.iter().map(tick).collect(), marks }
    }
}

/// A figure of every contender against a number that the cases stand for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// What it shows.
    pub title: String,
    /// What the number is.
    pub axis: String,
    /// Which figure.
    pub metric: String,
    /// The numbers, rising, and the case of each.
    pub places: Vec<(f64, String)>,
}

impl Results {
    /// Medians along a curve, by contender: (number, median, smallest, largest).
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
