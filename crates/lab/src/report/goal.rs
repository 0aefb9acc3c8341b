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

    fn words(&self) -> String {
        match self {
            Goal::TimesOf(other, times) => format!("at least {times}x {other}"),
            Goal::EqualTo(other, tolerance) => format!("equal to {other}, off by at most {tolerance}"),
            Goal::AtMost(limit) => format!("at most {limit}"),
            Goal::AtLeast(limit) => format!("at least {limit}"),
            Goal::NeverAbove(limit) => format!("never above {limit}"),
            Goal::NeverBelow(limit) => format!("never below {limit}"),
        }
    }
}

/// Result of a goal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The figure reaches the goal.
    Met,
    /// The figure does not reach the goal.
    Missed,
    /// The run was smaller than the goal is meant for, or too small to exercise the measured
    /// mechanism.
    NotAtThisScale,
    /// Nothing was measured that the goal could judge.
    #[default]
    NotMeasured,
}

impl Verdict {
    /// The verdict in words.
    pub fn words(self) -> &'static str {
        match self {
            Verdict::Met => "met",
            Verdict::Missed => "missed",
            Verdict::NotAtThisScale => "not at this scale",
            Verdict::NotMeasured => "not measured",
        }
    }

    /// Whether a strict run fails: a goal that should have been judged was not reached, or not
    /// measured.
    pub fn is_failure(self) -> bool {
        matches!(self, Verdict::Missed | Verdict::NotMeasured)
    }
}

/// Runs in which a goal is judged.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Meant {
    /// In every run: a promise about data or space, which holds at any scale.
    AtEveryScale,
    /// At this scale or a larger one.
    FromScale(f64),
    /// Where the run shows that it exercised the mechanism that is judged.
    WhereExercised(bool),
}

impl Meant {
    fn includes(self, scale: f64) -> bool {
        match self {
            Meant::AtEveryScale => true,
            Meant::FromScale(least) => scale >= least,
            Meant::WhereExercised(exercised) => exercised,
        }
    }
}

/// An evaluated goal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judged {
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
    /// Result of the goal.
    #[serde(default)]
    pub verdict: Verdict,
}

impl Results {
    /// Evaluates a goal that is meant for scale 1 with the samples measured so far.
    pub fn goal(&mut self, case: &str, metric: &str, contender: &str, goal: Goal) {
        self.judge(Meant::FromScale(1.0), (case, metric, contender), goal);
    }

    /// Evaluates a goal that holds at any scale: data that must not be lost, requests that must not
    /// be refused.
    pub fn promise(&mut self, case: &str, metric: &str, contender: &str, goal: Goal) {
        self.judge(Meant::AtEveryScale, (case, metric, contender), goal);
    }

    /// Evaluates a goal about a mechanism that only runs of enough size exercise; `exercised` says
    /// whether this run did.
    pub fn goal_where(&mut self, exercised: bool, case: &str, metric: &str, contender: &str, goal: Goal) {
        self.judge(Meant::WhereExercised(exercised), (case, metric, contender), goal);
    }

    /// Counts the verdicts in words, such as `2 of 3 met, 4 not at this scale`; empty
    /// without goals.
    pub fn goal_counts(&self) -> String {
        let count = |wanted: Verdict| self.verdicts.iter().filter(|v| v.verdict == wanted).count();
        let judged = count(Verdict::Met) + count(Verdict::Missed);
        let met = (judged > 0).then(|| format!("{} of {judged} met", count(Verdict::Met)));
        let others = [Verdict::NotAtThisScale, Verdict::NotMeasured].into_iter().map(|verdict| (count(verdict), verdict.words()));
        let others = others.filter(|(count, _)| *count > 0).map(|(count, words)| format!("{count} {words}"));
        met.into_iter().chain(others).collect::<Vec<String>>().join(", ")
    }

