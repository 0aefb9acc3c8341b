//! Runs QEMU's tools for formats that the library cannot read or write. They run as processes of
//! their own, with explicit files and drivers.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use millpond_api::failure::{Failure, Outcome};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::chain::Layer;
use super::format::Format;
use crate::nbd::{self, Nbd};

/// How long `qemu-nbd` may take to open or to close an image.
const PATIENCE: Duration = Duration::from_secs(60);
const TURN: Duration = Duration::from_millis(10);
/// Connections that `qemu-nbd` accepts: two or three for each reader, and some spare.
const CLIENTS: &str = "--shared=64";
const PACKAGE: &str = "install qemu-utils (Debian) or qemu-img (Fedora)";

/// Carries a complete message for the user through an `io::Error`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct QemuError(pub Failure);

/// A running `qemu-nbd`. It exits with its last client, and so with this process; dropping it kills
/// it.
pub struct Server {
    child: Child,
    socket: PathBuf,
    /// A connection that keeps `qemu-nbd` running while no other client is connected.
    hold: Option<Nbd>,
    _dir: TempDir,
}

/// Image for `qemu-nbd` to serve.
pub enum Served<'a> {
    /// The disk of the last of these layers, or an internal snapshot of it, read-only.
    Layers(&'a [Layer], Option<&'a str>),
    /// A qcow2 image made by this process, writable.
    New(&'a Path),
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.hold.take());
        // The image was opened read-only, or was flushed before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Starts `qemu-nbd` and waits until it accepts a connection.
    ///
    /// # Errors
    /// When the tool is missing, or the tool's own message.
    pub fn start(what: &Served<'_>) -> Outcome<Server> {
        let dir = tempfile::Builder::new().prefix("millpond-image-").tempdir();
        let dir = dir.map_err(|e| Failure::failed(format!("cannot make a temporary directory: {e}; see TMPDIR")))?;
        let (socket, words) = (dir.path().join("nbd.sock"), dir.path().join("words"));
        let mut command = Command::new("qemu-nbd");
        command.arg(CLIENTS).arg(format!("--socket={}", socket.display()));
        let path = match what {
            Served::Layers(layers, snapshot) => {
                command.args(["--read-only", "--allocation-depth"]);
                if let Some(id) = snapshot {
                    command.arg("--load-snapshot").arg(format!("snapshot.id={id}"));
                }
                let top = layers.last().ok_or_else(|| Failure::failed("there is no layer"))?;
                command.arg(format!("json:{}", node(layers)?));
                top.path.clone()
            }
            Served::New(path) => {
                command.args(["--discard=unmap", "--format=qcow2"]).arg(path);
                (*path).to_owned()
            }
        };
        let errors = File::create(&words).map_err(|e| Failure::failed(format!("cannot write {}: {e}", words.display())))?;
        // In its own process group, so that Ctrl-C reaches only this process, which stops the tool
        // in order.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors).process_group(0);
        let child = command.spawn().map_err(|e| missing("qemu-nbd", &path, &e))?;
        let mut server = Server { child, socket, hold: None, _dir: dir };
        let end = Instant::now() + PATIENCE;
        loop {
            if let Ok(hold) = nbd::connect(&server.socket) {
                server.hold = Some(hold);
                return Ok(server);
            }
            let ended = server.child.try_wait().map_err(|e| Failure::failed(format!("cannot wait for qemu-nbd: {e}")))?;
            if ended.is_some() || Instant::now() > end {
                let why = if ended.is_some() { last_words(&words) } else { "it does not answer".to_owned() };
                return Err(Failure::failed(format!("cannot open {}: QEMU says: {why}; check it with 'qemu-img info'", path.display())));
            }
            sleep(TURN);
        }
    }

    /// Path of the unix socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Disconnects, and waits until `qemu-nbd` has closed the image and exited.
    ///
    /// # Errors
    /// When it fails or does not exit in time.
    pub fn finish(mut self) -> Outcome {
        drop(self.hold.take());
        let end = Instant::now() + PATIENCE;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(Failure::failed(format!("qemu-nbd ended with {status}; run it again"))),
                Ok(None) if Instant::now() < end => sleep(TURN),
                Ok(None) => return Err(Failure::failed("qemu-nbd does not end; run it again")),
                Err(e) => return Err(Failure::failed(format!("cannot wait for qemu-nbd: {e}"))),
            }
        }
    }
}

fn missing(tool: &str, path: &Path, error: &io::Error) -> Failure {
    if error.kind() == io::ErrorKind::NotFound {
        return Failure::failed(format!("{} needs QEMU's tool '{tool}', which is not installed; {PACKAGE}", path.display()));
    }
    Failure::failed(format!("cannot start {tool}: {error}; {PACKAGE}"))
}

