//! Maps: the cache of radix tree nodes, and look-ups in it.

mod cache;

pub(crate) use cache::{Mapped, Miss, NodeCache, Region, capacity, node_index, slot_in};
