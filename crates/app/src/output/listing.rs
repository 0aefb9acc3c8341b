//! The options that everything which lists or shows takes.

use clap::{Args, ValueEnum};

/// Table or JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Default)]
pub enum Format {
    /// Columns for people.
    #[default]
    Table,
    /// One document, sizes in bytes, times RFC 3339 UTC.
    Json,
}

/// How to print.
#[derive(Clone, Debug, Args, Default)]
pub struct Listing {
    /// Output format
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub format: Format,
    /// Columns to show, in this order
    #[arg(short = 'o', long = "columns", value_name = "COL,COL", value_delimiter = ',')]
    pub columns: Vec<String>,
    /// No header line; columns are separated by one tab
    #[arg(short = 'H', long)]
    pub no_header: bool,
    /// Exact numbers
    #[arg(short = 'p', long)]
    pub parsable: bool,
}

/// The same for commands whose `-o` is something else.
#[derive(Clone, Debug, Args, Default)]
pub struct LongListing {
    /// Output format
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub format: Format,
    /// Columns to show, in this order
    #[arg(long, value_name = "COL,COL", value_delimiter = ',')]
    pub columns: Vec<String>,
    /// No header line; columns are separated by one tab
    #[arg(short = 'H', long)]
    pub no_header: bool,
    /// Exact numbers
    #[arg(short = 'p', long)]
    pub parsable: bool,
}

impl From<LongListing> for Listing {
    fn from(how: LongListing) -> Listing {
        Listing { format: how.format, columns: how.columns, no_header: how.no_header, parsable: how.parsable }
    }
}
