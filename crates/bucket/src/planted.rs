//! Bugs that the simulator must find. Without the feature `planted` there are none.

/// A known bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// A create that ends with "exists" is taken for a success.
    ExistsIsSuccess,
    /// A list is taken for complete, although the newest objects may be missing in it.
    ListBelieved,
    /// The numbers of anchors start again at 0 after a restart, and anchors are overwritten.
    CounterRestarts,
}

impl Planted {
    /// Returns whether this bug is planted.
    pub fn is(self, planted: Option<Planted>) -> bool {
        cfg!(feature = "planted") && planted == Some(self)
    }
}
