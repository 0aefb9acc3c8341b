//! A figure that an article published, beside what this run measured: reproduced, different, or why it was not measured.

use super::Results;
use serde::{Deserialize, Serialize};

/// What became of an article's figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// What the article measured shows the same here, within the tolerance.
    Reproduced,
    /// It was measured here and shows something else.
    Differs,
    /// It was not measured here.
    NotMeasured,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// Article and item, as `A-chain`.
    pub source: String,
    /// What the figure is.
    pub says: String,
    /// The article's figure.
    pub figure: f64,
    /// Its unit; empty for a ratio.
    pub unit: String,
    /// The contender here that is nearest to what the article measured, and its figure.
    pub theirs: Option<(String, f64)>,
    /// Ours.
    pub ours: Option<f64>,
    /// What became of it.
    pub outcome: Outcome,
    /// Why it differs or was not measured.
    pub why: String,
}

impl Claim {
    /// A figure, not measured yet.
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

    /// With what the nearest contender reached: the same when the two differ at most by the factor `within`.
    pub fn by(mut self, contender: &str, value: Option<f64>, within: f64) -> Claim {
        if let Some(value) = value {
            let ratio = value / self.figure;
            let same = ratio > 0.0 && ratio.max(1.0 / ratio) <= within;
            self.outcome = if same { Outcome::Reproduced } else { Outcome::Differs };
            self.theirs = Some((contender.to_owned(), value));
        }
        self
    }

    /// With what we reached.
    pub fn ours(mut self, value: Option<f64>) -> Claim {
        self.ours = value;
        self
    }

    /// With the reason, told unless the figure was reproduced.
    pub fn because(mut self, why: &str) -> Claim {
        why.clone_into(&mut self.why);
        self
    }

    /// In words: what became of it.
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
    /// Notes an article's figure.
    pub fn claim(&mut self, claim: Claim) {
        self.claims.push(claim);
    }

    /// Why a contender was left out; `otherwise` where it was not.
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
