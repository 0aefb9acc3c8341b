//! Progress of long work on stderr: a bar on a terminal, else a line per second; and a line with
//! the result at the end.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use millpond_api::instant::show_span;
use millpond_api::size::Size;

const LINE_EVERY: Duration = Duration::from_secs(1);

/// Progress of an operation in bytes.
pub struct Progress {
    what: String,
    bar: Option<ProgressBar>,
    begun: Instant,
    last_line: Instant,
    total: u64,
}

impl Progress {
    /// Starts with `total` bytes, as far as known.
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

    /// Reports the remaining bytes. A number above the total raises the total.
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

    /// Reports the bytes that are done, of a total that is not known.
    pub fn counted(&mut self, done: u64) {
        if let Some(bar) = &self.bar {
            bar.set_length(done);
            bar.set_position(done);
        } else if self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            let rate = done as f64 / self.begun.elapsed().as_secs_f64().max(0.001);
            eprintln!("{}: {} at {}/s done", self.what, Size(done), Size(rate as u64));
        }
    }

    /// Returns the largest total so far, in bytes.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Ends successfully: prints the result and the time taken.
    pub fn finish(self, result: &str) {
        let line = result_line(&self.what, result, self.begun.elapsed());
        self.give_up();
        eprintln!("{line}");
    }

    /// Ends without a result; the caller reports why.
    pub fn give_up(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Formats the final line.
fn result_line(what: &str, result: &str, took: Duration) -> String {
    let result = if result.is_empty() { String::new() } else { format!("{result}, ") };
    let took = if took.as_secs() < 60 { format!("{:.1} s", took.as_secs_f64()) } else { show_span(took.as_secs()) };
    format!("{what}: done, {result}{took}")
}

#[cfg(test)]
mod tests {
    //! The final line.
    use super::*;

    #[test]
    fn the_last_line_has_the_result_and_the_time() {
        let line = |result: &str, millis| result_line("import p/v", result, Duration::from_millis(millis));
        assert_eq!(line("300M, 24M of data", 440), "import p/v: done, 300M, 24M of data, 0.4 s");
        assert_eq!(line("", 3_700_000), "import p/v: done, 1 h 1 min");
    }
}
