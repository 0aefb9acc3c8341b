//! The file of events: lines of JSON, written by one thread.
//!
//! Events that could not be written are written later: as soon as the file can be written, it is
//! replaced by the remembered events. A file that was rotated or removed is begun anew.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::Event;
use super::recent::{EventBounds, Recent, line};

/// The file has at most so many times the lines and bytes of the remembered events; then it is
/// replaced by these.
pub(super) const SLACK: usize = 2;

/// The file, open for appending while it can be written.
pub(super) struct EventFile {
    path: PathBuf,
    file: Option<File>,
    /// Reason why it cannot be written.
    why: String,
    lines: usize,
    bytes: usize,
    /// The last events.
    recent: Recent,
}

impl EventFile {
    /// Opens the file and reads its events.
    pub(super) fn open(path: PathBuf, bounds: EventBounds) -> EventFile {
        let mut file = EventFile { path, file: None, why: String::new(), lines: 0, bytes: 0, recent: Recent::new(bounds) };
        if let Err(error) = file.load() {
            file.file = None;
            file.why = error.to_string();
            let path = file.path.display();
            tracing::warn!(%error, file = %path, "earlier events may not be known, and later ones are not kept over a restart");
        }
        file
    }

    /// Returns the last events, oldest first.
    pub(super) fn recent(&self) -> &Recent {
        &self.recent
    }

    /// Returns the reason why the file lacks events; `None` if it has them all.
    pub(super) fn lacks(&self) -> Option<String> {
        self.file.is_none().then(|| format!("{}: {}", self.path.display(), self.why))
    }

    fn load(&mut self) -> io::Result<()> {
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let mut sound = text.is_empty() || text.ends_with(b"\n");
        self.bytes = text.len();
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            self.lines += 1;
            match serde_json::from_slice(line) {
                Ok(event) => self.recent.keep(event),
                // a line that a crash cut off
                Err(_) => sound = false,
            }
        }
        if sound && self.takes(0, 0) { self.append() } else { self.write_anew() }
    }

    /// True if the file stays within its bounds with so many lines and bytes more.
    fn takes(&self, lines: usize, bytes: usize) -> bool {
        let EventBounds { count, bytes: limit } = self.recent.bounds();
        self.lines + lines <= SLACK * count && self.bytes + bytes <= SLACK * limit
    }

    /// Adds events to the file; where it lacks some, replaces it.
    pub(super) fn add(&mut self, fresh: Vec<Event>) {
        let lines: Vec<u8> = fresh.iter().flat_map(line).collect();
        let (lacked, count) = (self.file.is_none(), fresh.len());
        fresh.into_iter().for_each(|event| self.recent.keep(event));
        let written = self.write(&lines, count);
        let file = self.path.display();
        match written {
            Ok(()) if lacked => tracing::info!(%file, "events are kept over a restart again"),
            Ok(()) => {}
            Err(error) => {
                self.file = None;
                self.why = error.to_string();
                if !lacked {
                    tracing::warn!(%error, %file, "events are not kept over a restart until the file can be written");
                }
            }
        }
    }

    fn write(&mut self, lines: &[u8], count: usize) -> io::Result<()> {
        if self.file.is_some() && !self.is_there()? {
            (self.lines, self.bytes) = (0, 0);
            self.append()?;
        }
        let takes = self.takes(count, lines.len());
        match &mut self.file {
            Some(file) if takes => {
                self.lines += count;
                self.bytes += lines.len();
                file.write_all(lines)
            }
            _ => self.write_anew(),
        }
    }

    /// True while the open file is still the file of that name.
    fn is_there(&self) -> io::Result<bool> {
        let Some(file) = &self.file else { return Ok(false) };
        let (open, named) = (file.metadata()?, fs::metadata(&self.path));
        match named {
            Ok(named) => Ok((open.dev(), open.ino()) == (named.dev(), named.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn append(&mut self) -> io::Result<()> {
        self.file = Some(File::options().create(true).append(true).open(&self.path)?);
        Ok(())
    }

    /// Replaces the file by the remembered events.
    fn write_anew(&mut self) -> io::Result<()> {
        let temporary = self.path.with_extension("new");
        let lines: Vec<u8> = self.recent.iter().flat_map(line).collect();
        // flushed, so that a crash of the host does not leave an empty file in the place of the old one
        let made = File::create(&temporary).and_then(|mut file| file.write_all(&lines).and_then(|()| file.sync_data()));
        if let Err(error) = made.and_then(|()| fs::rename(&temporary, &self.path)) {
            // half a file takes space that the old one needs
            let _ = fs::remove_file(&temporary);
            return Err(error);
        }
        (self.lines, self.bytes) = (self.recent.len(), lines.len());
        self.append()
    }
}
