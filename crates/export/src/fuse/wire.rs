//! Constants and structures of the kernel's FUSE protocol, in the host's byte order.
//!
//! Source: Linux, `include/uapi/linux/fuse.h` (protocol 7). Requests begin with [`InHeader`],
//! replies with [`OutHeader`]; the rest depends on the opcode. Names are those of the source,
//! without its prefixes.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major number of the protocol.
pub const MAJOR: u32 = 7;
/// Minor number of this implementation: that of Linux 5.16, the first version whose INIT has room
/// for 64 flags. No newer feature is used.
pub const MINOR: u32 = 36;
/// Oldest supported minor number: Linux 4.20, the first version with `MAX_PAGES`.
pub const OLDEST_MINOR: u32 = 28;
/// Node number of the mount point.
pub const ROOT: u64 = 1;
/// Bytes of the fixed part of a write: [`InHeader`] and [`WriteIn`]. Its payload follows.
pub const WRITE_HEAD: usize = 80;
/// Maximum length of a name in a directory, in bytes.
pub const NAME_MAX: usize = 255;

/// Opcodes of requests.
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const INIT: u32 = 26;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const CREATE: u32 = 35;
    pub const DESTROY: u32 = 38;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const TMPFILE: u32 = 51;
}

/// Error numbers; replies contain them negated.
pub mod errno {
    pub const EPERM: i32 = 1;
    pub const ENOENT: i32 = 2;
    pub const EIO: i32 = 5;
    pub const ENXIO: i32 = 6;
    pub const EBADF: i32 = 9;
    pub const EISDIR: i32 = 21;
    pub const ENOTDIR: i32 = 20;
    pub const EINVAL: i32 = 22;
    pub const ENFILE: i32 = 23;
    pub const ENOSPC: i32 = 28;
    pub const EROFS: i32 = 30;
    pub const ENAMETOOLONG: i32 = 36;
    pub const ENOSYS: i32 = 38;
    pub const EPROTO: i32 = 71;
    pub const EOPNOTSUPP: i32 = 95;
    pub const ESHUTDOWN: i32 = 108;
    pub const ESTALE: i32 = 116;
}

/// Flags of INIT.
pub mod init_flag {
    /// Several reads of a file may be in flight.
    pub const ASYNC_READ: u32 = 1 << 0;
    /// Writes may be longer than a page.
    pub const BIG_WRITES: u32 = 1 << 5;
    /// Direct I/O to a file is sent without waiting for replies.
    pub const ASYNC_DIO: u32 = 1 << 15;
    /// Lookups and listings of a directory may run in parallel.
    pub const PARALLEL_DIROPS: u32 = 1 << 18;
    /// `max_pages` is valid.
    pub const MAX_PAGES: u32 = 1 << 22;
    /// OPENDIR may be answered with ENOSYS, after which the kernel does not send it again.
    pub const NO_OPENDIR_SUPPORT: u32 = 1 << 24;
}

/// Flags of an answer to OPEN.
pub mod open_flag {
    /// No page cache: the kernel sends a request for every read and write.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// The kernel sends no FLUSH when a descriptor is closed.
    pub const NOFLUSH: u32 = 1 << 5;
    /// Writes to a file may run in parallel.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// Flags that mark the valid fields of SETATTR.
pub mod setattr_flag {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
}

/// Modes of FALLOCATE.
pub mod fallocate_mode {
    pub const KEEP_SIZE: u32 = 0x01;
    pub const PUNCH_HOLE: u32 = 0x02;
    pub const ZERO_RANGE: u32 = 0x10;
}

/// Values of `whence` in LSEEK.
pub mod whence {
    pub const DATA: u32 = 3;
    pub const HOLE: u32 = 4;
}

/// Mask of the access mode in OPEN's flags.
pub const O_ACCMODE: u32 = 3;
/// Access mode of files opened for reading only.
pub const O_RDONLY: u32 = 0;
/// Flag of OPEN and WRITE: each write is durable when answered. `O_SYNC` includes this bit.
pub const O_DSYNC: u32 = 0o10000;

/// File types, as in `st_mode`. Directory entries have them shifted right by 12.
pub const S_IFDIR: u32 = 0o040_000;
/// See [`S_IFDIR`].
pub const S_IFREG: u32 = 0o100_000;

macro_rules! wire {
    ($(#[$doc:meta])* $name:ident, $bytes:literal { $($field:ident: $type:ty),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $(pub $field: $type),+ }
        const _: () = assert!(size_of::<$name>() == $bytes);
    };
}

wire!(
    /// Start of every request. `len` is the length of the whole request.
    InHeader, 40 { len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16, padding: u16 }
);
wire!(
    /// Start of every reply. `len` is the length of the whole reply. `error` is zero or a negated
    /// errno; an error reply has no body.
    OutHeader, 16 { len: u32, error: i32, unique: u64 }
);
wire!(
    /// INIT. Older kernels send only its first four fields.
    InitIn, 64 { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11] }
);
wire!(
    /// Answer to INIT.
    InitOut, 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16, max_write: u32,
        time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32, request_timeout: u16, unused: [u16; 11],
    }
);
wire!(
    /// Attributes for `stat`. Times are in seconds and nanoseconds since the Unix epoch; `blocks`
    /// have 512 bytes.
    Attr, 88 {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32,
        nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
);
wire!(
    /// Answer to LOOKUP. The validity times are zero, so that the kernel asks again each time.
    EntryOut, 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32, attr: Attr,
    }
);
wire!(
    /// Answer to GETATTR and SETATTR.
    AttrOut, 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }
);
wire!(
    /// SETATTR.
    SetattrIn, 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32,
        ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
);
wire!(
    /// OPEN.
    OpenIn, 8 { flags: u32, open_flags: u32 }
);
wire!(
    /// Answer to OPEN.
    OpenOut, 16 { fh: u64, open_flags: u32, backing_id: i32 }
);
wire!(
    /// RELEASE.
    ReleaseIn, 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
);
wire!(
    /// READ and READDIR.
    ReadIn, 40 { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
);
wire!(
    /// WRITE, followed by the payload.
    WriteIn, 40 { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
);
wire!(
    /// Answer to WRITE.
    WriteOut, 8 { size: u32, padding: u32 }
);
wire!(
    /// FALLOCATE.
    FallocateIn, 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
);
wire!(
    /// LSEEK.
    LseekIn, 24 { fh: u64, offset: u64, whence: u32, padding: u32 }
);
wire!(
    /// Answer to LSEEK.
    LseekOut, 8 { offset: u64 }
);
wire!(
    /// Answer to STATFS.
    StatfsOut, 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32, padding: u32, spare: [u32; 6],
    }
);
wire!(
    /// Directory entry, followed by its name, which is padded with zeroes to a multiple of 8 bytes.
    /// `off` is the offset of the next entry.
    Dirent, 24 { ino: u64, off: u64, namelen: u32, kind: u32 }
);

const _: () = assert!(size_of::<InHeader>() + size_of::<WriteIn>() == WRITE_HEAD);
