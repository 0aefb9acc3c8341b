//! Bugs that tests plant on the way from the engine to the devices.

/// Known bugs, to prove that the simulator finds them. Without the feature `planted` they do nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// Caps hold back what is urgent.
    HoldUrgent,
    /// The oldest operation that is held is gone when the cap is lifted.
    ForgetHeld,
    /// No lease is ever over.
    LeaveLate,
    /// What the page cache has is believed without a look at the device.
    TrustPageCache,
}

impl Planted {
    /// Is this bug planted?
    pub(crate) fn is_in(self, planted: Option<Planted>) -> bool {
        cfg!(feature = "planted") && planted == Some(self)
    }
}
