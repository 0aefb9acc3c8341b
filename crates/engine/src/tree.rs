//! Maps: the cache of radix tree nodes, and look-ups in it.

mod cache;

pub(crate) use cache::{Miss, NodeCache, capacity, node_index, slot_in};
