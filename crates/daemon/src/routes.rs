//! Routes of the control API, one module per kind of object, and the OpenAPI document that
//! describes them.

mod access;
mod carry_out;
mod destroy;
mod export;
mod guard;
mod input;
mod policy;
mod pool;
#[cfg(test)]
mod reference;
mod refused;
mod router;
mod rules;
mod snapshot;
mod system;
#[cfg(test)]
mod tests;
mod volume;

pub use refused::Refused;
pub use router::{document, router};
