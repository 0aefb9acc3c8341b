//! A connection that ends when its peer takes no bytes for too long: a client that does not read
//! would otherwise hold its place for ever.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// How long a peer may take no byte of what is to be sent.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection with a limit of time for each write.
pub struct Patient<S> {
    inner: S,
    sleep: Pin<Box<Sleep>>,
    /// A write is waiting, and the timer runs.
    waits: bool,
}

impl<S> Patient<S> {
    /// Wraps a connection.
    pub fn new(inner: S) -> Patient<S> {
        Patient { inner, sleep: Box::pin(sleep(PATIENCE)), waits: false }
    }

    /// Ends a wait that has lasted too long.
    fn limit<T>(&mut self, context: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.waits = false;
            return polled;
        }
        if !self.waits {
            self.waits = true;
            self.sleep.as_mut().reset(Instant::now() + PATIENCE);
        }
        match self.sleep.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, target: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, target)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.limit(context, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_flush(context);
        self.limit(context, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_shutdown(context);
        self.limit(context, polled)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(test);
    }

    #[test]
    fn bytes_pass_and_the_timer_runs_only_while_a_write_waits() {
        run(async {
            let (ours, mut theirs) = tokio::io::duplex(8);
            let mut ours = Patient::new(ours);
            ours.write_all(b"12345678").await.expect("written");
            assert!(!ours.waits);
            let waiting = tokio::time::timeout(Duration::from_millis(20), ours.write_all(b"9")).await;
            assert!(waiting.is_err() && ours.waits, "the peer reads nothing");
            ours.sleep.as_mut().reset(Instant::now());
            assert_eq!(ours.write_all(b"9").await.map_err(|e| e.kind()), Err(io::ErrorKind::TimedOut));
            let mut read = [0; 8];
            theirs.read_exact(&mut read).await.expect("read");
            ours.write_all(b"9").await.expect("there is room again");
            assert!(!ours.waits);
        });
    }
}
