//! Sectors of what is on a disk: for which size a disk was made, and making it one for another.

mod contents;
mod convert;
mod fat;
mod finding;
mod gpt;
mod mbr;
mod plan;

pub use convert::ConvertSectors;
pub use finding::{Finding, describe, look};