    fn judge(&mut self, meant: Meant, (case, metric, contender): (&str, &str, &str), goal: Goal) {
        let (reached, is_met) = self.reach((case, metric, contender), &goal);
        let verdict = match reached {
            _ if !meant.includes(self.scale) => Verdict::NotAtThisScale,
            None => Verdict::NotMeasured,
            Some(_) if is_met => Verdict::Met,
            Some(_) => Verdict::Missed,
        };
        self.verdicts.push(Judged {
            case: case.to_owned(),
            metric: metric.to_owned(),
            contender: contender.to_owned(),
            goal: goal.words(),
            reached,
            verdict,
        });
    }

    /// Returns the value that a goal judges, and whether it reaches the goal.
    fn reach(&self, (case, metric, contender): (&str, &str, &str), goal: &Goal) -> (Option<f64>, bool) {
        let values = self.values(case, metric, contender);
        let compared = |value: Option<f64>, reaches: &dyn Fn(f64) -> bool| (value, value.is_some_and(reaches));
        match goal {
            Goal::TimesOf(other, times) => compared(median(&self.ratios(case, metric, contender, other)), &|ratio| ratio >= *times),
            Goal::EqualTo(other, tolerance) => {
                let off = |ratio: f64| (ratio - 1.0).abs();
                let ratios = self.ratios(case, metric, contender, other);
                let worst = ratios.into_iter().max_by(|one, two| off(*one).total_cmp(&off(*two)));
                compared(worst, &|ratio| off(ratio) <= *tolerance)
            }
            Goal::AtMost(limit) => compared(median(&values), &|value| value <= *limit),
            Goal::AtLeast(limit) => compared(median(&values), &|value| value >= *limit),
            Goal::NeverAbove(limit) => compared(values.into_iter().reduce(f64::max), &|value| value <= *limit),
            Goal::NeverBelow(limit) => compared(values.into_iter().reduce(f64::min), &|value| value >= *limit),
        }
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
        let verdicts: Vec<Verdict> = results.verdicts.iter().map(|v| v.verdict).collect();
        assert_eq!(verdicts, [Verdict::Met, Verdict::Missed, Verdict::Missed, Verdict::NotMeasured]);
        assert!(results.markdown().contains("| peer | 10.0 (5.000…30.0) | 3.00x |"), "{}", results.markdown());
    }

    #[test]
    fn a_goal_is_judged_only_at_the_scale_it_is_meant_for() {
        let judged = |scale: f64| {
            let mut results = Results::new("x", Scene::default());
            results.scale = scale;
            results.add(0, "millpond", "c", "lost", 0.0);
            results.goal("c", "lost", "millpond", Goal::NeverAbove(0.0));
            results.goal("c", "lost", "millpond", Goal::NeverBelow(1.0));
            results.goal("c", "absent", "millpond", Goal::NeverBelow(1.0));
            results.promise("c", "lost", "millpond", Goal::NeverAbove(0.0));
            results.goal_where(false, "c", "lost", "millpond", Goal::NeverAbove(0.0));
            results.goal_where(true, "c", "lost", "millpond", Goal::NeverAbove(0.0));
            (results.verdicts.iter().map(|v| v.verdict).collect::<Vec<Verdict>>(), results.goal_counts())
        };
        use Verdict::{Met, Missed, NotAtThisScale, NotMeasured};
        let (verdicts, counts) = judged(0.99);
        assert_eq!(verdicts, [NotAtThisScale, NotAtThisScale, NotAtThisScale, Met, NotAtThisScale, Met]);
        assert_eq!(counts, "2 of 2 met, 4 not at this scale");
        let (verdicts, counts) = judged(1.0);
        assert_eq!(verdicts, [Met, Missed, NotMeasured, Met, NotAtThisScale, Met]);
        assert_eq!(counts, "3 of 4 met, 1 not at this scale, 1 not measured");
        assert_eq!([Met, Missed, NotAtThisScale, NotMeasured].map(Verdict::is_failure), [false, true, false, true]);
    }
}
