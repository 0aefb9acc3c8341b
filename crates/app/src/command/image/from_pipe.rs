//! `import-image - POOL/VOL`: makes a volume from a raw image on standard input, whose length is
//! known when it ends.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

use millpond_api::client::Client;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::{SetSector, Volume, VolumeSector};
use millpond_block::SectorProfile;
use millpond_daemon::Signals;
use millpond_images::format::Format;
use millpond_images::nbd::{self, BLOCK};
use millpond_images::pipe::{self, Feed, FillError, Input};
use millpond_images::sectors::{Finding, look};

use super::incomplete::{Incomplete, resize};
use super::transient_export::{REMOVED, Total, TransientExport, copy_failure, interruptible, written};

/// The source in messages.
const SOURCE: &str = "standard input";
/// Bytes that are read before the volume is made, to find out what they are.
const HEAD: usize = 1 << 20;
/// Size of the volume in bytes while more may follow. It doubles each time it is too small; only
/// written blocks take space.
const FIRST_SIZE: u64 = 256 << 20;
/// Larger than any disk: the size of one whose end is not known.
const UNKNOWN: u64 = 1 << 60;

/// The disk that is expected on standard input.
#[derive(Clone, Copy, Debug)]
pub struct FromPipe {
    /// Exact number of bytes, if it was given.
    pub size: Option<u64>,
    /// Sector profile that was asked for.
    pub sector: Option<SectorProfile>,
    /// The user says that it is raw.
    pub is_raw: bool,
}

/// Checks the usage before anything is read or asked.
///
/// # Errors
/// Wrong usage.
pub fn check(format: Option<Format>) -> Outcome {
    if let Some(format) = format.filter(|format| *format != Format::Raw) {
        return Err(not_streamed(format));
    }
    if io::stdin().is_terminal() {
        return Err(Failure::usage("standard input is a terminal; redirect it from a file or a program, or give a file"));
    }
    Ok(())
}

fn not_streamed(format: Format) -> Failure {
    let name = format.name();
    Failure::usage(format!("an image of format {name} cannot be read from {SOURCE}; save it to a file and import that"))
}

fn longer(exact: u64) -> String {
    format!("{SOURCE} has more than the {exact} bytes of --size; check what writes it, or give no --size")
}

impl FromPipe {
    /// Reads the start of standard input and makes sure that it is not another format.
    ///
    /// # Errors
    /// Wrong usage when there is nothing, or another format; that it cannot be read; that it was
    /// interrupted.
    pub async fn begin(self, signals: &mut Signals) -> Outcome<Begun> {
        let file = io::stdin().as_fd().try_clone_to_owned().map(File::from);
        let file = file.map_err(|e| Failure::failed(format!("cannot read {SOURCE}: {e}; redirect it from a file or a program")))?;
        let what = format!("read {SOURCE}");
        let feed = interruptible(what, (Total::Hidden, written), "nothing was made", signals, move |progress| {
            let mut rest = Input::new(file);
            let head = rest.next(HEAD, &|| progress.stop.load(Relaxed));
            let head = head.map_err(|e| Failure::failed(format!("cannot read {SOURCE}: {e}; check what writes it")))?;
            Ok(Feed { head, rest })
        })
        .await?;
        if feed.head.is_empty() {
            return Err(Failure::usage(format!("{SOURCE} is empty; check what writes it")));
        }
        let whole = feed.head.len() < HEAD;
        self.fits(feed.head.len() as u64, whole)?;
        match Format::of_head(&feed.head) {
            Format::Raw => {}
            _ if self.is_raw => {}
            other => {
                let line = format!("{}, or give -f raw if its bytes are those of a disk", not_streamed(other));
                return Err(Failure::usage(line));
            }
        }
        let known = if whole { Some(feed.head.len() as u64) } else { self.size };
        // Bytes after the head read as zeroes. The look draws no conclusion from zeroes.
        let mut read = |offset: u64, into: &mut [u8]| {
            into.fill(0);
            let start = usize::try_from(offset).unwrap_or(usize::MAX).min(feed.head.len());
            let part = feed.head.get(start..).unwrap_or_default();
            into.iter_mut().zip(part).for_each(|(byte, new)| *byte = *new);
            Ok(())
        };
        let finding = look(known.unwrap_or(UNKNOWN), &mut read);
        let finding = finding.map_err(|e| Failure::failed(format!("cannot read {SOURCE}: {e}")))?;
        let sector = self.agreed(&finding)?;
        Ok(Begun { how: self, feed, whole, sector })
    }

