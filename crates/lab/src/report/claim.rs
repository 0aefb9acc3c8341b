//! A published figure of an article, compared with this run: reproduced, different, modelled, not
//! comparable, or not measured.

use super::Results;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// Result of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Measured here, and equal within the tolerance.
    Reproduced,
    /// Measured here, and different.
    Differs,
    /// Measured on a model that was fitted to the published figure, so that agreement proves nothing.
    Modelled,
    /// An absolute figure of another machine; only ratios of two such figures can be reproduced.
    NotComparable,
    /// Not measured here.
    NotMeasured,
}

/// A published figure, compared with this run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// Article and item, such as `A-chain`.
    pub source: String,
    /// Description of the figure.
    pub says: String,
    /// Published value.
    pub figure: f64,
    /// Unit; empty for a ratio.
    pub unit: String,
    /// Target that is closest to the article's system, and its value.
    pub theirs: Option<(String, f64)>,
    /// Value of Millpond.
    pub ours: Option<f64>,
    /// Result of the comparison.
    pub outcome: Outcome,
    /// Reason why it differs or was not measured.
    pub why: String,
}

impl Claim {
    /// Makes a claim that is not measured yet.
    pub fn new(source: &str, says: &str, figure: f64, unit: &str) -> Claim {
        Claim {
            source: source.to_owned(),
            says: says.to_owned(),
            figure,
            unit: unit.to_owned(),
            theirs: None,
            ours: None,
            outcome: Outcome::NotMeasured,
            why: String::new(),
        }
    }

    /// Adds the value of the closest target; reproduced if the values differ by at most the factor
    /// `within`, or are both 0. The target must not have been fitted to the figure.
    pub fn by(self, contender: &str, value: Option<f64>, within: f64) -> Claim {
        let ratio = value.map_or(0.0, |value| value / self.figure);
        let same = value == Some(self.figure) || (ratio > 0.0 && ratio.max(1.0 / ratio) <= within);
        self.compared(contender, value, if same { Outcome::Reproduced } else { Outcome::Differs })
    }

    /// Adds the value of the closest target for a figure that the article gives as a limit, such as
    /// "more than 25 %"; reproduced if the value is in `range`.
    pub fn by_range(self, contender: &str, value: Option<f64>, range: RangeInclusive<f64>) -> Claim {
        let inside = value.is_some_and(|value| range.contains(&value));
        self.compared(contender, value, if inside { Outcome::Reproduced } else { Outcome::Differs })
    }

    /// Adds the value of a model that was fitted to the figure.
    pub fn modelled_by(self, contender: &str, value: Option<f64>) -> Claim {
        self.compared(contender, value, Outcome::Modelled)
    }

    /// Adds the value of the closest target for a figure that depends on the machine.
    pub fn beside(self, contender: &str, value: Option<f64>) -> Claim {
        self.compared(contender, value, Outcome::NotComparable)
    }

    fn compared(mut self, contender: &str, value: Option<f64>, outcome: Outcome) -> Claim {
        if let Some(value) = value {
            (self.outcome, self.theirs) = (outcome, Some((contender.to_owned(), value)));
        }
        self
    }

    /// Adds the value of Millpond.
    pub fn ours(mut self, value: Option<f64>) -> Claim {
        self.ours = value;
        self
    }

    /// Adds a reason, shown unless the figure was reproduced.
    pub fn because(mut self, why: &str) -> Claim {
        why.clone_into(&mut self.why);
        self
    }

    /// Describes the result of the comparison, with the reason unless the figure was reproduced.
    pub fn verdict(&self) -> String {
        let why = if self.why.is_empty() || self.outcome == Outcome::Reproduced { String::new() } else { format!(": {}", self.why) };
        format!("{}{why}", self.outcome.words())
    }
}

impl Outcome {
    fn words(self) -> &'static str {
        match self {
            Outcome::Reproduced => "reproduced",
            Outcome::Differs => "differs",
            Outcome::Modelled => "modelled",
            Outcome::NotComparable => "not comparable",
            Outcome::NotMeasured => "not measured here",
        }
    }
}

impl Results {
    /// Adds a claim.
    pub fn claim(&mut self, claim: Claim) {
        self.claims.push(claim);
    }

    /// Counts the outcomes in words, such as `2 of 3 reproduced, 4 modelled`: reproductions out of
    /// the figures that this run could reproduce. Empty without claims.
    pub fn claim_counts(&self) -> String {
        let count = |wanted: Outcome| self.claims.iter().filter(|claim| claim.outcome == wanted).count();
        let compared = count(Outcome::Reproduced) + count(Outcome::Differs);
        let reproduced = (compared > 0).then(|| format!("{} of {compared} reproduced", count(Outcome::Reproduced)));
        let others = [Outcome::Modelled, Outcome::NotComparable, Outcome::NotMeasured].into_iter();
        let others = others.map(|outcome| (count(outcome), outcome.words())).filter(|(count, _)| *count > 0);
        let others = others.map(|(count, words)| format!("{count} {words}"));
        reproduced.into_iter().chain(others).collect::<Vec<String>>().join(", ")
    }

    /// Returns why a target was left out; `otherwise` if it was not.
    pub fn why(&self, contender: &str, otherwise: &str) -> String {
        let found = self.skipped.iter().find(|(name, _)| name == contender);
        found.map_or_else(|| otherwise.to_owned(), |(name, reason)| format!("{name} was left out: {reason}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_either_way_is_the_same() {
        let claim = |value| Claim::new("A", "x", 10.0, "").by("peer", value, 2.0).because("of that");
        assert_eq!(claim(Some(5.1)).outcome, Outcome::Reproduced);
        assert_eq!(claim(Some(19.0)).verdict(), "reproduced");
        assert_eq!(claim(Some(4.9)).verdict(), "differs: of that");
        assert_eq!(claim(Some(0.0)).outcome, Outcome::Differs, "nothing at all is not the same");
        assert_eq!(claim(None).verdict(), "not measured here: of that");
        let more = |value| Claim::new("E", "more", 1.25, "").by_range("peer", value, 1.25..=f64::INFINITY).outcome;
        assert_eq!((more(Some(1.2)), more(Some(2.0)), more(None)), (Outcome::Differs, Outcome::Reproduced, Outcome::NotMeasured));
        let nothing = |value| Claim::new("E", "lost", 0.0, "").by("peer", Some(value), 2.0).outcome;
        assert_eq!((nothing(0.0), nothing(1.0)), (Outcome::Reproduced, Outcome::Differs));
    }

    #[test]
    fn a_model_and_another_machine_reproduce_nothing() {
        let claim = || Claim::new("A", "x", 10.0, "").because("of that");
        let mut results = Results::new("x", crate::report::Scene::default());
        results.claim(claim().modelled_by("model", Some(10.0)));
        results.claim(claim().beside("peer", Some(10.0)));
        results.claim(claim().beside("peer", None));
        assert_eq!(results.claim_counts(), "1 modelled, 1 not comparable, 1 not measured here");
        results.claim(claim().by("peer", Some(10.0), 1.1));
        results.claim(claim().by("peer", Some(20.0), 1.1));
        assert_eq!(results.claim_counts(), "1 of 2 reproduced, 1 modelled, 1 not comparable, 1 not measured here");
        assert_eq!(results.claims[0].verdict(), "modelled: of that");
    }
}
