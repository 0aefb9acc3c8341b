//! `export`, `exports` and `unexport`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use millpond_api::client::Client;
use millpond_api::failure::{Failure, Outcome};
use millpond_api::names::{self, Kind, Name};
use millpond_api::path::absolute;
use millpond_api::{
    Access, CreateExport, CreateFuse, CreateNbd, CreateVhostUser, Export, ExportKind, ExportState, ExportVolume, NbdLimits, Volume,
};
use serde::Serialize;

use millpond_daemon::{Lines, client_lines};

use super::candidates;
use super::columns::EXPORT;
use super::globs::{Pattern, is_pattern};
use super::owner;
use super::status::not_online;
use super::tls::TlsWords;
use crate::output::{Format, Listing, print, print_pairs, write_out};

mod again;

/// Serve a volume or snapshot to clients, or create the exports of a list
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond export nbd tank/vm1 --unix /run/vm1.sock
  millpond export fuse tank /mnt/tank
  millpond exports --format json > exports.json             on one host
  millpond export --from exports.json                       on another host: those that do not exist")]
pub struct ExportVerb {
    #[command(subcommand)]
    kind: Option<Protocol>,
    /// Output of 'millpond exports --format json', or - for standard input: create those of its exports that do not exist
    #[arg(long, value_name = "FILE|-")]
    from: Option<PathBuf>,
    /// With --from: allow addresses that other machines can reach although TLS is not required
    #[arg(long, requires = "from")]
    insecure_listen: bool,
}

impl ExportVerb {
    pub async fn run(self, client: &Client) -> Outcome {
        match (self.kind, self.from) {
            (Some(kind), None) => kind.run(client).await,
            (None, Some(file)) => again::run(client, &file, self.insecure_listen).await,
            (Some(_), Some(_)) => Err(Failure::usage("--from creates the exports of a list; omit the protocol")),
            (None, None) => Err(Failure::usage("no protocol is named; give nbd, vhost-user or fuse, or a list with --from FILE")),
        }
    }
}

/// Protocols.
#[derive(Debug, Subcommand)]
pub enum Protocol {
    Nbd(Box<Nbd>),
    VhostUser(VhostUser),
    Fuse(Fuse),
}

/// Serve a volume or snapshot over NBD; kept across restarts
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond export nbd tank/vm1 --unix /run/vm1.sock --owner libvirt-qemu:kvm
  millpond export nbd tank/vm1@monday --tcp 127.0.0.1:10810
  millpond export nbd tank/vm1 --tcp 0.0.0.0 --tls require --tls-dir /etc/pki/millpond --tls-verify-peer
  millpond export nbd tank/vm1 --unix /run/vm1.sock --tls require --tls-psk /etc/millpond/keys.psk")]
pub struct Nbd {
    /// POOL/VOL, or POOL/VOL@SNAP (read-only)
    #[arg(add = candidates::names())]
    name: String,
    /// Unix socket to create; without --unix and --tcp, one beside the control socket
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// TCP address, HOST:PORT; the default port is 10809
    #[arg(long, value_name = "ADDR")]
    tcp: Option<String>,
    /// Refuse writes
    #[arg(long)]
    readonly: bool,
    /// Succeed if the same export exists
    #[arg(long)]
    if_missing: bool,
    /// Allow a second writable export of the same volume
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    whose: Whose,
    /// Allow an address that other machines can reach although TLS is not required
    #[arg(long, visible_alias = "insecure")]
    insecure_listen: bool,
    #[command(flatten)]
    tls: TlsWords,
    /// Maximum number of clients [default: 128]
    #[arg(long, value_name = "N")]
    max_clients: Option<u32>,
    /// Maximum number of requests in flight per client [default: 256]
    #[arg(long, value_name = "N")]
    max_requests: Option<u16>,
    /// Maximum seconds for the negotiation with a client [default: 10]
    #[arg(long, value_name = "SECONDS")]
    handshake_seconds: Option<u32>,
    #[command(flatten)]
    how: Listing,
}

