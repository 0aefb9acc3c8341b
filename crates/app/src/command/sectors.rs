//! Sector sizes of disk contents: detection, and conversion to another sector size.

mod convert;

pub use convert::ConvertSectors;
