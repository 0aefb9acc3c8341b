//! A table of words: what a target did in each of several cases, where numbers side by side would
//! not show it.

use serde::{Deserialize, Serialize};

/// Judgement of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tone {
    /// None.
    #[default]
    Plain,
    /// As hoped.
    Good,
    /// A loss that was to be expected.
    Warning,
    /// A loss that must not be.
    Bad,
}

/// A cell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// Text; may have several lines.
    pub text: String,
    /// Judgement.
    pub tone: Tone,
}

/// A table of words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Matrix {
    /// Title.
    pub title: String,
    /// Heads of the columns, that of the names first.
    pub head: Vec<String>,
    /// Rows: the name first.
    pub rows: Vec<Vec<Cell>>,
}

impl Cell {
    /// Makes a cell without a judgement.
    pub fn plain(text: &str) -> Cell {
        Cell { text: text.to_owned(), tone: Tone::Plain }
    }
}

impl Matrix {
    /// Formats the table as Markdown, without its title.
    pub fn markdown(&self) -> String {
        let line = |cells: &mut dyn Iterator<Item = String>| format!("| {} |\n", cells.collect::<Vec<String>>().join(" | "));
        let mut text = line(&mut self.head.iter().cloned());
        text += &format!("|{}\n", "---|".repeat(self.head.len()));
        for row in &self.rows {
            text += &line(&mut row.iter().map(|cell| {
                let words = cell.text.replace('\n', ", ");
                if matches!(cell.tone, Tone::Warning | Tone::Bad) { format!("**{words}**") } else { words }
            }));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_stand_out() {
        let lost = Cell { text: "flushed 0 of 2\nothers 1 of 1".into(), tone: Tone::Warning };
        let matrix = Matrix { title: "t".into(), head: vec!["mode".into(), "power".into()], rows: vec![vec![Cell::plain("none"), lost]] };
        assert_eq!(matrix.markdown(), "| mode | power |\n|---|---|\n| none | **flushed 0 of 2, others 1 of 1** |\n");
    }
}
