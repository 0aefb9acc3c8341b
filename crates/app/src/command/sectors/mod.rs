//! Sector sizes of disk contents: detection, and conversion to another sector size.

mod contents;
mod convert;
mod fat;
mod finding;
mod gpt;
mod mbr;
mod plan;

pub use convert::ConvertSectors;
pub use finding::{Finding, describe, look};
