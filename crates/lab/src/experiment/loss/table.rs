//! Formats the loss table of `docs/loss.md`.

use super::{Count, Event};
use crate::peer::CacheMode;
use std::fmt::Write;

/// Losses of a server in a cache mode, by event, summed over all repetitions.
pub struct Row {
    /// Name of the server, with its layout.
    pub whose: String,
    /// Cache mode.
    pub mode: CacheMode,
    /// Counts by event, in the order of [`Event::ALL`].
    pub counts: [Count; Event::ALL.len()],
}

impl Count {
    /// Adds the counts of another repetition.
    pub(super) fn add(&mut self, other: &Count) {
        self.flushed += other.flushed;
        self.lost_flushed += other.lost_flushed;
        self.unflushed += other.unflushed;
        self.lost_unflushed += other.lost_unflushed;
        self.wrong += other.wrong;
    }
}

/// Formats the rows as Markdown.
pub fn table(rows: &[Row]) -> String {
    let mut text =
        "| | mode | client dies: flushed | and not | daemon is killed: flushed | and not | power is cut: flushed | and not |\n".to_owned();
    text += "|---|---|---|---|---|---|---|---|\n";
    for row in rows {
        let _ = write!(text, "| {} | {} |", row.whose, row.mode.name());
        for count in &row.counts {
            let _ = write!(
                text,
                " {} | {} |",
                cell(count.lost_flushed, count.flushed, count.wrong),
                cell(count.lost_unflushed, count.unflushed, 0)
            );
        }
        text.push('\n');
    }
    text
}

fn cell(lost: u64, of: u64, wrong: u64) -> String {
    let spoilt = if wrong > 0 { format!(", {wrong} spoilt") } else { String::new() };
    match lost {
        0 => format!("0 of {of}{spoilt}"),
        lost => format!("**{lost}** of {of}{spoilt}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_stand_out() {
        let lost = Count { flushed: 9, unflushed: 5, lost_unflushed: 2, wrong: 1, ..Count::default() };
        let row = Row { whose: "x".into(), mode: CacheMode::None, counts: [Count::default(), Count::default(), lost] };
        assert!(table(&[row]).ends_with("| x | none | 0 of 0 | 0 of 0 | 0 of 0 | 0 of 0 | 0 of 9, 1 spoilt | **2** of 5 |\n"));
    }
}