fn last_words(file: &Path) -> String {
    let mut text = String::new();
    // An error file that cannot be read is treated as empty.
    let _ = File::open(file).and_then(|file| file.take(64 << 10).read_to_string(&mut text));
    words_of(&text)
}

/// Returns the last line of a tool's output, without the tool's name.
fn words_of(text: &str) -> String {
    let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
    let line = line.trim_start_matches("qemu-nbd: ").trim_start_matches("qemu-img: ");
    let line = line.split("\"}}': ").last().unwrap_or(line).split("}': ").last().unwrap_or(line);
    line.chars().take(300).collect()
}

/// Describes the whole backing chain to QEMU, so that QEMU opens no file by a name in an image that
/// was not checked.
fn node(layers: &[Layer]) -> Outcome<Value> {
    let mut below: Option<Value> = None;
    for layer in layers {
        let mut node = json!({ "driver": layer.format.driver(), "file": file(&layer.path)? });
        if layer.format == Format::Qcow2 || below.is_some() {
            node["backing"] = below.take().unwrap_or(Value::Null);
        }
        if let Some(data) = &layer.data_file {
            node["data-file"] = file(data)?;
        }
        below = Some(node);
    }
    Ok(below.unwrap_or(Value::Null))
}

fn file(path: &Path) -> Outcome<Value> {
    use std::os::unix::fs::FileTypeExt;
    let text = path.to_str().ok_or_else(|| Failure::usage(format!("{} is not UTF-8; give another path", path.display())))?;
    let device = path.metadata().is_ok_and(|meta| meta.file_type().is_block_device());
    Ok(json!({ "driver": if device { "host_device" } else { "file" }, "filename": text }))
}

/// Runs `qemu-img` and returns its output.
///
/// # Errors
/// When the tool is missing, or the tool's own message.
pub fn qemu_img(words: &[OsString], path: &Path) -> Outcome<String> {
    let output = Command::new("qemu-img").args(words).stdin(Stdio::null()).output().map_err(|e| missing("qemu-img", path, &e))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(Failure::failed(format!("{}: QEMU says: {}; see above", path.display(), words_of(&String::from_utf8_lossy(&output.stderr)))))
}

/// A running `qemu-img convert -p`.
pub struct Convert {
    child: Child,
    path: PathBuf,
}

impl Convert {
    /// Starts to copy the disk that `socket` serves into a new file.
    ///
    /// # Errors
    /// When the tool is missing.
    pub fn start(socket: &Path, format: Format, options: &[&str], path: &Path) -> Outcome<Convert> {
        let mut command = Command::new("qemu-img");
        command.args(["convert", "-p", "-W", "-m", "8", "-O", format.driver()]);
        for option in options {
            command.args(["-o", option]);
        }
        let server = json!({ "type": "unix", "path": socket });
        let disk = json!({ "driver": "raw", "file": { "driver": "nbd", "server": server } });
        command.arg(format!("json:{disk}")).arg(path);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let child = command.spawn().map_err(|e| missing("qemu-img", path, &e))?;
        Ok(Convert { child, path: path.to_owned() })
    }

    /// Waits for the end. Calls `progress` with the percentage done, and gives up when `stopped`
    /// returns true.
    ///
    /// # Errors
    /// The tool's own message, or that it was interrupted.
    pub fn finish(mut self, progress: impl Fn(f64), stopped: impl Fn() -> bool + Sync) -> Outcome {
        let out = self.child.stdout.take();
        let mut last = String::new();
        if let Some(mut out) = out {
            let (mut piece, mut text) = ([0; 256], String::new());
            while let Ok(length @ 1..) = out.read(&mut piece) {
                if stopped() {
                    break;
                }
                text += &String::from_utf8_lossy(piece.get(..length).unwrap_or_default());
                // "    (12.34/100%)\\r"
                if let Some(end) = text.rfind("/100%)") {
                    let done = text.get(..end).and_then(|text| text.rsplit('(').next()).and_then(|number| number.parse().ok());
                    done.into_iter().for_each(&progress);
                    text = text.split_off(end + 6);
                }
            }
        }
        if stopped() {
            return Err(Failure::failed("interrupted"));
        }
        if let Some(mut err) = self.child.stderr.take() {
            // An error stream that cannot be read is treated as empty.
            let _ = err.read_to_string(&mut last);
        }
        let status = self.child.wait().map_err(|e| Failure::failed(format!("cannot wait for qemu-img: {e}")))?;
        if status.success() {
            return Ok(());
        }
        Err(Failure::failed(format!(
            "cannot write {}: QEMU reports: {}; the incomplete file was removed",
            self.path.display(),
            words_of(&last)
        )))
    }
}

impl Drop for Convert {
    fn drop(&mut self) {
        // Killing a process that has exited already does no harm.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
