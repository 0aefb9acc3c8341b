//! Marks of guests that may be frozen, in the state directory (INV-FREEZE-1).

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use millpond_api::instant;

use super::{Freezer, Frozen, Guest};

impl Freezer {
    /// Writes a mark. It need not survive a loss of power, which ends the guest too.
    pub(super) fn mark(&self, guest: &Guest) -> io::Result<PathBuf> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        fs::create_dir_all(&self.marks)?;
        // not the name of a mark that an earlier daemon left
        let now = instant::to_millis(instant::now());
        let mark = self.marks.join(format!("{now}-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        fs::write(&mark, format!("{}\n{}\n", guest.socket.display(), guest.volume))?;
        Ok(mark)
    }

    /// Returns the guests of marks, and the marks. One that was not written completely is removed: its
    /// guest was not frozen yet.
    pub(super) fn marked(&self) -> Vec<(Guest, PathBuf)> {
        let entries = fs::read_dir(&self.marks).into_iter().flatten().flatten();
        let read = |path: PathBuf| {
            let text = match fs::read_to_string(&path) {
                Ok(text) => text,
                Err(error) => {
                    tracing::warn!(mark = %path.display(), %error, "the mark of a guest that may be frozen cannot be read");
                    return None;
                }
            };
            let whole = text.strip_suffix('\n').and_then(|text| text.split_once('\n'));
            let Some((socket, volume)) = whole else {
                // it stays if it cannot be removed, and does no harm
                let _ = fs::remove_file(&path);
                return None;
            };
            Some((Guest { socket: PathBuf::from(socket), volume: volume.to_owned(), used: true }, path))
        };
        entries.filter_map(|entry| read(entry.path())).collect()
    }
}

impl Frozen {
    /// Removes the mark. One that cannot be removed leads to another thaw at the next start.
    pub(super) fn unmark(&self) {
        if let Err(error) = fs::remove_file(&self.mark) {
            tracing::warn!(mark = %self.mark.display(), %error, "the mark of a frozen guest stays");
        }
    }
}
