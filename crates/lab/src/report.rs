//! Results of a run, and their presentation: figures with their spread, charts and the articles'
//! figures, as table, Markdown, CSV, JSON and an HTML page.

mod book;
mod chart;
mod claim;
mod csv;
mod figures;
mod goal;
mod markdown;
mod matrix;
mod page;
mod results;
mod summary;
mod table;

pub use book::Book;
pub use chart::{Curve, Mark, Series, Tick, Timeline};
pub use claim::{Claim, Outcome};
pub use figures::Figures;
pub use goal::{Goal, Judged, Verdict};
pub use matrix::{Cell, Matrix, Tone};
pub use results::{Results, Sample, Scene};
pub use summary::{Summary, median};
