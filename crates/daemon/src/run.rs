//! The daemon's life: control socket, start, service, clean stop.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use millpond_api::failure::{Failure, Outcome};
use rustix::fs::Mode;
use rustix::process::umask;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::access::Peer;
use super::inherited::Inherited;
use super::service::Daemon;
use super::shard::SocketAccess;
use crate::routes;
use crate::web::{Server, Web};

/// How long requests in progress may take once the daemon stops.
const LAST_REQUESTS: Duration = Duration::from_secs(10);
/// Pause after an error of accept, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// The control socket; dropping it removes the socket, unless that was passed on to the daemon.
#[derive(Debug)]
pub struct Control {
    listener: UnixListener,
    path: PathBuf,
    /// The socket that was passed on: it is never removed.
    inherited: Option<Arc<OwnedFd>>,
    /// Listener of console and API over TCP.
    web: Option<Web>,
}

impl Control {
    /// Makes the socket, with mode 0600 unless `access` gives another. Makes its directory where
    /// missing, with mode 0711, because sockets of exports in it may belong to other users.
    /// Replaces a socket on which no daemon answers. Uses a socket that was passed on as it is.
    ///
    /// # Errors
    /// When a daemon answers there or the path cannot be used.
    pub fn bind(path: &Path, access: SocketAccess, inherited: &Inherited) -> Outcome<Control> {
        let fail =
            |e: io::Error| Failure::failed(format!("cannot make the control socket {}: {e}; give another --socket PATH", path.display()));
        if let Some(socket) = inherited.sockets(Some(path), None).unix {
            let listener = UnixListener::from(socket.try_clone().map_err(fail)?);
            listener.set_nonblocking(true).map_err(fail)?;
            return Ok(Control { listener, path: path.to_owned(), inherited: Some(socket), web: None });
        }
        if let Some(dir) = path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o711).create(dir).map_err(fail)?;
        }
        if fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket()) {
            match UnixStream::connect(path) {
                Ok(_) => {
                    return Err(Failure::failed(format!(
                        "a daemon answers on {} already; stop it or give another --socket PATH",
                        path.display()
                    )));
                }
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path).map_err(fail)?,
                Err(e) => return Err(fail(e)),
            }
        }
        // The mask belongs to the process; no other code makes files yet.
        let before = umask(Mode::from_raw_mode(0o177));
        let listener = UnixListener::bind(path);
        umask(before);
        let listener = listener.map_err(fail)?;
        listener.set_nonblocking(true).map_err(fail)?;
        let control = Control { listener, path: path.to_owned(), inherited: None, web: None };
        access.grant(path).map_err(fail)?;
        Ok(control)
    }

    /// Adds a listener over TCP, which begins and ends with the control socket.
    #[must_use]
    pub fn with_web(mut self, web: Option<Web>) -> Control {
        self.web = web;
        self
    }

    /// Returns the socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if self.inherited.is_none() {
            // The file may be gone already.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// SIGTERM, SIGINT and SIGHUP, caught from the call of [`Signals::catch`] on.
pub struct Signals {
    term: Signal,
    int: Signal,
    hangup: Signal,
}

impl Signals {
    /// Starts catching.
    ///
    /// # Errors
    /// When the host refuses.
    pub fn catch() -> Outcome<Signals> {
        let catch = |kind| signal(kind).map_err(|e| Failure::failed(format!("cannot catch signals: {e}")));
        let hangup = catch(SignalKind::hangup())?;
        Ok(Signals { term: catch(SignalKind::terminate())?, int: catch(SignalKind::interrupt())?, hangup })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }

    /// Waits for the next signal that ends a service. SIGHUP does not: the loss of a terminal is no
    /// reason to end, and the configuration file is read only at start.
    pub async fn end(&mut self) {
        loop {
            tokio::select! {
                _ = self.term.recv() => return,
                _ = self.int.recv() => return,
                _ = self.hangup.recv() => {
                    tracing::warn!("SIGHUP is ignored: the configuration file is read at start, changed credentials automatically");
                }
            }
        }
    }
}

