//! `up`: serves a disk in a file, with a daemon of its own in the foreground.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::path::absolute;
use millpond_api::size::Size;
use millpond_api::{
    ApiError, CreateExport, CreateNbd, CreateVolume, DeviceSpec, Export, ImportPool, Link, PoolHealth, Role, SetProperties, Volume,
};
use millpond_daemon::{
    Caller, Control, Daemon, Grants, Helpers, Inherited, Options, Signals, SocketAccess, StateDir, Web, WebOptions, client_lines,
    format_file, placement_warnings, serve_until, shell, tcp_address, this_host,
};
use millpond_engine::{ReadySpace, Tuning};

use super::exports::path_text;
use super::serve::log_to_stderr;
use crate::output::write_out;

const POOL: &str = "pond";
const DISK: &str = "disk0";
const MIB: u64 = 1 << 20;
const DEFAULT_SIZE: &str = "20G";
const WEB: &str = "127.0.0.1:8420";
/// Word for no console.
const NO_WEB: &str = "off";

/// Create a disk in a directory if there is none, and serve it until Ctrl-C
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond up --dir ./data --size 20G
  millpond up --nbd 127.0.0.1:10809")]
pub struct Up {
    /// Directory of the pool's file, the disk's socket and the control socket
    #[arg(long, value_name = "DIR", default_value = "./millpond-data")]
    dir: PathBuf,
    /// Size of a new disk [default: 20G]
    #[arg(long, value_name = "SIZE")]
    size: Option<String>,
    /// Also serve on this TCP address; the default port is 10809
    #[arg(long, value_name = "ADDR")]
    nbd: Option<String>,
    /// Allow an address that other machines can reach: NBD neither authenticates nor encrypts
    #[arg(long)]
    insecure_listen: bool,
    /// Address of the web console, or 'off'; if port 8420 is taken, another one is used
    #[arg(long, value_name = "ADDR", default_value = WEB)]
    web: String,
}

/// Advice about addresses that other machines can reach: `up` has no TLS options.
const INSTEAD: &str =
    "use 127.0.0.1, or --insecure-listen to accept that; 'millpond serve' and 'millpond export nbd --tls require' encrypt";

/// Size in bytes of the pool's file for a disk of `disk` bytes: room for the full disk, a quarter
/// more for snapshots, and the reserve.
fn pool_bytes(disk: u64) -> u64 {
    let wanted = disk.saturating_add(disk / 4).saturating_add(256 * MIB);
    wanted.div_ceil(MIB).saturating_mul(MIB)
}

impl Up {
    pub async fn run(self, socket: Option<&Path>) -> Outcome {
        log_to_stderr("warn");
        millpond_daemon::raise_descriptors();
        let Size(disk_bytes) = self.size.as_deref().unwrap_or(DEFAULT_SIZE).parse()?;
        if let Some(address) = self.nbd.as_deref().filter(|_| !self.insecure_listen) {
            tcp_address(address, false).map_err(|e| ApiError { message: e.advise(INSTEAD), ..ApiError::from(e) })?;
        }
        let dir = absolute(&self.dir);
        let state = StateDir::open(&dir).map_err(|e| Failure::failed(e.to_string().replace("--state DIR", "--dir DIR")))?;
        let socket = socket.map_or_else(|| dir.join("control.sock"), absolute);
        let control = Control::bind(&socket, SocketAccess::default(), &Inherited::default())?;
        let any_port = self.web == WEB;
        let web = WebOptions { address: self.web.clone(), tls: None, insecure: self.insecure_listen, any_port };
        let web = (self.web != NO_WEB).then(|| Web::bind(&web, &Inherited::default())).transpose()?;
        let has_web = web.is_some();
        let control = control.with_web(web);
        let mut signals = Signals::catch()?;
        let file = dir.join("pond.millpond");
        let tuning = Tuning { holder: Some(this_host(None, &dir)?), ready: ReadySpace::ahead(), ..Tuning::default() };
        if !file.exists() {
            let planned = DeviceSpec { path: path_text(&file)?, create: Some(pool_bytes(disk_bytes)) };
            placement_warnings(&[planned], &[]).iter().for_each(|line| eprintln!("millpond: warning: {line}"));
            format_file(&file, POOL, pool_bytes(disk_bytes), DISK, disk_bytes, tuning.clone()).await?;
        }
        let daemon = Arc::new(Daemon::new(
            Options {
                socket: socket.clone(),
                tuning,
                helpers: Arc::new(Helpers::start(Helpers::usual())),
                start_limit: None,
                // it is for its user alone
                grants: Arc::new(Grants::new(Some(Vec::new()), None, None)),
                ..Options::default()
            },
            state,
        )?);
        let ready = async |daemon: &Daemon| {
            let (volume, exports) = self.put_into_service(daemon, &dir, &file, disk_bytes).await?;
            if self.size.is_some() && volume.size != disk_bytes {
                let (name, has, asked) = (&volume.name, Size(volume.size), Size(disk_bytes));
                let control = format!("millpond --socket {}", shell(&socket.display().to_string()));
                eprintln!("millpond: {name} was made before and has {has}, not {asked}; to change that: {control} resize {name} {asked}");
            }
            let link = has_web.then(|| daemon.make_link(&Caller::daemon(), Role::Admin)).transpose()?;
            write_out(&instructions(&volume, &exports, &socket, link.as_ref()))
        };
        serve_until(daemon, control, ready, signals.next()).await
    }

