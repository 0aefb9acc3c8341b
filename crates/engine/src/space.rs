//! Space: the layout of segments, their states, the chunk table, and deadlists.

mod bucket;
mod chunks;
mod deadlist;
mod forwards;
mod layout;
mod names;
mod pages;
mod pieces;
mod segments;
mod slots;
mod table;

pub(crate) use chunks::{Chunk, NODE_GRAIN, Place};
pub(crate) use deadlist::{Deadlist, Encoding, FIXED_TAIL};
pub(crate) use layout::{AllocClass, PAGE, SegmentLayout, Stripe};
pub(crate) use names::Named;
pub(crate) use pieces::{Need, Piece, Pieces, Share, as_piece, stored_bytes};
pub(crate) use segments::{Fill, Pause, Segment, SegmentState, Wanted};
pub(crate) use slots::Slots;
pub(crate) use table::{Space, usable, without_reserve};
