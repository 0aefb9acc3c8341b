//! A published figure of an article, compared with this run: reproduced, different, or not
//! measured.

use super::Results;
use serde::{Deserialize, Serialize};

/// Result of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Measured here, and equal within the tolerance.
    Reproduced,
    /// Measured here, and different.
    Differs,
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
    /// `within`.
    pub fn by(mut self, contender: &str, value: Option<f64>, within: f64) -> Claim {
        if let Some(value) = value {
            let ratio = value / self.figure;
            let same = ratio > 0.0 && ratio.max(1.0 / ratio) <= within;
            self.outcome = if same { Outcome::Reproduced } else { Outcome::Differs };
            self.theirs = Some((contender.to_owned(), value));
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

    /// Describes the result of the comparison.
    pub fn verdict(&self) -> String {
        let why = if self.why.is_empty() { String::new() } else { format!(": {}", self.why) };
        match self.outcome {
            Outcome::Reproduced => "reproduced".to_owned(),
            Outcome::Differs => format!("differs{why}"),
            Outcome::NotMeasured => format!("not measured here{why}"),
        }
    }
}

impl Results {
    /// Adds a claim.
    pub fn claim(&mut self, claim: Claim) {
        self.claims.push(claim);
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
    }
}
