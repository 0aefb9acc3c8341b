//! The server side of the kernel's FUSE protocol as a state machine without I/O. It presents a pool
//! as a directory of images.
//!
//! There is one [`Session`] per mount. The loop that owns the device does, after every event:
//!
//! ```text
//! event: requests came       while session.has_room(): read one into message.space()
//!                                session.request(&mut message, length, &mut tree, spare)
//!        disk answered       session.complete(completion)         which session: Session::id_of(tag)
//!                            session.answer(answer, &mut tree)    the same, for queries
//!        there is memory     session.resume(&mut message, &mut tree, spare), when the tree had none for a request
//! then:  while let Some(reply) = session.pop_reply()     write reply.slices() with one call
//! ```
//!
//! The tree is [`Tree`]: files named after volumes, and `.snapshots/VOL/SNAP`. The session asks for
//! each entry anew. There is no cache to invalidate when volumes and snapshots are created,
//! destroyed, renamed or resized.
//!
//! Source: Linux, `include/uapi/linux/fuse.h`; `docs/decisions/0008-fuse-in-the-shard.md`.

mod attr;
mod directory;
mod files;
mod handles;
mod inflight;
mod message;
mod node;
mod reply;
mod session;
mod tree;
pub(crate) mod wire;

pub use attr::Owner;
pub use handles::{Counters, Handle, Load};
pub use message::{MAX_TRANSFER, Message};
pub use reply::Reply;
pub use session::{MAX_BYTES, MAX_REQUESTS, Session};
pub use tree::{Image, ImageInfo, Space, Tree};
