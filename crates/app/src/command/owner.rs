//! `--owner USER[:GROUP]` and `--mode`: names become numbers on this machine, which is the daemon's.

use std::fs;

/// Numbers; what is missing is the daemon's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// User.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
}

const USERS: &str = "/etc/passwd";
const GROUPS: &str = "/etc/group";

/// `USER`, with the group that the user has, `USER:GROUP` or `:GROUP`.
///
/// # Errors
/// Words for whom is not known.
pub fn parse(text: &str) -> Result<Owner, String> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    of(text, &read(USERS), &read(GROUPS))
}

/// Octal digits; reading and writing alone.
///
/// # Errors
/// Words for what it is not.
pub fn mode(text: &str) -> Result<u16, String> {
    let mode = u16::from_str_radix(text.trim_start_matches("0o"), 8).map_err(|_| "not an octal number, such as 0640".to_owned())?;
    if mode & !0o666 == 0 { Ok(mode) } else { Err("more than reading and writing; give one such as 0640".to_owned()) }
}

fn of(text: &str, users: &str, groups: &str) -> Result<Owner, String> {
    let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
    if user.is_empty() && group.is_none_or(str::is_empty) {
        return Err("it names nobody; give USER, USER:GROUP or :GROUP".to_owned());
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

/// A number in the line that begins with this name.
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
