//! The report of one experiment as Markdown: goals, then a table per case.

use super::summary::{show, spread};
use super::{Results, Summary, Verdict, median};
use std::fmt::Write as _;

/// Formats a verdict for a table; a missed goal stands out.
pub(super) fn verdict_cell(verdict: Verdict) -> String {
    if verdict == Verdict::Missed { format!("**{}**", verdict.words()) } else { verdict.words().to_owned() }
}

impl Results {
    /// Formats the report as Markdown.
    pub fn markdown(&self) -> String {
        let mut text = format!("# {}\n\n", self.experiment);
        if let Some(warning) = self.smoke_test() {
            let _ = writeln!(text, "**{warning}**\n");
        }
        let scene = &self.scene;
        let _ = writeln!(
            text,
            "`{}`\n\n{} x {}, {} of memory, Linux {}, in {}\n",
            scene.command,
            scene.cpus,
            scene.cpu,
            crate::units::show_size(scene.memory),
            scene.kernel,
            scene.directory
        );
        let _ = writeln!(text, "{}\n", scene.versions.join(" · "));
        if !self.verdicts.is_empty() {
            text += "| case | figure | of | goal | result | |\n|---|---|---|---|---|---|\n";
            for v in &self.verdicts {
                let reached = v.reached.map_or(String::new(), show);
                let _ = writeln!(
                    text,
                    "| {} | {} | {} | {} | {reached} | {} |",
                    v.case,
                    v.metric,
                    v.contender,
                    v.goal,
                    verdict_cell(v.verdict)
                );
            }
            text.push('\n');
        }
        if let Some(reason) = &self.absent {
            let _ = writeln!(text, "Not measured: {reason}\n");
        }
        for doubt in self.doubts() {
            let _ = writeln!(text, "- **doubtful**: {doubt}");
        }
        self.claims_table(&mut text);
        for matrix in &self.matrices {
            let _ = writeln!(text, "### {}\n\n{}", matrix.title, matrix.markdown());
        }
        self.tables(&mut text);
        for (contender, reason) in &self.skipped {
            let _ = writeln!(text, "- {contender} was left out: {reason}");
        }
        for note in &self.notes {
            let _ = writeln!(text, "- {note}");
        }
        text
    }

    pub(super) fn claims_table(&self, text: &mut String) {
        if self.claims.is_empty() {
            return;
        }
        *text += "| article | measurement | published | same kind of server here | Millpond | |\n|---|---|---|---|---|---|\n";
        for c in &self.claims {
            let theirs = c.theirs.as_ref().map_or(String::new(), |(name, value)| format!("{} ({name})", show(*value)));
            let (ours, figure, unit) = (c.ours.map_or(String::new(), show), show(c.figure), &c.unit);
            let _ = writeln!(text, "| {} | {} | {figure} {unit} | {theirs} | {ours} | {} |", c.source, c.says, c.verdict());
        }
        text.push('\n');
    }

    fn tables(&self, text: &mut String) {
        let summaries = self.summaries();
        let mut cases: Vec<&str> = Vec::new();
        for s in &summaries {
            if !cases.contains(&s.case.as_str()) {
                cases.push(&s.case);
            }
        }
        for case in cases {
            let here: Vec<&Summary> = summaries.iter().filter(|s| s.case == case).collect();
            let mut metrics: Vec<&str> = Vec::new();
            let mut contenders: Vec<&str> = Vec::new();
            for s in &here {
                if !metrics.contains(&s.metric.as_str()) {
                    metrics.push(&s.metric);
                }
                if !contenders.contains(&s.contender.as_str()) {
                    contenders.push(&s.contender);
                }
            }
            let _ =
                writeln!(text, "### {case}\n\n| contender | {} | ratio |\n|---|{}---|", metrics.join(" | "), "---|".repeat(metrics.len()));
            for contender in &contenders {
                let cell = |metric: &&str| {
                    here.iter().find(|s| s.metric == *metric && s.contender == *contender).map_or("".to_owned(), |s| spread(s))
                };
                let cells: Vec<String> = metrics.iter().map(cell).collect();
                let ratio = metrics.first().and_then(|metric| median(&self.ratios(case, metric, "millpond", contender)));
                let ratio = ratio.filter(|_| *contender != "millpond").map_or(String::new(), |r| format!("{r:.2}x"));
                let _ = writeln!(text, "| {contender} | {} | {ratio} |", cells.join(" | "));
            }
            text.push('\n');
        }
    }
}
