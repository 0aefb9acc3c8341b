//! Reserved space: how much of its reservation each volume has used, and the sum of all unused
//! parts.
//!
//! Every write needs the sum before it is accepted, so each change updates the sum.

use std::collections::BTreeMap;

use millpond_format::VolumeId;

/// Units reserved for a request that overwrites reserved blocks: 4 MiB. A block dies only after its
/// replacement was appended.
const OVERWRITE_UNITS: u64 = 8192;

/// A volume with a reservation. Both in units of 512 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reserved {
    reservation: u64,
    /// Units of data of the volume and its snapshots.
    owned: u64,
}

impl Reserved {
    fn missing(self) -> u64 {
        self.reservation.saturating_sub(self.owned) + OVERWRITE_UNITS
    }
}

/// All volumes with a reservation.
///
/// INV-CAT-3: `missing` is the sum over all of them, and `owned` the sum over the lineages of each
/// volume.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Reservations {
    volumes: BTreeMap<VolumeId, Reserved>,
    missing: u64,
}

impl Reservations {
    /// Units that a volume which owns `owned` units still needs for `bytes` bytes, and to overwrite
    /// them.
    pub(crate) fn missing_for(bytes: u64, owned: u64) -> u64 {
        if bytes == 0 { 0 } else { Reserved { reservation: bytes.div_ceil(512), owned }.missing() }
    }

    /// Reserves `bytes` bytes for a volume that owns `owned` units; 0 ends its reservation.
    pub(crate) fn set(&mut self, volume: VolumeId, bytes: u64, owned: u64) {
        self.remove(volume);
        if bytes > 0 {
            let reserved = Reserved { reservation: bytes.div_ceil(512), owned };
            self.missing += reserved.missing();
            self.volumes.insert(volume, reserved);
        }
    }

    /// Ends a volume's reservation.
    pub(crate) fn remove(&mut self, volume: VolumeId) {
        if let Some(reserved) = self.volumes.remove(&volume) {
            self.missing -= reserved.missing();
        }
    }

    /// Adds to the units that a volume owns.
    pub(crate) fn grow(&mut self, volume: VolumeId, units: u64) {
        self.change(volume, |owned| owned + units);
    }

    /// Subtracts from the units that a volume owns.
    pub(crate) fn shrink(&mut self, volume: VolumeId, units: u64) {
        self.change(volume, |owned| owned.saturating_sub(units));
    }

    fn change(&mut self, volume: VolumeId, owned: impl FnOnce(u64) -> u64) {
        let Some(reserved) = self.volumes.get_mut(&volume) else { return };
        self.missing -= reserved.missing();
        reserved.owned = owned(reserved.owned);
        self.missing += reserved.missing();
    }

    /// Units that are reserved for other volumes than `volume` and not used yet.
    pub(crate) fn missing_of_others(&self, volume: VolumeId) -> u64 {
        self.missing - self.volumes.get(&volume).map_or(0, |reserved| reserved.missing())
    }

    /// Volumes with a reservation, and the units that each owns.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (VolumeId, u64)> + '_ {
        self.volumes.iter().map(|(volume, reserved)| (*volume, reserved.owned))
    }

    /// True when `missing` is the sum over all volumes.
    pub(crate) fn is_exact(&self) -> bool {
        self.missing == self.volumes.values().map(|reserved| reserved.missing()).sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    //! Compares the running sum with one that is computed from scratch.

    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Set(u64, u64),
        Remove,
        Grow(u64),
        Shrink(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..40_000_000u64, 0..80_000u64).prop_map(|(bytes, owned)| Step::Set(bytes, owned)),
            Just(Step::Remove),
            (0..60_000u64).prop_map(Step::Grow),
            (0..60_000u64).prop_map(Step::Shrink),
        ]
    }

    proptest! {
        #[test]
        fn the_sum_is_what_all_volumes_miss(steps in prop::collection::vec((0..4u32, step()), 0..60)) {
            let mut reservations = Reservations::default();
            let mut twin: BTreeMap<VolumeId, (u64, u64)> = BTreeMap::new();
            for (volume, step) in steps {
                let id = VolumeId(volume);
                match step {
                    Step::Set(bytes, owned) => {
                        reservations.set(id, bytes, owned);
                        if bytes > 0 { twin.insert(id, (bytes, owned)); } else { twin.remove(&id); }
                    }
                    Step::Remove => {
                        reservations.remove(id);
                        twin.remove(&id);
                    }
                    Step::Grow(units) => {
                        reservations.grow(id, units);
                        twin.entry(id).and_modify(|(_, owned)| *owned += units);
                    }
                    Step::Shrink(units) => {
                        reservations.shrink(id, units);
                        twin.entry(id).and_modify(|(_, owned)| *owned = owned.saturating_sub(units));
                    }
                }
                prop_assert!(reservations.is_exact());
                for asked in (0..4).map(VolumeId) {
                    let others = twin.iter().filter(|(volume, _)| **volume != asked);
                    let missing: u64 = others.map(|(_, (bytes, owned))| Reservations::missing_for(*bytes, *owned)).sum();
                    prop_assert_eq!(reservations.missing_of_others(asked), missing);
                }
            }
        }
    }
}
