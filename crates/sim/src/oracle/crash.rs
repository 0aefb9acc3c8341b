//! Crashes: what they leave undecided, and how it is decided by what is found afterwards.

use super::history::{Cell, Cut};
use super::{Oracle, Target, Verdict, broken};
use crate::oracle::Listing;
use crate::trace::Moment;

impl Oracle {
    /// The daemon dies (`power` false) or the power fails. Requests under way may have happened, commands too.
    ///
    /// A second crash before what the first one left was read adds nothing but the second's own losses: the state is still a cut of the same history.
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
            // A snapshot is durable, and so is what is known to be in it: the head had it before the snapshot was taken.
            for snapshot in self.snapshots.values().filter(|s| s.volume == volume.id) {
                let known = self.cuts.get(snapshot.cut).into_iter().flat_map(Cut::pins);
                known.filter(|(_, present)| *present).for_each(|(id, _)| cut.pin(id, true));
            }
            volume.crash = Some(cut);
            volume.recovered = vec![None; volume.cells.len()];
        }
    }

    /// After a recovery: compares what is listed with what must be there, and learns which unanswered commands happened.
    ///
    /// # Errors
    /// When an answered command has not happened, or an unanswered one by halves.
    pub fn reconcile(&mut self, listing: &Listing, now: Moment) -> Verdict {
        for issued in std::mem::take(&mut self.unanswered) {
            if self.has_happened(&issued, listing)? {
                self.apply(&issued, issued.until.min(now), listing)?;
            }
        }
        self.compare(listing)
    }

    /// The pool goes on from another state, by the user's word: what is read of heads from now on is what they hold.
    pub fn adopt(&mut self, now: Moment) {
        for volume in self.volumes.values_mut() {
            volume.crash = Some(Cut::power(0, now));
            volume.recovered = vec![None; volume.cells.len()];
        }
        self.adopting = true;
    }

    /// Heads whose state after a power cut has not been read in full.
    pub fn unsettled(&self) -> Vec<Target> {
        self.volumes.values().filter(|v| v.crash.is_some()).map(|v| Target::Head(v.id)).collect()
    }

    /// Every head has been read since the power cut: what was found is what is there, and it is on stable media.
    ///
    /// # Errors
    /// When some sector was not read: a broken caller.
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
