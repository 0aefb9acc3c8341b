//! Goals of figures, and their evaluation.

use super::{Results, median};
use serde::{Deserialize, Serialize};

/// Condition on a figure.
#[derive(Clone, Debug, PartialEq)]
pub enum Goal {
    /// The median of the ratios to this target in the same repetition is at least this.
    TimesOf(String, f64),
    /// In every repetition equal to this target's figure, within this relative tolerance.
    EqualTo(String, f64),
    /// The median is at most this.
    AtMost(f64),
    /// The median is at least this.
    AtLeast(f64),
    /// The largest value of all repetitions is at most this.
    NeverAbove(f64),
    /// The smallest value of all repetitions is at least this.
    NeverBelow(f64),
}

impl Goal {
    /// Makes a [`Goal::TimesOf`].
    pub fn times_of(other: &str, times: f64) -> Goal {
        Goal::TimesOf(other.to_owned(), times)
    }
}

/// An evaluated goal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Load or step.
    pub case: String,
    /// Name of the figure.
    pub metric: String,
    /// Name of the target.
    #[serde(default)]
    pub contender: String,
    /// Description of the goal.
    pub goal: String,
    /// Value reached; `None` if nothing was measured.
    pub reached: Option<f64>,
    /// Whether the goal is reached.
    pub met: bool,
}

impl Results {
    /// Evaluates a goal with the samples measured so far.
    pub fn goal(&mut self, case: &str, metric: &str, contender: &str, goal: Goal) {
        let values = self.values(case, metric, contender);
        let (reached, met, words) = match goal {
            Goal::TimesOf(other, times) => {
                let ratio = median(&self.ratios(case, metric, contender, &other));
                (ratio, ratio.is_some_and(|r| r >= times), format!("at least {times}x {other}"))
            }
            Goal::EqualTo(other, tolerance) => {
                let off = self.ratios(case, metric, contender, &other).into_iter().map(|r| (r - 1.0).abs()).reduce(f64::max);
                (off.map(|off| 1.0 + off), off.is_some_and(|off| off <= tolerance), format!("equal to {other}, off by at most {tolerance}"))
            }
            Goal::AtMost(limit) => (median(&values), median(&values).is_some_and(|v| v <= limit), format!("at most {limit}")),
            Goal::AtLeast(limit) => (median(&values), median(&values).is_some_and(|v| v >= limit), format!("at least {limit}")),
            Goal::NeverAbove(limit) => {
                let worst = values.iter().copied().reduce(f64::max);
                (worst, worst.is_some_and(|v| v <= limit), format!("never above {limit}"))
            }
            Goal::NeverBelow(limit) => {
                let worst = values.iter().copied().reduce(f64::min);
                (worst, worst.is_some_and(|v| v >= limit), format!("never below {limit}"))
            }
        };
        self.verdicts.push(Verdict {
            case: case.to_owned(),
            metric: metric.to_owned(),
            contender: contender.to_owned(),
            goal: words,
            reached,
            met,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Scene;

    #[test]
    fn ratios_pair_by_repetition() {
        let mut results = Results::new("x", Scene::default());
        for (rep, ours, theirs) in [(0, 10.0, 5.0), (1, 40.0, 10.0), (2, 90.0, 30.0)] {
            results.add(rep, "millpond", "c", "iops", ours);
            results.add(rep, "peer", "c", "iops", theirs);
        }
        assert_eq!(results.ratios("c", "iops", "millpond", "peer"), [2.0, 4.0, 3.0]);
        results.goal("c", "iops", "millpond", Goal::times_of("peer", 3.0));
        results.goal("c", "iops", "millpond", Goal::times_of("peer", 3.1));
        results.goal("c", "iops", "millpond", Goal::NeverBelow(11.0));
        results.goal("c", "iops", "millpond", Goal::times_of("absent", 1.0));
        let met: Vec<bool> = results.verdicts.iter().map(|v| v.met).collect();
        assert_eq!(met, [true, false, false, false], "what was not measured is not met");
        assert!(results.markdown().contains("| peer | 10.0 (5.000…30.0) | 3.00x |"), "{}", results.markdown());
    }
}