/// Serve a volume or snapshot as a vhost-user-blk device to a guest on this machine; kept across restarts
///
/// The guest's memory must be shared: a memfd, or a file of tmpfs or hugetlbfs.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond export vhost-user tank/vm1 --unix /run/vm1.sock
  qemu-system-x86_64 -m 4G -object memory-backend-memfd,id=m,size=4G,share=on -machine memory-backend=m \\
    -chardev socket,id=c,path=/run/vm1.sock,reconnect=1 -device vhost-user-blk-pci,chardev=c,num-queues=4")]
pub struct VhostUser {
    /// POOL/VOL, or POOL/VOL@SNAP (read-only)
    #[arg(add = candidates::names())]
    name: String,
    /// Unix socket to create; without it, one beside the control socket
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// Maximum number of queues of the guest, 1 to 256
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=256))]
    queues: u16,
    /// Refuse writes
    #[arg(long)]
    readonly: bool,
    /// Succeed if the same export exists
    #[arg(long)]
    if_missing: bool,
    /// Allow a second writable export of the same volume
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    whose: Whose,
    #[command(flatten)]
    how: Listing,
}

/// Owner and mode of a unix socket.
#[derive(Clone, Copy, Debug, Default, Args)]
struct Whose {
    /// Owner of the unix socket: USER, USER:GROUP or :GROUP, names or numbers [default: the daemon's user]
    #[arg(long, value_name = "USER[:GROUP]", value_parser = owner::parse)]
    owner: Option<owner::Owner>,
    /// Permissions of the socket in octal; connecting needs write permission [default: 0660 with a group, 0600 without]
    #[arg(long, value_name = "MODE", value_parser = owner::mode)]
    mode: Option<u16>,
}

impl Whose {
    fn access(self) -> Access {
        let owner = self.owner.unwrap_or_default();
        Access { uid: owner.uid, gid: owner.gid, mode: self.mode, allow_other: false }
    }
}

/// Returns an absolute path as text, as the API takes it.
pub fn path_text(path: &Path) -> Outcome<String> {
    let path = absolute(path);
    path.to_str().map(str::to_owned).ok_or_else(|| Failure::usage(format!("{} is not UTF-8; give another path", path.display())))
}

impl Protocol {
    pub async fn run(self, client: &Client) -> Outcome {
        match self {
            Protocol::Nbd(nbd) => nbd.run(client).await,
            Protocol::VhostUser(vhost_user) => vhost_user.run(client).await,
            Protocol::Fuse(fuse) => fuse.run(client).await,
        }
    }
}

impl Nbd {
    async fn run(self, client: &Client) -> Outcome {
        let name: Name = self.name.parse()?;
        let request = CreateExport::Nbd(CreateNbd {
            receive: false,
            name: name.to_string(),
            unix: self.unix.as_deref().map(path_text).transpose()?,
            tcp: self.tcp,
            readonly: self.readonly,
            force: self.force,
            access: self.whose.access(),
            transient: false,
            insecure: self.insecure_listen,
            tls: self.tls.request()?,
            limits: NbdLimits { max_clients: self.max_clients, max_requests: self.max_requests, handshake_seconds: self.handshake_seconds },
        });
        let export = again::make(client, &request, self.if_missing).await?;
        if self.how.format == Format::Json || !self.how.columns.is_empty() {
            return print_pairs(&export, EXPORT, &self.how);
        }
        write_out(&format!("export {}  {}\n", export.id, export.uris.join(" ")))
    }
}

impl VhostUser {
    async fn run(self, client: &Client) -> Outcome {
        let name: Name = self.name.parse()?;
        let request = CreateExport::VhostUser(CreateVhostUser {
            name: name.to_string(),
            unix: self.unix.as_deref().map(path_text).transpose()?,
            queues: Some(self.queues),
            readonly: self.readonly,
            force: self.force,
            access: self.whose.access(),
        });
        let export = again::make(client, &request, self.if_missing).await?;
        if self.how.format == Format::Json || !self.how.columns.is_empty() {
            return print_pairs(&export, EXPORT, &self.how);
        }
        write_out(&format!("export {}  {}\n", export.id, export.address))
    }
}

