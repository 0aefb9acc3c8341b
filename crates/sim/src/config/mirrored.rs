//! Worlds with pools whose devices fail, come back and are replaced: mirrors, and sometimes layouts
//! without redundancy.

use millpond_block::MemberId;
use millpond_engine::{Class, GroupSpec, Layout};
use millpond_format::{Column, Group, SegmentId};

use super::{Config, KIB, LABELS, LEAST_SEGMENTS, device, volumes};
use crate::rng::Rng;

/// Minimum extents of a device.
const LEAST_EXTENTS: u64 = 8;

/// Groups and fault settings of a world whose devices fail.
#[derive(Clone, Debug)]
pub struct Mirrored {
    /// The groups, in the order of the devices.
    pub groups: Vec<GroupSpec>,
    /// Minimum number of copies of anything; with parity, parity plus one.
    pub copies: usize,
    /// Device faults, per mille of steps.
    pub fate: u64,
    /// Devices are removed from the pool.
    pub removals: bool,
    /// Rebalance, scrub, wipe and census run, are stopped and get rate limits.
    pub jobs: bool,
    /// Number of spares; they come after all other devices.
    pub spares: usize,
    /// Devices hang for a while, or run out of space.
    pub hangs: bool,
    /// One device damages data silently. A resilver would copy the damage, so none runs in these
    /// worlds.
    pub damage: bool,
}

impl Config {
    /// Turns this world into one of mirrors, drawing only from `rng`, so that other worlds stay
    /// unchanged.
    pub fn mirror(&mut self, rng: &mut Rng) {
        self.fault = None;
        // A former pool would have changed its devices.
        self.second_hand = false;
        self.extent = self.extent.min(256 * KIB);
        let fate = *rng.pick(&[3, 10, 30]);
        if rng.percent(20) {
            let groups = vec![GroupSpec::data(self.layout)];
            self.mirrored =
                Some(Mirrored { groups, copies: 1, fate, removals: false, jobs: false, spares: 0, hangs: false, damage: false });
            self.rescale(rng);
            return;
        }
        let parts = if rng.percent(70) { 1 } else { 2 };
        let mut groups = Vec::new();
        let mut rows = 0;
        self.devices.clear();
        for _ in 0..parts {
            let copies = if rng.percent(65) { 2 } else { 3 };
            let most = if parts == 1 { 4 } else { copies };
            let count = rng.between(copies, most);
            let layout = Layout::Mirror { copies: copies as u16 };
            let least = LEAST_SEGMENTS / parts + 2 + rng.below(40);
            let fair = least * copies / count;
            let mut extents: Vec<u64> = (0..count).map(|_| rng.between(fair / 2, fair * 2).max(LEAST_EXTENTS)).collect();
            while rows_of(layout, &extents) < least {
                let at = rng.index(extents.len());
                extents[at] += 1 + fair / 8;
            }
            rows += rows_of(layout, &extents);
            self.devices.extend(extents.iter().map(|own| device(own * self.extent, rng)));
            groups.push(GroupSpec { class: Class::Data, layout, devices: Some(count as usize) });
        }
        let copies =
            groups.iter().map(|g| if let Layout::Mirror { copies } = g.layout { usize::from(copies) } else { 1 }).min().unwrap_or(1);
        self.mirrored = Some(Mirrored {
            groups,
            copies,
            fate,
            removals: false,
            jobs: false,
            spares: 0,
            hangs: false,
            damage: rng.percent(25) && !self.tight,
        });
        self.usable = rows * self.extent;
        self.rescale(rng);
    }

    /// Sets whether devices are removed and whether jobs run.
    pub fn take_out(&mut self, removals: bool, jobs: bool) {
        if let Some(mirrored) = &mut self.mirrored {
            (mirrored.removals, mirrored.jobs) = (removals, jobs);
        }
    }

    /// Lets devices hang or run out of space. Not with silent damage: while a device hangs, the
    /// copy read instead may be wrong.
    pub(super) fn hang(&mut self, rng: &mut Rng) {
        if let Some(mirrored) = self.mirrored.as_mut().filter(|mirrored| mirrored.copies > 1 && !mirrored.damage) {
            mirrored.hangs = true;
            self.tuning.silence_millis = *rng.pick(&[200, 1_000, 5_000]);
            self.tuning.reread_millis = self.tuning.silence_millis / *rng.pick(&[1, 4, 10]);
        }
    }

    /// Adds spares, not all of them large enough. Not with silent damage: a resilver would spread
    /// it.
    pub(super) fn spare(&mut self, rng: &mut Rng) {
        let Some(mirrored) = self.mirrored.as_mut().filter(|mirrored| mirrored.copies > 1 && !mirrored.damage) else { return };
        let sizes: Vec<u64> = self.devices.iter().map(|(geometry, _)| geometry.size - LABELS).collect();
        let largest = sizes.iter().copied().max().unwrap_or(0);
        mirrored.spares = rng.between(1, 3) as usize;
        for _ in 0..mirrored.spares {
            let size = if rng.percent(70) { largest } else { *rng.pick(&sizes) };
            self.devices.push(device(size + rng.below(3) * self.extent, rng));
        }
        mirrored.groups.push(GroupSpec { class: Class::Spare, layout: Layout::Linear, devices: Some(mirrored.spares) });
        self.tuning.spare_millis = *rng.pick(&[0, 500, 20_000, 100_000]);
    }

    /// Draws new volumes that fit the present devices.
    pub(super) fn rescale(&mut self, rng: &mut Rng) {
        let percent = if self.tight { rng.between(90, 160) } else { rng.between(10, 45) };
        self.volumes = volumes(self.pool_bytes() * percent / 100, self.tight, rng);
    }
}

/// Segments of a group with this layout over devices of so many extents.
fn rows_of(layout: Layout, extents: &[u64]) -> u64 {
    let columns = (0..).map(MemberId).zip(extents).map(|(member, extents)| Column { member, first: 0, extents: *extents as u32 }).collect();
    Group { class: Class::Data, layout, first: SegmentId(0), columns }.rows()
}
