//! The audit: is the space accounted for exactly (I12), and does every block say who it is (I5, I6)?

mod audit;

pub use audit::{Audit, Media};