/// Mount a pool: a file per volume, .snapshots/VOL/SNAP read-only; kept across restarts
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond export fuse tank /mnt/tank
  millpond export fuse tank /mnt/tank --owner libvirt-qemu:kvm --mode 0660
  losetup --find --show --direct-io=on --sector-size 4096 /mnt/tank/vm1")]
pub struct Fuse {
    /// The pool
    #[arg(add = candidates::pools())]
    pool: String,
    /// An empty directory; it is created if missing
    dir: PathBuf,
    /// Owner of all files and directories: USER, USER:GROUP or :GROUP, names or numbers [default: the daemon's user]
    #[arg(long, value_name = "USER[:GROUP]", value_parser = owner::parse)]
    owner: Option<owner::Owner>,
    /// Permissions of volumes in octal; snapshots have no write permission, read permission includes entering directories [default: 0600]
    #[arg(long, value_name = "MODE", value_parser = owner::mode)]
    mode: Option<u16>,
    /// Allow other users access when the daemon is not root (needs user_allow_other in /etc/fuse.conf)
    #[arg(long)]
    allow_other: bool,
    /// Succeed if the same mount exists
    #[arg(long)]
    if_missing: bool,
    #[command(flatten)]
    how: Listing,
}

impl Fuse {
    async fn run(self, client: &Client) -> Outcome {
        names::check(Kind::Pool, &self.pool)?;
        let owner = self.owner.unwrap_or_default();
        let access = Access { uid: owner.uid, gid: owner.gid, mode: self.mode, allow_other: self.allow_other };
        let request = CreateExport::Fuse(CreateFuse { pool: self.pool, dir: path_text(&self.dir)?, access });
        let export = again::make(client, &request, self.if_missing).await?;
        if self.how.format == Format::Json || !self.how.columns.is_empty() {
            return print_pairs(&export, EXPORT, &self.how);
        }
        write_out(&format!("export {}  {}\n", export.id, export.address))
    }
}

/// List exports with their clients and counters, or show one with the commands to use it
///
/// The opened files of a mount are listed below it. With -H or -o each export is one line.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond exports --format json\n  millpond exports 3")]
pub struct Exports {
    /// Number, name or address of one export
    #[arg(value_name = "ID", add = candidates::exports())]
    export: Option<String>,
    #[command(flatten)]
    how: Listing,
}

