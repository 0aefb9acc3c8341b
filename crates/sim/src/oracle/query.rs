//! Map queries: a reported hole must read as zeroes, and a block reported as unchanged must hold
//! the content of the older version.

use std::collections::BTreeMap;

use millpond_block::{Answer, ByteRange, DiskError, Query};
use millpond_engine::SnapshotId;

use super::history::{Cut, Value, ZERO, sharpen};
use super::{Oracle, Verdict, Violation, broken};
use crate::system::{Target, target_name};
use crate::trace::Moment;

/// A query in flight.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    pub(super) target: Target,
    pub(super) query: Query,
    pub(super) at: Moment,
}

impl Question {
    pub(super) fn since(&self) -> Option<SnapshotId> {
        self.query.since.map(|since| SnapshotId(since.0))
    }

    /// Returns whether the query concerns this target, directly or by comparison.
    pub(super) fn is_about(&self, target: Target) -> bool {
        self.target == target || self.since().map(Target::Snapshot) == Some(target)
    }
}

/// Queries by tag.
pub(super) type Questions = BTreeMap<u64, Question>;

impl Oracle {
    /// Records a well-formed query.
    pub fn ask(&mut self, tag: u64, target: Target, query: Query, at: Moment) {
        self.questions.insert(tag, Question { target, query, at });
    }

    /// Judges the answer to a query.
    ///
    /// # Errors
    /// If the answer is not legal.
    pub fn answered(&mut self, answer: &Answer, now: Moment) -> Verdict {
        let tag = answer.tag.0;
        let Some(question) = self.questions.remove(&tag) else {
            return broken(format!("an answer to question #{tag}, which has none to get"));
        };
        let Question { target, query, .. } = question;
        let judged = match &answer.result {
            Ok(runs) => self.judge_runs(&question, runs, now),
            Err(DiskError::Io | DiskError::Shutdown) if self.errors_allowed => Ok(()),
            Err(error) => broken(format!("it fails: {error}")),
        };
        judged.map_err(|v| Violation(format!("question #{tag} about {} ({query:?}): {v}", target_name(target))))
    }

    fn judge_runs(&mut self, question: &Question, runs: &[millpond_block::Run], now: Moment) -> Verdict {
        let Query { range, most, .. } = question.query;
        let covered: u64 = runs.iter().map(|run| run.length).sum();
        let repeats = runs.windows(2).any(|pair| matches!(pair, [a, b] if a.set == b.set));
        if runs.is_empty() || runs.len() > most || covered > range.length || repeats || runs.iter().any(|run| run.length == 0) {
            return broken(format!("the answer is no answer: {runs:?}"));
        }
        let mut offset = range.offset;
        for run in runs {
            if !run.set {
                self.judge_clear(question, offset, run.length, now)?;
            }
            offset += run.length;
        }
        Ok(())
    }

    /// Judges a range as if it had been read, block by block, with the content that the answer
    /// implies.
    fn judge_clear(&mut self, question: &Question, offset: u64, length: u64, now: Moment) -> Verdict {
        let std::ops::Range { start: mut cell, end } = self.grid.range(ByteRange { offset, length });
        let per_block = self.grid.per_block();
        while cell < end {
            let stop = ((cell / per_block + 1) * per_block).min(end);
            let mut cut = Cut::between(question.at, now);
            for cell in cell..stop {
                let Some(value) = self.implied(question.since(), cell as usize) else { continue };
                match question.target {
                    Target::Head(id) => self.judge_head(id, cell as usize, value, &mut cut)?,
                    Target::Snapshot(id) => self.judge_snapshot(id, cell as usize, value)?,
                }
            }
            sharpen(&cut, &mut self.pieces);
            cell = stop;
        }
        Ok(())
    }

    /// Returns the content of a cell that is unchanged since the older version, if that is certain.
    fn implied(&self, since: Option<SnapshotId>, cell: usize) -> Option<Value> {
        let Some(older) = since.and_then(|id| self.snapshots.get(&id)) else { return Some(ZERO) };
        if cell < older.cells.len() { older.value(cell) } else { Some(ZERO) }
    }
}
