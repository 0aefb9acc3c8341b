//! The two numbers of a device.
//!
//! A pool numbers its devices in its table of members; the program that opens them numbers what it
//! has open. The engine alone knows which member is where, and neither number says anything about
//! the other.

use std::fmt;

/// Number of a device in its pool's table of members. It stays the same when the device is replaced
/// and is the same at every import.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberId(pub u16);

/// Position of an open device in the table of the program that carries operations out. It lasts as
/// long as the device is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceSlot(pub u16);

impl MemberId {
    /// The member at a position in a table with an entry for each member.
    ///
    /// # Panics
    /// When the position is above 65,535. A pool has at most 64 members.
    pub fn at(index: usize) -> MemberId {
        MemberId(u16::try_from(index).expect("a table of members has at most 64 entries"))
    }

    /// Position in a table with an entry for each member.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl DeviceSlot {
    /// Position in a table with an entry for each open device.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for DeviceSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
