//! Bugs that tests plant between engine and devices.

/// Known bugs, to prove that the simulator finds them. Without the feature `planted` they have no
/// effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// Caps delay urgent operations.
    HoldUrgent,
    /// When a cap is lifted, the oldest throttled operation is lost.
    ForgetHeld,
    /// A lease never ends.
    LeaveLate,
    /// The page cache is trusted, without reading from the device.
    TrustPageCache,
}

impl Planted {
    /// True when this bug is planted.
    pub(crate) fn is_in(self, planted: Option<Planted>) -> bool {
        cfg!(feature = "planted") && planted == Some(self)
    }
}