    /// Checks the number of bytes so far, or of all bytes, if the exact number was given.
    fn fits(&self, length: u64, whole: bool) -> Outcome {
        match self.size {
            Some(exact) if length > exact => Err(Failure::failed(longer(exact))),
            Some(exact) if whole && length < exact => {
                let line = format!("{SOURCE} ended after {length} bytes, --size is {exact}: it was cut off; see why, and run it again");
                Err(Failure::failed(line))
            }
            _ => Ok(()),
        }
    }

    /// Chooses the sector profile as for a file.
    fn agreed(&self, finding: &Finding) -> Outcome<VolumeSector> {
        match (self.sector, finding.sector) {
            (Some(profile), Some(found)) if found != u64::from(profile.logical()) => {
                let (own, to) = if found == 4096 { ("4kn", "512e") } else { ("512e", "4kn") };
                Err(Failure::failed(format!(
                    "cannot import {SOURCE} with --sector {profile}: the disk is made for {found}-byte sectors; import it with \
                     --sector {own}, then 'millpond convert-sectors POOL/VOL {to}' changes it"
                )))
            }
            (Some(profile), _) => Ok(profile.into()),
            (None, Some(4096)) => Ok(VolumeSector::S4kn),
            (None, _) => Ok(VolumeSector::S512e),
        }
    }
}

/// An import whose first bytes are known.
pub struct Begun {
    how: FromPipe,
    feed: Feed,
    /// The first bytes are all.
    whole: bool,
    /// Sector profile to begin with.
    pub sector: VolumeSector,
}

impl Begun {
    /// Size in bytes of the volume to begin with.
    pub fn first_size(&self) -> u64 {
        let head = self.feed.head.len() as u64;
        let size = if self.whole { head } else { self.how.size.unwrap_or(FIRST_SIZE).max(head) };
        size.next_multiple_of(BLOCK)
    }

    /// Fills the incomplete volume, and gives it the size and the sectors of what was read.
    ///
    /// # Errors
    /// The daemon's error, that of the copy, that the disk is truncated or made for other sectors,
    /// or that it was interrupted.
    pub async fn fill(self, client: &Client, signals: &mut Signals, volume: &Incomplete<'_>) -> Outcome {
        let (how, began_as, size) = (self.how, self.sector.clone(), self.first_size());
        let transient_export = TransientExport::open(client, &volume.part.to_string(), false).await?;
        let socket = transient_export.socket().to_owned();
        let filled = copied(client, signals, volume, (self.feed, how), (size, socket)).await;
        let closed = transient_export.close(client).await;
        let (length, sector) = filled?;
        closed?;
        if sector == VolumeSector::S4kn && how.sector.is_none() {
            eprintln!("millpond: {SOURCE} is a disk of 4096-byte sectors; the volume gets --sector 4kn");
        }
        if sector != began_as {
            client.post::<_, Volume>(&format!("/v1/volumes/{}/sector", volume.part), &SetSector { sector }).await?;
        }
        volume.resize(client, length.next_multiple_of(BLOCK)).await
    }
}

/// Copies everything and looks at the disk; returns the number of bytes and the sector profile.
async fn copied(
    client: &Client,
    signals: &mut Signals,
    volume: &Incomplete<'_>,
    (feed, how): (Feed, FromPipe),
    (size, socket): (u64, PathBuf),
) -> Outcome<(u64, VolumeSector)> {
    let total = how.size.map_or(Total::Unknown, Total::Of);
    let (what, to) = (format!("import {}", volume.name), volume.name.to_string());
    let (client, part) = (client.clone(), volume.part.clone());
    // The copy runs on another thread, which may wait for the daemon.
    let runtime = tokio::runtime::Handle::current();
    interruptible(what, (total, written), REMOVED, signals, move |progress| {
        let mut grow = |size: u64| match how.size {
            Some(exact) => Err(Failure::failed(longer(exact))),
            None => runtime.block_on(resize(&client, &part, size)),
        };
        let length = pipe::fill(feed, &socket, size, &mut grow, progress).map_err(|error| match error {
            FillError::Copy(error) => copy_failure(error, SOURCE, &to),
            FillError::Grow(failure) => failure,
        })?;
        how.fits(length, true)?;
        let broken = |e: io::Error| Failure::failed(format!("cannot read {to}: {e}; see the daemon's messages"));
        let mut nbd = nbd::connect(&socket).map_err(broken)?;
        let finding = look(length, &mut |offset, into: &mut [u8]| nbd::read_widened(&mut nbd, offset, into)).map_err(broken)?;
        if let Some(lacks) = finding.lacks() {
            let line = format!("cannot import {SOURCE}: its partitions end at byte {lacks}, but it had {length} bytes: it is truncated");
            return Err(Failure::failed(line));
        }
        Ok((length, how.agreed(&finding)?))
    })
    .await
}
