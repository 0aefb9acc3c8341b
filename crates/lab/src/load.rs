//! Load generator for NBD and vhost-user in one process: pipelined, cheap enough not to be the
//! bottleneck, with latency histograms.

mod client;
mod endpoint;
mod files;
mod job;
mod ledger;
mod link;
mod op;
mod random;
mod result;
mod spec;
mod tree;
mod verify;
pub mod vhost;

pub use client::{Client, Done};
pub use endpoint::Endpoint;
pub use files::{Content, DiskUse, FILE_BYTES, FILES_PER_DIRECTORY, FileSet, Round};
pub use job::{PASSES, READ_PASSES, WARM_UP, precondition, run, run_until};
pub use ledger::{Ledger, Verdict};
pub use op::{Dialect, Op};
pub use random::{Permutation, Rng, Zipf};
pub use result::{Latency, LoadResult, Point};
pub use spec::{Access, Durability, LoadSpec, Mix};
pub use tree::Tree;
pub use verify::{Audit, Written, audit, write_blocks, write_over};