    /// Imports the pool, and creates the volume and the exports unless they exist.
    async fn put_into_service(&self, daemon: &Daemon, dir: &Path, file: &Path, disk_bytes: u64) -> Outcome<(Volume, Vec<Export>)> {
        let failed = |e: ApiError| Failure::failed(e.message);
        let here = daemon.pools().await.into_iter().any(|pool| pool.name == POOL && pool.health == PoolHealth::Online);
        if !here {
            let request = ImportPool { name: Some(POOL.to_owned()), search: vec![path_text(file)?], ..ImportPool::default() };
            daemon.import_pool(request).await.map_err(failed)?;
        }
        let name = format!("{POOL}/{DISK}");
        let volumes = daemon.volumes(Some(POOL)).await.map_err(failed)?;
        let volume = match volumes.into_iter().find(|volume| volume.name == name) {
            Some(volume) => volume,
            None => {
                let request = CreateVolume { name: name.clone(), size: disk_bytes, sector: None, properties: SetProperties::default() };
                daemon.create_volume(request).await.map_err(failed)?
            }
        };
        let unix = CreateNbd {
            name,
            unix: Some(path_text(&dir.join(format!("{DISK}.sock")))?),
            insecure: self.insecure_listen,
            ..CreateNbd::default()
        };
        let tcp = self.nbd.as_ref().map(|address| CreateNbd { unix: None, tcp: Some(address.clone()), force: true, ..unix.clone() });
        let mut exports = Vec::new();
        for request in [Some(unix), tcp].into_iter().flatten() {
            exports.push(daemon.create_export(&CreateExport::Nbd(request), false).await.map_err(failed)?);
        }
        Ok((volume, exports))
    }
}

/// Describes how to use the disk.
fn instructions(volume: &Volume, exports: &[Export], socket: &Path, link: Option<&Link>) -> String {
    let mut text = format!("{} ({}, {} sectors) is served on\n", volume.name, Size(volume.size), volume.sector);
    let uris: Vec<&str> = exports.iter().flat_map(|export| &export.uris).map(String::as_str).collect();
    uris.iter().for_each(|uri| text += &format!("  {uri}\n"));
    if let Some(Link { url, .. }) = link {
        let socket = shell(&socket.display().to_string());
        text +=
            &format!("\nConsole (the link works once, for ten minutes; 'millpond --socket {socket} token link' makes another):\n  {url}\n");
    }
    text += &format!(
        "\nIts pool takes space of the host as it is filled, and some ahead of writes; see\n  millpond --socket {} pool status -v\n",
        shell(&socket.display().to_string())
    );
    let uri = uris.first().copied().unwrap_or_default();
    if let Some(qemu) = exports.first().and_then(|export| client_lines(export, &volume.sector)?.qemu) {
        text += &format!("\nQEMU:\n  qemu-system-x86_64 -m 1G {qemu}\n");
    }
    let control = format!("millpond --socket {}", shell(&socket.display().to_string()));
    text += &format!(
        "qemu-img:\n  qemu-img info '{uri}'\n  qemu-img convert -n -O raw image.qcow2 '{uri}'\n\
         nbdcopy:\n  nbdcopy image.raw '{uri}'\n  nbdcopy '{uri}' image.raw\n\
         nbdinfo:\n  nbdinfo '{uri}'\n\
         snapshot, in another terminal:\n  {control} snapshot {name}@a\n  {control} list -t snapshot\n  {control} rollback {name}@a\n\
         \nCtrl-C stops it cleanly.\n",
        name = volume.name
    );
    text
}

#[cfg(test)]
mod tests {
    //! Size of the pool.
    use super::*;

    #[test]
    fn the_pool_has_room_for_the_disk_and_ends_on_a_mebibyte() {
        assert_eq!(pool_bytes(20 << 30), (25 << 30) + 256 * MIB);
        assert_eq!(pool_bytes(4096) % MIB, 0);
        assert!(pool_bytes(4096) > 256 * MIB);
    }
}
