//! Figures in documents. The text between `<!-- figures: NAME... -->` and `<!-- /figures -->` is
//! generated from the last results of the named experiments, so that no figure is copied by hand. A
//! name with a dot is a file in the report's directory.

use super::markdown::verdict_cell;
use super::summary::show;
use super::{Book, Results};
use anyhow::{Context, Result, ensure};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

const BEGIN: &str = "<!-- figures:";
const END: &str = "<!-- /figures -->";

/// A document with regenerated figures. Where something named was not measured, the old text is
/// kept.
#[derive(Debug)]
pub struct Figures {
    /// The document.
    pub text: String,
    /// Named experiments and files that the report does not have.
    pub missing: Vec<String>,
}

impl Book {
    /// Regenerates the figures of a document. `dir` is the report's directory.
    ///
    /// # Errors
    /// The document has no place for figures, a place has no end, or a file cannot be read.
    pub fn figures(&self, document: &str, dir: &Path) -> Result<Figures> {
        let mut figures = Figures { text: String::new(), missing: Vec::new() };
        let mut rest = document;
        ensure!(rest.contains(BEGIN), "there is no line '{BEGIN} NAME... -->'");
        while let Some(at) = rest.find(BEGIN) {
            let (before, place) = rest.split_at(at);
            let (begin, body) = place.split_once('\n').context("the last line begins a place for figures")?;
            let (stood, after) = body.split_once(END).with_context(|| format!("'{begin}' has no '{END}' after it"))?;
            let names = begin.trim_start_matches(BEGIN).trim_end().trim_end_matches("-->").split_whitespace();
            let (parts, missing) = self.parts(names, dir)?;
            let new = if missing.is_empty() { format!("\n{}\n", parts.join("\n")) } else { stood.to_owned() };
            figures.missing.extend(missing);
            let _ = write!(figures.text, "{before}{begin}\n{new}{END}");
            rest = after;
        }
        figures.text += rest;
        Ok(figures)
    }

    fn parts<'a>(&self, names: impl Iterator<Item = &'a str>, dir: &Path) -> Result<(Vec<String>, Vec<String>)> {
        let (mut parts, mut missing) = (Vec::new(), Vec::new());
        for name in names {
            if name.contains('.') {
                match fs::read_to_string(dir.join(name)) {
                    Ok(text) => parts.push(text),
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => missing.push(name.to_owned()),
                    Err(error) => return Err(error).with_context(|| format!("reading {name}")),
                }
                continue;
            }
            match self.experiments.iter().find(|results| results.experiment == name && results.absent.is_none()) {
                Some(results) => parts.push(results.goals_table()),
                None => missing.push(name.to_owned()),
            }
        }
        Ok((parts, missing))
    }
}

impl Results {
    /// Formats goals with their results, the articles' figures, and the run that produced them.
    fn goals_table(&self) -> String {
        let mut text = self.smoke_test().map_or(String::new(), |warning| format!("**{warning}**\n\n"));
        if self.verdicts.is_empty() {
            let _ = writeln!(text, "`{}`, {}:", self.experiment, self.about);
        } else {
            let _ = writeln!(text, "| `{}` | figure | goal | result | |\n|---|---|---|---|---|", self.experiment);
        }
        for v in &self.verdicts {
            let reached = v.reached.map_or(String::new(), show);
            let whose = if v.contender == "millpond" { String::new() } else { format!(" of {}", v.contender) };
            let outcome = verdict_cell(v.verdict);
            let _ = writeln!(text, "| {} | {}{whose} | {} | {reached} | {outcome} |", v.case, v.metric, v.goal);
        }
        if !self.claims.is_empty() {
            text.push('\n');
            self.claims_table(&mut text);
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        let day = self.began.split('T').next().unwrap_or_default();
        let _ = writeln!(text, "\n`{}`, {day}, {} processors, Linux {}", self.scene.command, self.scene.cpus, self.scene.kernel);
        for doubt in self.doubts() {
            let _ = writeln!(text, "\nDoubtful: {doubt}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Goal, Scene};

    fn book() -> Book {
        let mut results = Results::new("kill9", Scene::default());
        results.add(0, "millpond", "snapshots", "lost", 0.0);
        results.promise("snapshots", "lost", "millpond", Goal::NeverAbove(0.0));
        Book { version: 1, experiments: vec![results] }
    }

    #[test]
    fn figures_are_made_anew_and_the_rest_stays() -> Result<()> {
        let dir = std::env::temp_dir();
        let document = "# Figures\n<!-- figures: kill9 -->\nold\n<!-- /figures -->\nbetween\n<!-- figures: recovery -->\nkept\n<!-- /figures -->\nend\n";
        let made = book().figures(document, &dir)?;
        assert!(made.text.starts_with("# Figures\n<!-- figures: kill9 -->\n"), "{}", made.text);
        assert!(made.text.contains("| snapshots | lost | never above 0 | 0.000 | met |"), "{}", made.text);
        assert!(!made.text.contains("old") && made.text.contains("between\n"), "{}", made.text);
        assert!(made.text.ends_with("<!-- figures: recovery -->\nkept\n<!-- /figures -->\nend\n"), "{}", made.text);
        assert_eq!(made.missing, ["recovery"]);
        let again = book().figures(&made.text, &dir)?;
        assert_eq!(again.text, made.text, "the same run twice");
        Ok(())
    }

    #[test]
    fn a_document_without_a_place_is_refused() {
        let dir = std::env::temp_dir();
        assert!(book().figures("no place\n", &dir).is_err());
        assert!(book().figures("<!-- figures: kill9 -->\nno end\n", &dir).is_err());
    }
}
