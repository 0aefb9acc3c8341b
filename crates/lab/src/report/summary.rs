//! Medians and their spread, and the formatting of figures.

use super::Results;
use serde::{Deserialize, Serialize};

/// Median and extremes of the repetitions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Load or step.
    pub case: String,
    /// Name of the figure.
    pub metric: String,
    /// Name of the target.
    pub contender: String,
    /// Median.
    pub median: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// Number of repetitions.
    pub count: usize,
}

/// Below this scale, a run only shows that an experiment works.
const SMOKE_BELOW: f64 = 0.1;

/// A figure is noisy if its repetitions differ by more than this share of their median.
const NOISY: f64 = 0.25;

impl Summary {
    /// Whether the repetitions differ too much.
    pub fn is_noisy(&self) -> bool {
        self.max - self.min > NOISY * self.median.abs()
    }
}

impl Results {
    /// Returns the warning of a run so small that it only shows that the experiment works; `None`
    /// for a larger run.
    pub fn smoke_test(&self) -> Option<String> {
        let warning = "it shows that the experiment works; its figures say nothing about speed";
        (self.scale < SMOKE_BELOW && self.absent.is_none()).then(|| format!("Smoke test at scale {}: {warning}.", self.scale))
    }

    /// Reasons to distrust the figures of this run; empty if there are none.
    pub fn doubts(&self) -> Vec<String> {
        if self.absent.is_some() {
            return Vec::new();
        }
        let mut doubts = self.disturbed.clone();
        let summaries = self.summaries();
        if summaries.iter().all(|s| s.count == 1) && !summaries.is_empty() {
            doubts.push("one repetition, so the spread is unknown".to_owned());
        }
        if self.scale < 1.0 && self.smoke_test().is_none() {
            doubts.push(format!("scale {}: shorter and smaller than specified", self.scale));
        }
        doubts
    }

    /// Medians of all figures, by case in the order of first measurement.
    pub fn summaries(&self) -> Vec<Summary> {
        let mut keys: Vec<(&str, &str, &str)> = Vec::new();
        for sample in &self.samples {
            let key = (sample.case.as_str(), sample.metric.as_str(), sample.contender.as_str());
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        let summary = |(case, metric, contender): (&str, &str, &str)| {
            let values = self.values(case, metric, contender);
            Some(Summary {
                case: case.to_owned(),
                metric: metric.to_owned(),
                contender: contender.to_owned(),
                median: median(&values)?,
                min: values.iter().copied().reduce(f64::min)?,
                max: values.iter().copied().reduce(f64::max)?,
                count: values.len(),
            })
        };
        let mut cases: Vec<&str> = Vec::new();
        for (case, ..) in &keys {
            if !cases.contains(case) {
                cases.push(case);
            }
        }
        let in_order = cases.iter().flat_map(|wanted| keys.iter().copied().filter(move |(case, ..)| case == wanted));
        in_order.filter_map(summary).collect()
    }
}

/// The middle value, or the mean of the two middle ones; `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let high = sorted.get(sorted.len() / 2)?;
    let low = sorted.get((sorted.len() - 1) / 2)?;
    Some((high + low) / 2.0)
}

pub(super) fn show(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.01 || v == 0.0 => format!("{value:.3}"),
        _ => format!("{value:.2e}"),
    }
}

pub(super) fn spread(s: &Summary) -> String {
    if s.count == 1 || s.min == s.max { show(s.median) } else { format!("{} ({}…{})", show(s.median), show(s.min), show(s.max)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Scene;

    #[test]
    fn repetitions_that_disagree_are_noisy() {
        let mut results = Results::new("x", Scene::default());
        for (rep, calm, wild) in [(0, 10.0, 10.0), (1, 11.0, 14.0), (2, 12.0, 9.0)] {
            results.add(rep, "calm", "c", "iops", calm);
            results.add(rep, "wild", "c", "iops", wild);
        }
        let noisy: Vec<bool> = results.summaries().iter().map(Summary::is_noisy).collect();
        assert_eq!(noisy, [false, true]);
        assert_eq!(results.doubts(), Vec::<String>::new());
        results.scale = 0.5;
        assert_eq!((results.doubts().len(), results.smoke_test()), (1, None));
        results.scale = 0.01;
        assert_eq!(results.doubts().len(), 0);
        assert!(results.smoke_test().is_some_and(|warning| warning.starts_with("Smoke test at scale 0.01")));
        assert!(results.markdown().starts_with("# x\n\n**Smoke test at scale 0.01"), "{}", results.markdown());
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }
}
