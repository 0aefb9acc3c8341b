//! Checksums distinguish nodes.

use super::*;
use crate::{ChunkId, Coding};

fn encoded(epoch: u64, slot: u32) -> (Addr, Vec<u8>) {
    let addr = Addr::new(ChunkId(7), slot, NODE_UNITS, Coding::Raw);
    let mut out = vec![0; NODE_BYTES];
    Node::empty(0, LineageId(1), 0, Epoch(epoch)).encode(addr, &mut out);
    (addr, out)
}

/// A CRC over a node and the CRC stored in it would be the same for all nodes: an older node in the
/// same place would pass.
#[test]
fn every_node_has_a_checksum_of_its_own() {
    let (addr, one) = encoded(1, 3);
    let (_, newer) = encoded(2, 3);
    let (other, elsewhere) = encoded(1, 4);
    let sum = Node::checksum_at(&one, addr);
    assert!(sum.is_some() && sum == Node::checksum(&one));
    assert_ne!(sum, Node::checksum(&newer));
    assert_ne!(sum, Node::checksum(&elsewhere));
    assert_eq!(Node::checksum_at(&one, other), None, "a node that belongs elsewhere");
    let mut spoilt = one.clone();
    spoilt[100] ^= 1;
    assert_eq!(Node::checksum(&spoilt), None);
    assert_eq!(Node::checksum(&one[..NODE_BYTES - 1]), None);
}
