//! Load of the demo: random 4 KiB writes, several in flight, counted and timed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use millpond_device::{Latencies, quantile};
use millpond_images::nbd::{self, Nbd};

/// Bytes per write.
pub const BLOCK: u64 = 4096;
/// Writes in flight.
const DEPTH: usize = 16;

/// Counters at an instant.
#[derive(Clone, Debug)]
pub struct Mark {
    at: Instant,
    latencies: Latencies,
}

/// Results between two marks.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Writes per second.
    pub per_second: f64,
    /// Latency that 99 of 100 writes stay below.
    pub p99: Duration,
}

struct Shared {
    stop: AtomicBool,
    latencies: Mutex<Latencies>,
}

impl Shared {
    fn latencies(&self) -> MutexGuard<'_, Latencies> {
        self.latencies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running load.
pub struct Load {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Load {
    /// Starts a thread that writes into the first `region` bytes of the export on `socket`.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(socket: &Path, region: u64) -> io::Result<Load> {
        let shared = Arc::new(Shared { stop: AtomicBool::new(false), latencies: Mutex::default() });
        let (theirs, socket): (Arc<Shared>, PathBuf) = (Arc::clone(&shared), socket.to_owned());
        let thread = thread::Builder::new().name("load".to_owned()).spawn(move || run(&socket, region, &theirs))?;
        Ok(Load { shared, thread: Some(thread) })
    }

    /// Returns the counters of this instant.
    pub fn mark(&self) -> Mark {
        Mark { at: Instant::now(), latencies: *self.shared.latencies() }
    }

    /// True if the load has ended by itself, that is, failed.
    pub fn failed(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops the load.
    ///
    /// # Errors
    /// The error with which the load ended.
    pub fn stop(mut self) -> io::Result<()> {
        self.shared.stop.store(true, Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(ended)) => ended,
            _ => Err(io::Error::other("the load's thread panicked")),
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
    }
}

/// Computes the results between two marks.
pub fn between(from: &Mark, to: &Mark) -> Measured {
    let before = from.latencies.counts();
    let mut counts = to.latencies.counts();
    counts.iter_mut().zip(before).for_each(|(count, before)| *count -= before);
    let total: u64 = counts.iter().sum();
    let seconds = to.at.duration_since(from.at).as_secs_f64();
    Measured {
        per_second: if seconds > 0.0 { total as f64 / seconds } else { 0.0 },
        p99: Duration::from_secs_f64(quantile(&counts, 0.99).unwrap_or(0.0) / 1e9),
    }
}

/// A fast pseudo-random sequence (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

fn run(socket: &Path, region: u64, shared: &Shared) -> io::Result<()> {
    let mut nbd = nbd::connect(socket)?;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut block = vec![0; usize::try_from(BLOCK).unwrap_or(0)];
    block.iter_mut().for_each(|byte| *byte = random.next().to_le_bytes()[0]);
    let mut started = [Instant::now(); DEPTH];
    let mut in_flight = 0;
    let mut send = |nbd: &mut Nbd, slot: usize, started: &mut [Instant; DEPTH]| -> io::Result<()> {
        let stamp = random.next();
        block.iter_mut().zip(stamp.to_le_bytes()).for_each(|(byte, stamp)| *byte = stamp);
        if let Some(at) = started.get_mut(slot) {
            *at = Instant::now();
        }
        nbd.start_write(slot as u64, stamp % (region / BLOCK) * BLOCK, &block)
    };
    for slot in 0..DEPTH {
        send(&mut nbd, slot, &mut started)?;
        in_flight += 1;
    }
    while in_flight > 0 {
        let slot = usize::try_from(nbd.reply()?).unwrap_or(DEPTH);
        let began = started.get(slot).ok_or_else(|| io::Error::other("a reply to nothing"))?;
        let nanos = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        shared.latencies().count(nanos);
        if shared.stop.load(Relaxed) {
            in_flight -= 1;
        } else {
            send(&mut nbd, slot, &mut started)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_those_between_the_marks() {
        let mut latencies = Latencies::default();
        latencies.count(3_000_000_000);
        let from = Mark { at: Instant::now(), latencies };
        (0..99).for_each(|_| latencies.count(1_000_000));
        latencies.count(50_000_000);
        let to = Mark { at: from.at + Duration::from_secs(1), latencies };
        let measured = between(&from, &to);
        assert!((measured.per_second - 100.0).abs() < 0.01);
        assert!(measured.p99 >= Duration::from_micros(1000) && measured.p99 < Duration::from_micros(1200), "{:?}", measured.p99);
        assert_eq!(between(&to, &to).p99, Duration::ZERO);
    }
}
