//! `doctor`: looks at this host, with or without a running daemon.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use millpond_api::client::Client;
use millpond_api::failure::{Code, Failure, Outcome};
use millpond_api::{DeviceState, Status};
use millpond_daemon::doctor::{Check, CheckState, Host, known_devices};
use serde::Serialize;

use super::columns::CHECK;
use crate::config::state_dir;
use crate::output::{Format, Listing, print, write_out};

/// Look at this host: kernel, limits, permissions, and the devices below pools
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  millpond doctor
  millpond doctor --device /dev/sdb --device /dev/sdc     before a pool is made

Each line has what was found, and what to change. Exit code 0: all is well, 1: warnings, 4: data is at risk, or something does not work.
Nothing is changed. Without a running daemon, the devices are those in its state directory. 'millpond status --check' lists the problems of pools.")]
pub struct Doctor {
    /// Look at this device, too; may be repeated
    #[arg(long = "device", value_name = "PATH")]
    devices: Vec<PathBuf>,
    /// State directory of the daemon, if it does not run
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    #[command(flatten)]
    how: Listing,
}

#[derive(Serialize)]
struct Answer {
    state: &'static str,
    checks: Vec<Check>,
}

impl Doctor {
    pub async fn run(self, client: &Client, socket: &Path) -> Outcome {
        let (status, unreached) = match client.get::<Status>("/v1/status").await {
            Ok(status) => (Some(status), None),
            Err(failure) if failure.code == Code::Unreachable => (None, Some(failure)),
            Err(failure) => return Err(failure),
        };
        let mut devices: BTreeSet<PathBuf> = self.devices.iter().map(|path| millpond_api::path::absolute(path)).collect();
        let mut checks = Vec::new();
        let state = match &status {
            Some(status) => {
                let of_pools = status.pools.iter().flat_map(|pool| &pool.devices);
                // a device that is known to be missing is a condition of its pool
                let here = of_pools.filter(|device| device.state != DeviceState::Missing);
                devices.extend(here.map(|device| PathBuf::from(&device.path)));
                PathBuf::from(&status.state_dir)
            }
            None => {
                let state = state_dir(self.state.as_deref())?;
                devices.extend(known_devices(&state).map_err(Failure::failed)?);
                state
            }
        };
        checks.push(daemon(status.as_ref(), unreached.as_ref()));
        let host = Host {
            root: PathBuf::from("/"),
            pid: status.as_ref().map(|status| status.pid),
            state,
            socket: socket.to_owned(),
            devices: devices.into_iter().collect(),
        };
        let looked = tokio::task::spawn_blocking(move || host.checks()).await;
        checks.extend(looked.map_err(|e| Failure::failed(format!("the look at the host broke off: {e}")))?);
        self.end(checks)
    }

    /// Prints the checks.
    ///
    /// # Errors
    /// Exit code 1 for warnings and 4 for failures; or stdout cannot be written.
    fn end(&self, checks: Vec<Check>) -> Outcome {
        let worst = checks.iter().map(|check| check.state).max().unwrap_or(CheckState::Ok);
        let (state, code) = match worst {
            CheckState::Ok | CheckState::Unknown => ("ok", None),
            CheckState::Warn => ("warnings", Some(Code::Failed)),
            CheckState::Fail => ("failures", Some(Code::Degraded)),
        };
        if self.how.format == Format::Json && self.how.columns.is_empty() {
            let text = serde_json::to_string_pretty(&Answer { state, checks });
            write_out(&(text.map_err(|e| Failure::failed(format!("cannot encode the answer: {e}")))? + "\n"))?;
        } else {
            print(&checks, CHECK, &self.how)?;
        }
        code.map_or(Ok(()), |code| Err(Failure::said(code)))
    }
}

/// Returns the check of the daemon and its conditions.
fn daemon(status: Option<&Status>, unreached: Option<&Failure>) -> Check {
    let subject = "millpond".to_owned();
    let Some(status) = status else {
        let found = unreached.map_or_else(String::new, ToString::to_string);
        return Check {
            check: "daemon",
            subject,
            state: CheckState::Warn,
            found,
            remedy: "start it, unless it is to be stopped".to_owned(),
        };
    };
    match status.conditions.iter().filter(|condition| !condition.covered).count() {
        0 => Check {
            check: "daemon",
            subject,
            state: CheckState::Ok,
            found: format!("version {}, no conditions", status.version),
            remedy: String::new(),
        },
        count => Check {
            check: "daemon",
            subject,
            state: CheckState::Warn,
            found: format!("{count} conditions"),
            remedy: "'millpond status --check' lists them".to_owned(),
        },
    }
}
