//! `export`, `exports`, `unexport`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::columns::EXPORT;
use crate::api::{CreateExport, CreateNbd, Export};
use crate::client::Client;
use crate::config::absolute;
use crate::failure::{Failure, Outcome};
use crate::names::Name;
use crate::output::{Format, Listing, print, print_pairs, write_out};

/// Protocols.
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:\n  millpond export nbd tank/vm1 --unix /run/vm1.sock")]
pub enum ExportKind {
    Nbd(Nbd),
    #[command(hide = true)]
    VhostUser(Later),
    #[command(hide = true)]
    Fuse(Later),
}

/// Words of a protocol that this version does not have.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Later {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    _words: Vec<OsString>,
}

/// Serve a volume or snapshot over NBD; kept across restarts
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond export nbd tank/vm1 --unix /run/vm1.sock
  millpond export nbd tank/vm1@monday --tcp 127.0.0.1:10810")]
pub struct Nbd {
    /// POOL/VOL, or POOL/VOL@SNAP (read-only)
    name: String,
    /// Unix socket to make; without --unix and --tcp, one beside the control socket
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// TCP address, HOST:PORT; the port is 10809 where missing
    #[arg(long, value_name = "ADDR")]
    tcp: Option<String>,
    /// Refuse writes
    #[arg(long)]
    readonly: bool,
    /// Agree to an address that other machines reach: NBD neither authenticates nor encrypts
    #[arg(long, visible_alias = "insecure")]
    insecure_listen: bool,
    #[command(flatten)]
    how: Listing,
}

/// A path as the API carries it.
pub fn path_text(path: &Path) -> Outcome<String> {
    let path = absolute(path);
    path.to_str().map(str::to_owned).ok_or_else(|| Failure::usage(format!("{} is not UTF-8; give another path", path.display())))
}

impl ExportKind {
    /// Runs it.
    pub async fn run(self, client: &Client) -> Outcome {
        match self {
            ExportKind::Nbd(nbd) => nbd.run(client).await,
            ExportKind::VhostUser(_) => Err(Failure::later("export vhost-user")),
            ExportKind::Fuse(_) => Err(Failure::later("export fuse")),
        }
    }
}

impl Nbd {
    async fn run(self, client: &Client) -> Outcome {
        let name: Name = self.name.parse()?;
        let request = CreateExport::Nbd(CreateNbd {
            name: name.to_string(),
            unix: self.unix.as_deref().map(path_text).transpose()?,
            tcp: self.tcp,
            readonly: self.readonly,
            insecure: self.insecure_listen,
        });
        let export: Export = client.post("/v1/exports", &request).await?;
        if self.how.format == Format::Json || !self.how.columns.is_empty() {
            return print_pairs(&export, EXPORT, &self.how);
        }
        write_out(&format!("export {}  {}\n", export.id, export.uris.join(" ")))
    }
}

/// List exports with their clients and counters
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond exports --format json")]
pub struct Exports {
    #[command(flatten)]
    how: Listing,
}

impl Exports {
    /// Runs it.
    pub async fn run(self, client: &Client) -> Outcome {
        let exports: Vec<Export> = client.get("/v1/exports").await?;
        print(&exports, EXPORT, &self.how)
    }
}

/// Stop serving; clients are disconnected after their requests are answered
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  millpond unexport 3")]
pub struct Unexport {
    /// Number of the export, see 'millpond exports'
    id: String,
}

impl Unexport {
    /// Runs it.
    pub async fn run(self, client: &Client) -> Outcome {
        let id: u64 =
            self.id.parse().map_err(|_| Failure::usage(format!("'{}' is not the number of an export; see 'millpond exports'", self.id)))?;
        client.delete(&format!("/v1/exports/{id}")).await
    }
}
