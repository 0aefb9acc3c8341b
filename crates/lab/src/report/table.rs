//! The report for a terminal: a line per figure and target, the articles' figures, and omissions.

use super::summary::show;
use super::{Results, Summary, Verdict, median};
use std::fmt::Write as _;

const OURS: &str = "millpond";

/// Aligns columns to their widest cells.
fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}", width = *width));
        let line = cells.collect::<Vec<_>>().join("  ");
        let _ = writeln!(text, "  {}", line.trim_end());
    }
    text
}

impl Results {
    /// Formats figures with their spread, Millpond's ratio to each peer, and the articles' figures.
    /// Without `all`, only the first figure of each case.
    pub fn table(&self, all: bool) -> String {
        let mut text = format!("{}: {}\n  {}, `{}`\n", self.experiment, self.about, self.began, self.scene.command);
        if let Some(warning) = self.smoke_test() {
            let _ = writeln!(text, "  {warning}");
        }
        if let Some(reason) = &self.absent {
            let _ = writeln!(text, "  not measured: {reason}");
        }
        text += &columns(&self.figure_rows(all));
        if !self.claims.is_empty() {
            let mut rows =
                vec![["article", "measurement", "published", "same kind of server here", "Millpond", ""].map(str::to_owned).to_vec()];
            rows.extend(self.claims.iter().map(|c| {
                let theirs = c.theirs.as_ref().map_or("-".to_owned(), |(name, value)| format!("{} ({name})", show(*value)));
                let figure = format!("{} {}", show(c.figure), c.unit);
                vec![c.source.clone(), c.says.clone(), figure, theirs, c.ours.map_or("-".to_owned(), show), c.verdict()]
            }));
            text += &columns(&rows);
        }
        for v in &self.verdicts {
            let reached = v.reached.map_or("not measured".to_owned(), show);
            let word = if v.verdict == Verdict::Missed { "MISSED" } else { v.verdict.words() };
            let _ = writeln!(text, "  goal: {}: {} of {} {}: {reached}: {word}", v.case, v.metric, v.contender, v.goal);
        }
        for (name, reason) in &self.skipped {
            let _ = writeln!(text, "  left out: {name}: {reason}");
        }
        for doubt in self.doubts() {
            let _ = writeln!(text, "  doubtful: {doubt}");
        }
        text
    }

    fn figure_rows(&self, all: bool) -> Vec<Vec<String>> {
        let summaries = self.summaries();
        let mut rows: Vec<Vec<String>> = Vec::new();
        let mut first: Option<&Summary> = None;
        for s in &summaries {
            if first.is_none_or(|f| f.case != s.case) {
                first = Some(s);
            }
            if !all && first.is_some_and(|f| f.metric != s.metric) {
                continue;
            }
            let ratio = median(&self.ratios(&s.case, &s.metric, OURS, &s.contender)).filter(|_| s.contender != OURS);
            rows.push(vec![
                s.case.clone(),
                s.metric.clone(),
                s.contender.clone(),
                show(s.median),
                if s.count > 1 { format!("{}…{}", show(s.min), show(s.max)) } else { String::new() },
                s.count.to_string(),
                ratio.map_or(String::new(), |r| format!("{r:.2}x")),
                if s.is_noisy() { "noisy".to_owned() } else { String::new() },
            ]);
        }
        if !rows.is_empty() {
            rows.insert(0, ["case", "figure", "contender", "median", "spread", "reps", "ratio", ""].map(str::to_owned).to_vec());
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Claim, Scene};

    #[test]
    fn the_table_has_ours_the_peers_the_ratio_and_the_articles() {
        let mut results = Results::new("x", Scene::default());
        for (contender, value) in [("millpond", 30.0), ("peer", 20.0)] {
            results.add(0, contender, "c", "iops", value);
            results.add(0, contender, "c", "p99_us", value);
        }
        results.skip("zfs-zvol", "zfs is not installed");
        results.claim(Claim::new("A-lvm", "slower with one snapshot", 29.5, "").because("no device mapper"));
        let text = results.table(false);
        for part in ["1.50x", "29.5", "not measured here: no device mapper", "left out: zfs-zvol: zfs is not installed", "one repetition"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains("p99_us") && results.table(true).contains("p99_us"));
    }
}
