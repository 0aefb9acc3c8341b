//! Crashes: the state that they leave undecided, and how later reads decide it.

use super::history::{Cell, Cut};
use super::{Oracle, Target, Verdict, broken};
use crate::oracle::Listing;
use crate::trace::Moment;

impl Oracle {
    /// Records the death of the daemon or a power cut (`power`). Requests and commands in flight
    /// may have happened.
    ///
    /// A second crash, before everything that the first left was read, adds only its own losses:
    /// the state is still a cut of the same history.
    pub fn crash(&mut self, power: bool, now: Moment) {
        for flight in std::mem::take(&mut self.flights).into_values() {
            for piece in flight.pieces() {
                let piece = self.pieces.get_mut(piece);
                piece.end = piece.end.min(now);
            }
        }
        self.questions.clear();
        for mut issued in std::mem::take(&mut self.commands).into_values() {
            issued.until = now;
            self.unanswered.push(issued);
        }
        if !power {
            return;
        }
        for volume in self.volumes.values_mut().filter(|v| v.crash.is_none()) {
            let mut cut = Cut::power(volume.floor, now);
            // A snapshot is durable, and so are the pieces known to be in it: the head had them
            // before the snapshot was taken.
            for snapshot in self.snapshots.values().filter(|s| s.volume == volume.id) {
                let known = self.cuts.get(snapshot.cut).into_iter().flat_map(Cut::pins);
                known.filter(|(_, present)| *present).for_each(|(id, _)| cut.pin(id, true));
            }
            volume.crash = Some(cut);
            volume.recovered = vec![None; volume.cells.len()];
        }
    }

    /// Decides after a recovery which unanswered commands happened, and compares the listing with
    /// the required state.
    ///
    /// # Errors
    /// If an answered command has not happened, or an unanswered one only in part.
    pub fn reconcile(&mut self, listing: &Listing, now: Moment) -> Verdict {
        for issued in std::mem::take(&mut self.unanswered) {
            if self.has_happened(&issued, listing)? {
                self.apply(&issued, issued.until.min(now), listing)?;
            }
        }
        self.compare(listing)
    }

    /// Accepts another state because the user chose it: the heads hold whatever is read from them
    /// next.
    pub fn adopt(&mut self, now: Moment) {
        for volume in self.volumes.values_mut() {
            volume.crash = Some(Cut::power(0, now));
            volume.recovered = vec![None; volume.cells.len()];
        }
        self.adopting = true;
    }

    /// Returns the heads whose state after a power cut has not been read in full.
    pub fn unsettled(&self) -> Vec<Target> {
        self.volumes.values().filter(|v| v.crash.is_some()).map(|v| Target::Head(v.id)).collect()
    }

    /// Settles every head after it was read in full: the values found are its content, on stable
    /// media.
    ///
    /// # Errors
    /// If some cell was not read, which is a bug of the caller.
    pub fn settle(&mut self, now: Moment) -> Verdict {
        for volume in self.volumes.values_mut() {
            let Some(cut) = volume.crash.take() else { continue };
            let Some(values) = std::mem::take(&mut volume.recovered).into_iter().collect::<Option<Vec<_>>>() else {
                return broken(format!("volume {} was not read in full after the power cut", volume.name));
            };
            for (id, present) in cut.pins() {
                let piece = self.pieces.get_mut(id);
                if present {
                    piece.high = piece.high.min(cut.max);
                } else {
                    piece.dead = true;
                }
            }
            volume.cells = values.into_iter().map(Cell::settled).collect();
            volume.floor = now;
        }
        self.adopting = false;
        Ok(())
    }
}
