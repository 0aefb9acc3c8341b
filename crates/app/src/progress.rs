//! How long work shows: a bar on a terminal, a line a second elsewhere, and at its end a line with the result; all on stderr.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::instant::show_span;
use crate::size::Size;

const LINE_EVERY: Duration = Duration::from_secs(1);

/// Progress of one piece of work in bytes.
pub struct Progress {
    what: String,
    bar: Option<ProgressBar>,
    begun: Instant,
    last_line: Instant,
    total: u64,
}

impl Progress {
    /// Work on `total` bytes, as known so far.
    pub fn new(what: impl Into<String>, total: u64) -> Progress {
        let what = what.into();
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(total);
            if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}") {
                bar.set_style(style);
            }
            bar.set_message(what.clone());
            bar
        });
        Progress { what, bar, begun: Instant::now(), last_line: Instant::now(), total }
    }

    /// `remaining` bytes are left; more than before means that more work came.
    pub fn remaining(&mut self, remaining: u64) {
        self.total = self.total.max(remaining);
        let done = self.total - remaining;
        if let Some(bar) = &self.bar {
            bar.set_length(self.total);
            bar.set_position(done);
        } else if self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            let rate = done as f64 / self.begun.elapsed().as_secs_f64().max(0.001);
            eprintln!("{}: {} of {} at {}/s done", self.what, Size(done), Size(self.total), Size(rate as u64));
        }
    }

    /// The largest number of bytes that were to do.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// All done: says what came of it, and how long it took.
    pub fn finish(self, result: &str) {
        let line = result_line(&self.what, result, self.begun.elapsed());
        self.give_up();
        eprintln!("{line}");
    }

    /// It ended otherwise, which somebody else says.
    pub fn give_up(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The last line of long work.
fn result_line(what: &str, result: &str, took: Duration) -> String {
    let result = if result.is_empty() { String::new() } else { format!("{result}, ") };
    let took = if took.as_secs() < 60 { format!("{:.1} s", took.as_secs_f64()) } else { show_span(took.as_secs()) };
    format!("{what}: done, {result}{took}")
}

#[cfg(test)]
mod tests {
    //! The last line.
    use super::*;

    #[test]
    fn the_last_line_has_the_result_and_the_time() {
        let line = |result: &str, millis| result_line("import p/v", result, Duration::from_millis(millis));
        assert_eq!(line("300M, 24M of data", 440), "import p/v: done, 300M, 24M of data, 0.4 s");
        assert_eq!(line("", 3_700_000), "import p/v: done, 1 h 1 min");
    }
}
