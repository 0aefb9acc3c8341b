//! Sector sizes of disk contents: detection, and plans for a conversion to another sector size.

pub mod contents;
pub mod fat;
pub mod finding;
pub mod gpt;
pub mod mbr;
pub mod plan;

pub use self::finding::{Finding, describe, look};