/// Serves the control socket until `stop` completes, then shuts everything down cleanly. Meanwhile
/// imports the remembered pools, each by itself. Runs `ready` when each is in service or waits for
/// something, or when that takes too long; then marks the daemon as ready.
///
/// # Errors
/// Errors of `ready`, or the pools that could not be closed cleanly.
pub async fn serve_until(
    daemon: Arc<Daemon>,
    mut control: Control,
    ready: impl AsyncFnOnce(&Daemon) -> Outcome,
    stop: impl Future<Output = ()>,
) -> Outcome {
    daemon.report_start();
    daemon.thaw_left();
    let mut starting = daemon.start_pools();
    let start = async {
        starting.first_round(daemon.options.start_limit).await;
        ready(&daemon).await?;
        daemon.set_ready();
        Ok(())
    };
    let served = serve(&daemon, &mut control, start, stop).await;
    daemon.stop();
    // imports that have not ended by now are cancelled
    starting.tasks.shutdown().await;
    daemon.wait_for_thaws().await;
    let users = daemon.users().await;
    let closed = daemon.close().await;
    daemon.report_end(&users, &closed);
    served.and(closed)
}

/// Serves the control socket, and runs `start` beside it: an error of `start` ends the service.
async fn serve(
    daemon: &Arc<Daemon>,
    control: &mut Control,
    start: impl Future<Output = Outcome>,
    stop: impl Future<Output = ()>,
) -> Outcome {
    let path = control.path().to_owned();
    let fail = |e: io::Error| Failure::failed(format!("cannot serve {}: {e}", path.display()));
    let listener = control.listener.try_clone().and_then(tokio::net::UnixListener::from_std).map_err(fail)?;
    let server = Server::new(routes::router(Arc::clone(daemon)), daemon.stopping());
    let web = control.web.take();
    if let Some(web) = &web {
        daemon.access.set_web(web.url());
        tracing::info!("the console is on {}; 'millpond token link' makes a link to it", web.url());
    }
    let (local, remote) = (server.clone(), server.of_its_own());
    let mut server = tokio::spawn(async move {
        let local = local.run(|| accept(&listener));
        match web {
            Some(web) => tokio::try_join!(local, web.serve(remote)).map(|_| ()),
            None => local.await,
        }
    });
    let expiring = {
        let daemon = Arc::clone(daemon);
        tokio::spawn(daemon.expire())
    };
    let renewing = {
        let daemon = Arc::clone(daemon);
        tokio::spawn(async move { daemon.renew().await })
    };
    let caring = tokio::spawn(Arc::clone(daemon).care());
    let running = tokio::spawn(Arc::clone(daemon).keep_policies());
    let sending = tokio::spawn(Arc::clone(daemon).keep_sends());
    let fetching = tokio::spawn(Arc::clone(daemon).keep_fetches());
    let pruning = tokio::spawn(Arc::clone(daemon).prune_policies());
    let sampling = tokio::spawn(Arc::clone(daemon).sample_rates());
    let remembering = {
        let daemon = Arc::clone(daemon);
        tokio::spawn(async move { daemon.keep_labels().await })
    };
    let started = async {
        match start.await {
            Ok(()) => std::future::pending().await,
            Err(failure) => failure,
        }
    };
    let ended = tokio::select! {
        () = stop => Ok(()),
        failure = started => Err(failure),
        ended = &mut server => ended.map_err(io::Error::other).and_then(|served| served).map_err(fail),
    };
    [expiring, renewing, caring, remembering, running, sending, fetching, sampling, pruning]
        .iter()
        .for_each(tokio::task::JoinHandle::abort);
    daemon.stop();
    if !server.is_finished() && tokio::time::timeout(LAST_REQUESTS, &mut server).await.is_err() {
        tracing::warn!("requests on the control socket did not end in time");
        server.abort();
    }
    ended
}

/// Accepts a connection of a process of this host; its ids are those that the kernel has of it. After
/// an error of the host waits a little and returns none: it lacks descriptors, or the client is gone.
async fn accept(listener: &tokio::net::UnixListener) -> io::Result<Option<(tokio::net::UnixStream, Peer)>> {
    let accepted = async {
        let (stream, _) = listener.accept().await?;
        let peer = stream.peer_cred()?;
        Ok::<_, io::Error>((stream, Peer::Local { uid: peer.uid(), gid: peer.gid(), pid: peer.pid() }))
    };
    match accepted.await {
        Ok(accepted) => Ok(Some(accepted)),
        Err(error) => {
            tracing::debug!(%error, "cannot accept a connection on the control socket");
            tokio::time::sleep(PAUSE).await;
            Ok(None)
        }
    }
}
