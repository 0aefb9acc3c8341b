//! How long work shows: a bar on a terminal, a line a second elsewhere; both on stderr.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::size::Size;

const LINE_EVERY: Duration = Duration::from_secs(1);

/// Progress of one piece of work in bytes.
pub struct Progress {
    what: String,
    bar: Option<ProgressBar>,
    last_line: Option<Instant>,
    total: u64,
}

impl Progress {
    /// Work on `total` bytes, as known so far.
    pub fn new(what: impl Into<String>, total: u64) -> Progress {
        let what = what.into();
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(total);
            if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:30}] {bytes}/{total_bytes} {eta}") {
                bar.set_style(style);
            }
            bar.set_message(what.clone());
            bar
        });
        Progress { what, bar, last_line: None, total }
    }

    /// `remaining` bytes are left; more than before means that more work came.
    pub fn remaining(&mut self, remaining: u64) {
        self.total = self.total.max(remaining);
        let done = self.total - remaining;
        if let Some(bar) = &self.bar {
            bar.set_length(self.total);
            bar.set_position(done);
        } else if self.last_line.is_none_or(|last| last.elapsed() >= LINE_EVERY) {
            self.last_line = Some(Instant::now());
            eprintln!("{}: {} of {} done", self.what, Size(done), Size(self.total));
        }
    }

    /// All done.
    pub fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}
