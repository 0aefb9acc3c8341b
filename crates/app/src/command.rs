//! The command line: one file per command. A command parses its arguments, sends requests to the
//! daemon, and prints the result.

mod alert;
mod backup;
#[cfg(feature = "bucket")]
mod bucket;
mod cache;
mod candidates;
mod check;
mod cli;
mod columns;
mod completions;
mod consent;
mod create;
mod demo;
mod destroy;
mod diff;
mod doctor;
mod elsewhere;
mod events;
mod exports;
mod failback;
mod failover;
mod fetch_chunks;
mod fuse_guard;
mod get;
mod globs;
mod history;
mod hold;
mod holds;
mod image;
mod lab;
mod list;
mod man;
mod map;
mod owner;
mod policy;
mod pool;
mod published;
mod rebase;
mod receive;
#[cfg(test)]
mod reference;
mod rename;
mod resize;
mod sectors;
mod send;
mod serve;
mod sinks;
mod snapshot;
mod status;
mod store;
mod tls;
mod token;
mod up;

pub use cli::Cli;
pub use completions::answer_shell;
pub use elsewhere::describe as describe_elsewhere;
#[cfg(test)]
pub use serve::EVENT_TIMEOUT;
#[cfg(test)]
pub use sinks::sinks;
