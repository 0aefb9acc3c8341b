//! Output of commands: tables for people, one JSON document for programs.

mod listing;
mod sort;
mod table;
mod value;

pub use listing::{Format, Listing, LongListing};
pub use sort::sort;
pub use table::{Column, Shown, print, print_pairs, say, write_out};
pub use value::Cell;
