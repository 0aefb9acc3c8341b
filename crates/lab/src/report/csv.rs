//! All samples as comma-separated values (RFC 4180).

use super::Results;
use std::fmt::Write as _;

/// Header line.
pub const HEADER: &str = "experiment,began,case,contender,metric,repetition,value\n";

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

impl Results {
    /// Formats all samples as lines, without the header.
    pub fn csv(&self) -> String {
        let mut text = String::new();
        for s in &self.samples {
            let (case, contender, metric) = (quoted(&s.case), quoted(&s.contender), quoted(&s.metric));
            let _ = writeln!(text, "{},{},{case},{contender},{metric},{},{}", self.experiment, self.began, s.rep, s.value);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Scene;

    #[test]
    fn words_with_commas_stay_one_field() {
        let mut results = Results::new("x", Scene::default());
        "now".clone_into(&mut results.began);
        results.add(2, "peer", "8k 50/50, after \"4k\"", "iops", 1.5);
        assert_eq!(results.csv(), "x,now,\"8k 50/50, after \"\"4k\"\"\",peer,iops,2,1.5\n");
    }
}
