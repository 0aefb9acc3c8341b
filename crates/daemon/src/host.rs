//! Identity of this host, which other hosts see in the claims on a pool's devices.
//!
//! The id stays the same at every start; else a host that crashed would get its own pools back only
//! by force. It differs from that of any host that sees the same devices; else they would take the
//! pool from each other. So it comes from the machine's id, which an administrator renews when a
//! machine is cloned. A machine without one gets a random id, which is kept with the daemon's
//! state.

use std::fs::{self, File};
use std::hash::Hasher;
#[expect(deprecated, reason = "SipHash 2-4, which stays what it is: the default hasher may become another")]
use std::hash::SipHasher;
use std::io::Write;
use std::path::Path;

use millpond_device::entropy;
use millpond_engine::Holder;

use millpond_api::failure::{Failure, Outcome};

const MACHINE_ID: &str = "/etc/machine-id";
const HOST_NAME: &str = "/proc/sys/kernel/hostname";
/// File of the random id, in the state directory.
const FILE: &str = "host-id";
/// Keys of the hash: the machine's id itself is not for others to read.
const KEYS: [(u64, u64); 2] = [(0x6d69_6c6c_706f_6e64, 1), (0x6d69_6c6c_706f_6e64, 2)];

/// Returns this host: its id is `given` by the user, else from the machine or the state directory.
/// The importer fills in the session.
///
/// # Errors
/// When there is no id, and none can be made and kept.
pub fn this_host(given: Option<&str>, state: &Path) -> Outcome<Holder> {
    let id = match given.map(str::to_owned).or_else(|| machine_id(Path::new(MACHINE_ID))) {
        Some(id) => id,
        None => kept(state)?,
    };
    Ok(Holder { host: hashed(&id), name: host_name(), session: [0; 16] })
}

/// Returns the name of this host.
pub fn host_name() -> String {
    let name = fs::read_to_string(HOST_NAME).map(|name| name.trim().to_owned()).unwrap_or_default();
    if name.is_empty() { "without a name".to_owned() } else { name }
}

/// Returns the machine's id; `None` before the first boot, when the file holds no id yet.
fn machine_id(path: &Path) -> Option<String> {
    let id = fs::read_to_string(path).ok()?.trim().to_owned();
    Some(id).filter(|id| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// The id that is kept with the state; made when there is none.
fn kept(state: &Path) -> Outcome<String> {
    let (path, temporary) = (state.join(FILE), state.join(".host-id.new"));
    let fail =
        |e: std::io::Error| Failure::failed(format!("cannot keep an id of this host in {}: {e}; give host_id in --config", path.display()));
    match fs::read_to_string(&path) {
        Ok(id) if !id.trim().is_empty() => return Ok(id.trim().to_owned()),
        Ok(_) => {}
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(fail(e)),
    }
    let id: String = entropy::<16>().map_err(fail)?.iter().map(|byte| format!("{byte:02x}")).collect();
    // no pool is claimed with an id that a crash could forget
    let write = || {
        let mut file = File::create(&temporary)?;
        writeln!(file, "{id}")?;
        file.sync_all()?;
        fs::rename(&temporary, &path)?;
        File::open(state)?.sync_all()
    };
    write().map_err(fail)?;
    Ok(id)
}

#[expect(deprecated, reason = "SipHash 2-4, which stays what it is")]
fn hashed(id: &str) -> [u8; 16] {
    let mut host = [0; 16];
    for (half, (a, b)) in host.chunks_exact_mut(8).zip(KEYS) {
        let mut hasher = SipHasher::new_with_keys(a, b);
        hasher.write(id.as_bytes());
        half.copy_from_slice(&hasher.finish().to_le_bytes());
    }
    host
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_stays_and_differs_from_others() {
        let dir = tempfile::tempdir().expect("tempdir");
        let first = kept(dir.path()).expect("made");
        assert_eq!(kept(dir.path()).expect("kept"), first);
        assert_eq!(first.len(), 32);
        let other = tempfile::tempdir().expect("tempdir");
        assert_ne!(kept(other.path()).expect("made"), first);
        assert!(kept(&dir.path().join("nowhere")).is_err());
        // on media: it may not change with the compiler
        let known = [0xab, 0x9d, 0x8c, 0x4a, 0x11, 0xf8, 0x91, 0xb3, 0x7b, 0xfd, 0xc7, 0x90, 0x5c, 0x29, 0xb3, 0x1d];
        assert_eq!(hashed("b08dfa6083e7567a1921a715000001fb"), known);
        assert_ne!(hashed("a"), hashed("b"));
    }

    #[test]
    fn what_is_given_wins_and_a_machine_without_an_id_has_none() {
        let dir = tempfile::tempdir().expect("tempdir");
        let (one, two) = (this_host(Some("one"), dir.path()).expect("given"), this_host(Some("two"), dir.path()).expect("given"));
        assert_ne!(one.host, two.host);
        assert!(!one.name.is_empty() && !one.name.contains('\n'));
        assert!(!dir.path().join(FILE).exists());
        let path = dir.path().join("machine-id");
        for none in ["", "uninitialized\n"] {
            fs::write(&path, none).expect("write");
            assert_eq!(machine_id(&path), None);
        }
        fs::write(&path, "b08dfa6083e7567a1921a715000001fb\n").expect("write");
        assert_eq!(machine_id(&path).as_deref(), Some("b08dfa6083e7567a1921a715000001fb"));
    }
}
