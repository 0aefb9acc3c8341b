//! `--owner USER[:GROUP]` and `--mode`. Names are resolved on this machine, which is also the
//! daemon's.

use std::fs;

/// Numeric owner; `None` stands for the daemon's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    pub uid: Option<u32>,
    pub gid: Option<u32>,
}

const USERS: &str = "/etc/passwd";
const GROUPS: &str = "/etc/group";

/// Parses `USER` (with the user's primary group), `USER:GROUP` or `:GROUP`.
///
/// # Errors
/// A message if the user or group is unknown.
pub fn parse(text: &str) -> Result<Owner, String> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    of(text, &read(USERS), &read(GROUPS))
}

/// Parses an octal mode with read and write bits only.
///
/// # Errors
/// A message that says why the mode is invalid.
pub fn mode(text: &str) -> Result<u16, String> {
    let mode = u16::from_str_radix(text.trim_start_matches("0o"), 8).map_err(|_| "not an octal number, such as 0640".to_owned())?;
    if mode & !0o666 == 0 { Ok(mode) } else { Err("only read and write permissions are possible; give a mode such as 0640".to_owned()) }
}

fn of(text: &str, users: &str, groups: &str) -> Result<Owner, String> {
    let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
    if user.is_empty() && group.is_none_or(str::is_empty) {
        return Err("it names no user or group; give USER, USER:GROUP or :GROUP".to_owned());
    }
    let unknown = |what: &str, name: &str, file: &str| format!("no {what} '{name}' in {file}; give the number");
    let mut owner = Owner::default();
    if !user.is_empty() {
        let known = || field(users, user, 2).zip(field(users, user, 3));
        let numeric = || user.parse().ok().map(|uid| (uid, None));
        let (uid, gid) = known().map(|(uid, gid)| (uid, Some(gid))).or_else(numeric).ok_or_else(|| unknown("user", user, USERS))?;
        owner = Owner { uid: Some(uid), gid };
    }
    if let Some(group) = group.filter(|group| !group.is_empty()) {
        let gid = field(groups, group, 2).or_else(|| group.parse().ok());
        owner.gid = Some(gid.ok_or_else(|| unknown("group", group, GROUPS))?);
    }
    Ok(owner)
}

/// Returns the number in field `at` of the line for `name`.
fn field(table: &str, name: &str, at: usize) -> Option<u32> {
    let line = table.lines().find(|line| line.split(':').next() == Some(name))?;
    line.split(':').nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nlibvirt-qemu:x:64055:109::/:/usr/sbin/nologin\n";
    const GROUP: &str = "root:x:0:\nkvm:x:104:libvirt-qemu\n";

    #[test]
    fn names_and_numbers_are_owners() {
        let found = |text: &str| of(text, PASSWD, GROUP).map(|owner| (owner.uid, owner.gid));
        assert_eq!(found("libvirt-qemu"), Ok((Some(64055), Some(109))));
        assert_eq!(found("libvirt-qemu:kvm"), Ok((Some(64055), Some(104))));
        assert_eq!(found(":kvm"), Ok((None, Some(104))));
        assert_eq!(found("1000"), Ok((Some(1000), None)));
        assert_eq!(found("1000:1001"), Ok((Some(1000), Some(1001))));
        assert!(found("nobody:kvm").is_err_and(|words| words.contains("no user 'nobody'")));
        assert!(found("root:wheel").is_err_and(|words| words.contains("no group 'wheel'")));
        assert!(found("").is_err() && found(":").is_err() && found("-1").is_err());
    }

    #[test]
    fn modes_are_for_reading_and_writing() {
        assert_eq!((mode("0640"), mode("666"), mode("0o600")), (Ok(0o640), Ok(0o666), Ok(0o600)));
        assert!(mode("0755").is_err() && mode("1640").is_err() && mode("rw").is_err() && mode("0648").is_err());
    }
}