impl Exports {
    pub async fn run(self, client: &Client) -> Outcome {
        let mut exports: Vec<Export> = client.get("/v1/exports").await?;
        // scripts get exactly one line per export
        let of_people = self.how.format == Format::Table && self.how.columns.is_empty() && !self.how.no_header;
        let meant = self.export.as_ref().map(|word| find(&exports, word)).transpose()?;
        if let Some(ids) = &meant {
            exports.retain(|export| ids.contains(&export.id));
        }
        let Some([id]) = meant.as_deref() else {
            let reasons: String =
                exports.iter().filter(|export| of_people && export.state != ExportState::Online).map(not_online).collect();
            let listed = if of_people { exports.into_iter().flat_map(with_volumes).collect() } else { exports };
            print(&listed, EXPORT, &self.how)?;
            return write_out(&reasons);
        };
        let Some(export) = exports.pop() else {
            return Err(Failure::failed(format!("no export {id}; see 'millpond exports'")));
        };
        let lines = lines(client, &export).await?;
        if self.how.format == Format::Json && self.how.columns.is_empty() {
            let text = serde_json::to_string_pretty(&WithLines { export, lines })
                .map_err(|e| Failure::failed(format!("cannot encode the answer: {e}")))?;
            return write_out(&(text + "\n"));
        }
        print_pairs(&export, EXPORT, &self.how)?;
        if of_people && !export.volumes.is_empty() {
            write_out("\n")?;
            let volumes: Vec<Export> = with_volumes(export.clone()).split_off(1);
            print(&volumes, EXPORT, &self.how)?;
        }
        match lines {
            Some(lines) if of_people => {
                let uris = export.uris.join(" ") + if export.uris.is_empty() { "" } else { "\n" };
                write_out(&format!("{uris}\n{}", lines.text()))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the export, followed by its mounted files as rows of their own.
fn with_volumes(mut export: Export) -> Vec<Export> {
    let volumes = std::mem::take(&mut export.volumes);
    let line = |volume: ExportVolume| {
        let ExportVolume { name, address, readonly, clients, io } = volume;
        // a row for people: a file has no protocol of its own
        let (name, kind) = (format!("  {name}"), ExportKind::Other("  file".to_owned()));
        Export { name, kind, address, readonly, clients, io, connections: Vec::new(), ..export.clone() }
    };
    let files: Vec<Export> = volumes.into_iter().map(line).collect();
    std::iter::once(export).chain(files).collect()
}

/// An export with the lines to use it.
#[derive(Serialize)]
struct WithLines {
    #[serde(flatten)]
    export: Export,
    lines: Option<Lines>,
}

/// Returns the lines to use an export; the sector profile is asked of its volume.
async fn lines(client: &Client, export: &Export) -> Outcome<Option<Lines>> {
    if export.kind == ExportKind::Fuse {
        return Ok(None); // a mount of a pool needs no lines
    }
    let name = export.name.split('@').next().unwrap_or_default();
    let volume: Volume = client.get(&format!("/v1/volumes/{name}")).await?;
    Ok(client_lines(export, &volume.sector))
}

/// Stop serving; requests that were received are answered first
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond unexport 3\n  millpond unexport tank/vm1\n  millpond unexport 'tank/vm*'")]
pub struct Unexport {
    /// Number or address of an export; or the name of a volume, snapshot or pool, or a quoted pattern of names, whose exports all end. See
    /// 'millpond exports'
    #[arg(value_name = "ID|NAME|ADDRESS", required = true, add = candidates::exports())]
    exports: Vec<String>,
    /// Disconnect connected clients; of a mount, open files cannot be used any more
    #[arg(long)]
    force: bool,
    /// For a mount: serve open files until they are closed
    #[arg(long)]
    lazy: bool,
}

impl Unexport {
    pub async fn run(self, client: &Client) -> Outcome {
        let exports: Vec<Export> = client.get("/v1/exports").await?;
        let mut ids = BTreeSet::new();
        for word in &self.exports {
            ids.extend(find(&exports, word)?);
        }
        for id in ids {
            client.delete::<()>(&format!("/v1/exports/{id}?lazy={}&force={}", self.lazy, self.force)).await?;
        }
        Ok(())
    }
}

/// Returns the ids of exports that `word` names: an id, a name, a pattern or an address.
fn find(exports: &[Export], word: &str) -> Outcome<Vec<u64>> {
    if let Ok(id) = word.parse() {
        // whether this id exists is checked by the daemon
        return Ok(vec![id]);
    }
    let path = absolute(Path::new(word));
    let pattern = if is_pattern(word) { Some(Pattern::parse(word)?) } else { None };
    let is_meant = |export: &Export| match &pattern {
        Some(pattern) if pattern.is_of_snapshots() => pattern.has_snapshot(&export.name),
        Some(pattern) => !export.name.contains('@') && pattern.has_volume(&export.name),
        None => {
            let mut addresses = export.address.split(',').chain(export.uris.iter().map(String::as_str));
            export.name == word || addresses.any(|address| address == word || Path::new(address) == path)
        }
    };
    let ids: Vec<u64> = exports.iter().filter(|export| is_meant(export)).map(|export| export.id).collect();
    if ids.is_empty() {
        return Err(Failure::failed(format!("no export '{word}'; see 'millpond exports'")));
    }
    Ok(ids)
}
