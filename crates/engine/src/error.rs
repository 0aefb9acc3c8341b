//! Errors as values: the reason why a pool was not opened, why it stopped, and why a command was
//! refused.
//!
//! A caller decides by the kind and its fields, never by the text. `Display` is one line for
//! people: the subject and the reason. It names no option and no verb of a command line, which the
//! engine does not know; the program that has one adds the next step, by kind.

mod command;
mod damage;
mod fault;
mod open;

pub use command::{Absent, Busy, CommandError, Invalid, NameFlaw};
pub use damage::Damage;
pub use fault::Fault;
pub use open::{ClaimRefusal, Missing, OpenError, OpenErrorKind, OpenWrite, Unlabelled, Whole};
