//! The loss table of `docs/loss.md`, and the matrices of the report.

use super::{Count, Event};
use crate::peer::CacheMode;
use crate::report::{Cell, Matrix, Tone};
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

/// Makes a matrix of cache mode and event for each server.
pub fn matrices(rows: &[Row]) -> Vec<Matrix> {
    let mut matrices: Vec<Matrix> = Vec::new();
    for row in rows {
        let title = format!("Lost writes: {}", row.whose);
        if matrices.last().is_none_or(|matrix| matrix.title != title) {
            let head = ["cache mode", "client dies", "server is killed", "power is cut"].map(str::to_owned).into();
            matrices.push(Matrix { title, head, rows: Vec::new() });
        }
        let cells = std::iter::once(Cell::plain(row.mode.name())).chain(row.counts.iter().map(|count| lost(row.mode, count)));
        if let Some(matrix) = matrices.last_mut() {
            matrix.rows.push(cells.collect());
        }
    }
    matrices
}

/// Formats the losses of an event; a mode that ignores flushes may lose flushed writes.
fn lost(mode: CacheMode, count: &Count) -> Cell {
    let mut text =
        format!("{} of {} flushed lost\n{} of {} others lost", count.lost_flushed, count.flushed, count.lost_unflushed, count.unflushed);
    let tone = match (count.wrong, count.lost_flushed, count.lost_unflushed) {
        (0, 0, 0) => Tone::Good,
        (0, flushed, _) if flushed == 0 || mode == CacheMode::Unsafe => Tone::Warning,
        _ => Tone::Bad,
    };
    if count.wrong > 0 {
        text += &format!("\n{} blocks spoilt", count.wrong);
    }
    Cell { text, tone }
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
        let matrix = matrices(std::slice::from_ref(&row)).remove(0);
        assert_eq!((matrix.rows[0][1].tone, matrix.rows[0][3].tone), (Tone::Good, Tone::Bad));
        assert_eq!(matrix.rows[0][3].text, "0 of 9 flushed lost\n2 of 5 others lost\n1 blocks spoilt");
        assert!(table(&[row]).ends_with("| x | none | 0 of 0 | 0 of 0 | 0 of 0 | 0 of 0 | 0 of 9, 1 spoilt | **2** of 5 |\n"));
    }
}
