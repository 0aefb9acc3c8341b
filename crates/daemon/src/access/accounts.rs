//! Users and groups of this host, and the roles that the configuration gives them.

use std::fs;
use std::path::Path;

use millpond_api::Role;
use rustix::process::geteuid;

use super::caller::Caller;

const USERS: &str = "/etc/passwd";
const GROUPS: &str = "/etc/group";
/// Group whose members are operators unless the configuration says otherwise.
pub const GROUP: &str = "millpond";

/// Roles of users and groups of this host on the control socket. The daemon's own user and root are
/// always admin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grants {
    /// Role, and a user (by name or number) or a group (`:GROUP`).
    given: Vec<(Role, String)>,
}

impl Default for Grants {
    /// Members of the group `millpond` are operators.
    fn default() -> Grants {
        Grants { given: vec![(Role::Operator, format!(":{GROUP}"))] }
    }
}

impl Grants {
    /// Returns grants from lists of users and groups, by role. A list that is not given is empty;
    /// without any list, the grants are the default ones.
    pub fn new(admins: Option<Vec<String>>, operators: Option<Vec<String>>, viewers: Option<Vec<String>>) -> Grants {
        if admins.is_none() && operators.is_none() && viewers.is_none() {
            return Grants::default();
        }
        let lists = [(Role::Admin, admins), (Role::Operator, operators), (Role::Viewer, viewers)];
        let given = lists.into_iter().flat_map(|(role, list)| list.into_iter().flatten().map(move |word| (role, word)));
        Grants { given: given.collect() }
    }

    /// Adds a role for a user id or a group id.
    #[must_use]
    pub fn and(mut self, role: Role, uid: Option<u32>, gid: Option<u32>) -> Grants {
        self.given.extend(uid.map(|uid| (role, uid.to_string())));
        self.given.extend(gid.map(|gid| (role, format!(":{gid}"))));
        self
    }

    /// Returns the group of the control socket: the first group that has a role and exists here.
    pub fn socket_group(&self) -> Option<u32> {
        let groups = read(GROUPS);
        self.given.iter().filter_map(|(_, word)| word.strip_prefix(':')).find_map(|group| id_of(&groups, group))
    }

    /// Returns the caller with these ids; `Err` has its name if it has no role. Reads small files of
    /// the host.
    pub fn caller(&self, uid: u32, gid: u32) -> Result<Caller, String> {
        if uid == 0 || uid == geteuid().as_raw() {
            let name = name_of(&read(USERS), uid);
            return Ok(Caller::user(format!("user {name}"), Role::Admin));
        }
        let (users, groups) = (read(USERS), read(GROUPS));
        let name = name_of(&users, uid);
        match self.role(&name, uid, gid, &users, &groups) {
            Some(role) => Ok(Caller::user(format!("user {name}"), role)),
            None => Err(name),
        }
    }

    /// Returns the highest role of a user.
    fn role(&self, name: &str, uid: u32, gid: u32, users: &str, groups: &str) -> Option<Role> {
        let primary = number(users, name, 3);
        let has = |word: &str| match word.strip_prefix(':') {
            Some(group) => {
                let id = id_of(groups, group);
                id.is_some_and(|id| id == gid || primary == Some(id)) || members(groups, group).any(|member| member == name)
            }
            None => word == name || word.parse() == Ok(uid),
        };
        self.given.iter().filter(|(_, word)| has(word)).map(|(role, _)| *role).max()
    }

    /// Returns the configured groups and users, for messages.
    pub fn describe(&self) -> String {
        let words: Vec<&str> = self.given.iter().map(|(_, word)| word.as_str()).collect();
        if words.is_empty() { "no other user".to_owned() } else { words.join(", ") }
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(path)).unwrap_or_default()
}

fn line<'a>(table: &'a str, name: &str) -> Option<&'a str> {
    table.lines().find(|line| line.split(':').next() == Some(name))
}

fn number(table: &str, name: &str, at: usize) -> Option<u32> {
    line(table, name)?.split(':').nth(at)?.parse().ok()
}

/// Returns the line of a group, by name or number.
fn group_line<'a>(groups: &'a str, group: &str) -> Option<&'a str> {
    line(groups, group).or_else(|| groups.lines().find(|line| line.split(':').nth(2) == Some(group)))
}

/// Returns the id of a group, by name or number.
fn id_of(groups: &str, group: &str) -> Option<u32> {
    group_line(groups, group).and_then(|line| line.split(':').nth(2)?.parse().ok()).or_else(|| group.parse().ok())
}

/// Returns the members that the line of a group lists.
fn members<'a>(groups: &'a str, group: &str) -> impl Iterator<Item = &'a str> {
    let listed = group_line(groups, group).and_then(|line| line.split(':').nth(3)).unwrap_or_default();
    listed.split(',').filter(|member| !member.is_empty())
}

/// Returns the name of a user id, or the number.
fn name_of(users: &str, uid: u32) -> String {
    let named = users.lines().find(|line| line.split(':').nth(2) == Some(uid.to_string().as_str()));
    named.and_then(|line| line.split(':').next()).map_or_else(|| uid.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/:/bin/sh\nbob:x:1001:990::/:/bin/sh\neve:x:1002:1002::/:/bin/sh\n";
    const GROUP_FILE: &str = "root:x:0:\nmillpond:x:990:alice\nwatch:x:991:eve,\nalice:x:1000:\n";

    fn role(grants: &Grants, uid: u32, gid: u32) -> Option<Role> {
        grants.role(&name_of(PASSWD, uid), uid, gid, PASSWD, GROUP_FILE)
    }

    #[test]
    fn members_of_the_group_are_operators_and_others_are_nobody() {
        let grants = Grants::default();
        assert_eq!(role(&grants, 1000, 1000), Some(Role::Operator), "listed");
        assert_eq!(role(&grants, 1001, 990), Some(Role::Operator), "by primary group");
        assert_eq!(role(&grants, 1002, 990), Some(Role::Operator), "the process has the group");
        assert_eq!(role(&grants, 1002, 1002), None);
        assert_eq!(role(&grants, 4242, 4242), None);
    }

    #[test]
    fn the_configuration_gives_roles_and_the_highest_counts() {
        let list = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect());
        let grants = Grants::new(list(&["alice"]), list(&[":millpond", "1002"]), list(&[":watch"]));
        assert_eq!(role(&grants, 1000, 1000), Some(Role::Admin));
        assert_eq!(role(&grants, 1001, 990), Some(Role::Operator));
        assert_eq!(role(&grants, 1002, 1002), Some(Role::Operator), "operator and viewer");
        let none = Grants::new(None, list(&[]), None);
        assert_eq!(role(&none, 1000, 1000), None);
        assert_eq!(role(&none.and(Role::Admin, None, Some(991)), 1002, 1002), Some(Role::Admin), "a group by its number");
        assert_eq!(role(&Grants::default().and(Role::Admin, None, Some(991)), 1234, 991), Some(Role::Admin));
    }
}
