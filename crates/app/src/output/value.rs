//! One cell of a table.

use jiff::Timestamp;

use millpond_api::instant::show_span;
use millpond_api::size::Size;

/// A value, and how people like to see it.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Words.
    Text(String),
    /// A number of things.
    Count(u64),
    /// Bytes: `1.50G`, or exact with `-p`.
    Bytes(u64),
    /// Bytes per second.
    Rate(f64),
    /// Operations per second.
    Per(f64),
    /// Nanoseconds, shown as microseconds; `None` where nothing was measured.
    Nanos(Option<f64>),
    /// Seconds: `1 h 20 min`, or their number with `-p`.
    Seconds(u64),
    /// Milliseconds, likewise.
    Millis(u64),
    /// A time: to the second, or as kept with `-p`.
    Time(Timestamp),
    /// Nothing there.
    None,
}

impl Cell {
    /// Words, or nothing.
    pub fn text_or_none(text: Option<&str>) -> Cell {
        text.map_or(Cell::None, |text| Cell::Text(text.to_owned()))
    }

    /// True for numbers, which align to the right.
    pub fn is_number(&self) -> bool {
        matches!(self, Cell::Count(_) | Cell::Bytes(_) | Cell::Seconds(_) | Cell::Millis(_) | Cell::Rate(_) | Cell::Per(_) | Cell::Nanos(_))
    }

    /// The same for programs, which have spans as numbers with and without `-p`.
    pub fn plain(self) -> Cell {
        match self {
            Cell::Seconds(n) | Cell::Millis(n) => Cell::Count(n),
            other => other,
        }
    }

    /// The text; `exact` is `-p`.
    pub fn show(&self, exact: bool) -> String {
        match self {
            Cell::Text(text) => text.clone(),
            Cell::Count(n) => n.to_string(),
            Cell::Bytes(n) if exact => n.to_string(),
            Cell::Bytes(n) => Size(*n).to_string(),
            Cell::Rate(rate) if exact => format!("{rate:.0}"),
            Cell::Rate(rate) => format!("{}/s", Size(rate.max(0.0) as u64)),
            Cell::Per(rate) => format!("{rate:.0}"),
            Cell::Nanos(Some(nanos)) if exact => format!("{nanos:.0}"),
            Cell::Nanos(Some(nanos)) => format!("{:.1}us", nanos / 1000.0),
            Cell::Seconds(n) | Cell::Millis(n) if exact => n.to_string(),
            Cell::Seconds(seconds) => show_span(*seconds),
            Cell::Millis(millis) => show_span(millis.div_ceil(1000)),
            Cell::Time(time) if exact => time.to_string(),
            Cell::Time(time) => format!("{}", time.strftime("%Y-%m-%dT%H:%M:%SZ")),
            Cell::Nanos(None) | Cell::None => "-".to_owned(),
        }
    }
}
