//! The journal of systemd, by its native protocol: a datagram of fields
//! (<https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>).

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use millpond_api::{Alert, AlertState, Severity};

/// Sends an alert as one entry. Never waits: a journal that is behind refuses the datagram.
///
/// # Errors
/// The reason why the journal does not take it.
pub fn send(socket: &Path, alert: &Alert) -> Result<(), String> {
    let send = || -> io::Result<()> {
        let datagram = UnixDatagram::unbound()?;
        datagram.set_nonblocking(true)?;
        datagram.send_to(&entry(alert), socket).map(drop)
    };
    send().map_err(|error| format!("the journal's socket {}: {error}", socket.display()))
}

/// Returns the fields of an entry.
fn entry(alert: &Alert) -> Vec<u8> {
    let condition = &alert.condition;
    // priorities of syslog: 3 error, 4 warning, 5 notice
    let priority = match alert.state {
        AlertState::Begun if condition.severity.is_at_least(Severity::Error) => "3",
        AlertState::Begun => "4",
        _ => "5",
    };
    let since = condition.since.to_string();
    let line = alert.line();
    let fields = [
        ("MESSAGE", line.as_str()),
        ("PRIORITY", priority),
        ("SYSLOG_IDENTIFIER", "millpond"),
        ("MILLPOND_STATE", alert.state.as_str()),
        ("MILLPOND_CONDITION", condition.kind.as_str()),
        ("MILLPOND_SEVERITY", condition.severity.as_str()),
        ("MILLPOND_SUBJECT", condition.subject.as_str()),
        ("MILLPOND_POOL", condition.pool.as_deref().unwrap_or_default()),
        ("MILLPOND_DEVICE", condition.device.as_deref().unwrap_or_default()),
        ("MILLPOND_CAUSE", condition.cause.as_str()),
        ("MILLPOND_REMEDY", condition.remedy.as_str()),
        ("MILLPOND_SINCE", since.as_str()),
    ];
    let mut entry = Vec::new();
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_empty()) {
        entry.extend_from_slice(name.as_bytes());
        if value.contains('\n') {
            // such a value has its length in bytes before it
            entry.push(b'\n');
            entry.extend_from_slice(&(value.len() as u64).to_le_bytes());
        } else {
            entry.push(b'=');
        }
        entry.extend_from_slice(value.as_bytes());
        entry.push(b'\n');
    }
    entry
}
