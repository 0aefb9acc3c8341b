//! The role that each route needs, and where its requests name pools: one table. A route that is not
//! in it is refused.

use axum::http::Method;
use millpond_api::Role;

use Pools::{Filtered, InPath, Named, OfCopy, OfExport, Unrelated, Whole};
use Role::{Admin, Operator, Viewer};

/// Where a request names the pools that it is about. Callers with a list of pools may name no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pools {
    /// It is about no pool.
    Unrelated,
    /// It is about all pools, or about paths of the host: only callers for all pools may use it.
    Whole,
    /// The route leaves out what the caller may not see.
    Filtered,
    /// The parameter `pool` of the path.
    InPath,
    /// The parameter `pool` of the path, and these fields of the body.
    InPathAndBody(&'static [&'static str]),
    /// These fields of the body: names or lists of names, at least one.
    Named(&'static [&'static str]),
    /// These fields of the query, at least one.
    InQuery(&'static [&'static str]),
    /// The pool of an export, by its id.
    OfExport,
    /// The pool of a full copy, by its id.
    OfCopy,
}

/// The rule of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Lowest role; `None`: no caller is needed.
    pub role: Option<Role>,
    /// Where it names pools.
    pub pools: Pools,
}

const RULES: &[(Method, &str, Option<Role>, Pools)] = &[
    // opening a session is how a browser becomes a caller
    (Method::POST, "/v1/session", None, Unrelated),
    (Method::GET, "/v1/session", Some(Viewer), Unrelated),
    (Method::DELETE, "/v1/session", Some(Viewer), Unrelated),
    (Method::GET, "/v1/openapi.json", Some(Viewer), Unrelated),
    (Method::GET, "/metrics", Some(Viewer), Whole),
    (Method::GET, "/v1/status", Some(Viewer), Filtered),
    (Method::GET, "/v1/conditions", Some(Viewer), Filtered),
    (Method::GET, "/v1/events", Some(Viewer), Filtered),
    (Method::GET, "/v1/jobs", Some(Viewer), Filtered),
    (Method::GET, "/v1/pools", Some(Viewer), Filtered),
    (Method::GET, "/v1/pools/{pool}", Some(Viewer), InPath),
    (Method::GET, "/v1/pools/{pool}/load", Some(Viewer), InPath),
    (Method::GET, "/v1/pools/{pool}/advice/special", Some(Viewer), InPath),
    (Method::GET, "/v1/pools/{pool}/plan", Some(Viewer), InPath),
    (Method::GET, "/v1/volumes", Some(Viewer), Filtered),
    (Method::GET, "/v1/volumes/{pool}/{volume}", Some(Viewer), InPath),
    (Method::GET, "/v1/snapshots", Some(Viewer), Filtered),
    (Method::GET, "/v1/snapshots/{pool}/{volume}/{snapshot}", Some(Viewer), InPath),
    (Method::GET, "/v1/diff", Some(Viewer), Pools::InQuery(&["older", "newer"])),
    (Method::GET, "/v1/places", Some(Viewer), Pools::InQuery(&["name"])),
    (Method::GET, "/v1/exports", Some(Viewer), Filtered),
    (Method::GET, "/v1/exports/{id}/lines", Some(Viewer), OfExport),
    (Method::GET, "/v1/copies/{id}", Some(Viewer), OfCopy),
    // a policy may have volumes of all pools
    (Method::GET, "/v1/policies", Some(Viewer), Whole),
    (Method::GET, "/v1/policies/{name}", Some(Viewer), Whole),
    (Method::POST, "/v1/policies", Some(Operator), Whole),
    (Method::PATCH, "/v1/policies/{name}", Some(Operator), Whole),
    (Method::DELETE, "/v1/policies/{name}", Some(Operator), Whole),
    (Method::POST, "/v1/policies/{name}/attach", Some(Operator), Named(&["volumes"])),
    (Method::POST, "/v1/policies/{name}/detach", Some(Operator), Named(&["volumes"])),
    (Method::POST, "/v1/policies/{name}/run", Some(Operator), Whole),
    (Method::POST, "/v1/volumes", Some(Operator), Named(&["name"])),
    (Method::PATCH, "/v1/volumes/{pool}/{volume}", Some(Operator), InPath),
    (Method::POST, "/v1/volumes/{pool}/{volume}/resize", Some(Operator), InPath),
    (Method::POST, "/v1/volumes/{pool}/{volume}/sector", Some(Operator), InPath),
    (Method::POST, "/v1/volumes/{pool}/{volume}/rename", Some(Operator), Pools::InPathAndBody(&["name"])),
    (Method::POST, "/v1/volumes/{pool}/{volume}/promote", Some(Operator), InPath),
    (Method::POST, "/v1/snapshots", Some(Operator), Named(&["names"])),
    (Method::POST, "/v1/snapshots/{pool}/{volume}/{snapshot}/rename", Some(Operator), Pools::InPathAndBody(&["name"])),
    (Method::POST, "/v1/snapshots/{pool}/{volume}/{snapshot}/rollback", Some(Operator), InPath),
    (Method::POST, "/v1/snapshots/{pool}/{volume}/{snapshot}/clone", Some(Operator), Pools::InPathAndBody(&["name"])),
    (Method::POST, "/v1/snapshots/{pool}/{volume}/{snapshot}/copy", Some(Operator), Pools::InPathAndBody(&["name"])),
    (Method::POST, "/v1/snapshots/{pool}/{volume}/{snapshot}/hold", Some(Operator), InPath),
    (Method::POST, "/v1/snapshots/{pool}/{volume}/{snapshot}/release", Some(Operator), InPath),
    (Method::DELETE, "/v1/copies/{id}", Some(Operator), OfCopy),
    (Method::POST, "/v1/destroy", Some(Operator), Named(&["name", "more"])),
    (Method::POST, "/v1/exports", Some(Operator), Named(&["name", "pool"])),
    (Method::DELETE, "/v1/exports/{id}", Some(Operator), OfExport),
    (Method::POST, "/v1/pools/{pool}/scrub", Some(Operator), InPath),
    (Method::POST, "/v1/pools/{pool}/rebalance", Some(Operator), InPath),
    (Method::POST, "/v1/pools/{pool}/properties", Some(Operator), InPath),
    // devices are paths that the daemon opens as its user
    (Method::POST, "/v1/pools/{pool}/limit", Some(Admin), InPath),
    (Method::POST, "/v1/pools/{pool}/wipe", Some(Admin), InPath),
    (Method::POST, "/v1/pools/{pool}/upgrade", Some(Admin), InPath),
    (Method::POST, "/v1/pools/{pool}/devices", Some(Admin), Whole),
    (Method::POST, "/v1/pools/{pool}/replace", Some(Admin), Whole),
    (Method::POST, "/v1/pools/{pool}/remove", Some(Admin), InPath),
    (Method::POST, "/v1/pools/{pool}/export", Some(Admin), InPath),
    (Method::DELETE, "/v1/pools/{pool}", Some(Admin), InPath),
    (Method::POST, "/v1/pools", Some(Admin), Whole),
    (Method::POST, "/v1/import", Some(Admin), Whole),
    (Method::POST, "/v1/checkpoints", Some(Admin), Whole),
    // the target is a path or an address that the daemon opens as its user
    (Method::POST, "/v1/publications/clone", Some(Admin), Whole),
    (Method::POST, "/v1/publications/rebase", Some(Admin), Whole),
    // it runs commands of the configuration
    (Method::POST, "/v1/sinks/test", Some(Admin), Whole),
    (Method::GET, "/v1/tokens", Some(Admin), Whole),
    (Method::POST, "/v1/tokens", Some(Admin), Whole),
    (Method::DELETE, "/v1/tokens/{name}", Some(Admin), Whole),
    // only for a session with the caller's own role or a lower one
    (Method::POST, "/v1/links", Some(Viewer), Unrelated),
];

/// Returns the rule of a route; `None`: it is refused. HEAD has that of GET.
pub fn rule(method: &Method, path: &str) -> Option<Rule> {
    let method = if method == Method::HEAD { &Method::GET } else { method };
    let found = RULES.iter().find(|(of, route, ..)| of == method && *route == path)?;
    Some(Rule { role: found.2, pools: found.3 })
}

#[cfg(test)]
mod tests {
    //! The table and the OpenAPI document have the same routes.
    use std::collections::BTreeSet;

    use super::*;
    use crate::routes::document;

    /// Routes of the document: method in capitals and path.
    fn described() -> BTreeSet<(String, String)> {
        let document = serde_json::to_value(document()).expect("the document");
        let paths = document["paths"].as_object().expect("paths");
        let methods = |item: &serde_json::Value| -> Vec<String> {
            let known = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];
            item.as_object().expect("methods").keys().filter(|key| known.contains(&key.as_str())).map(|key| key.to_uppercase()).collect()
        };
        paths.iter().flat_map(|(path, item)| methods(item).into_iter().map(move |method| (method, path.clone()))).collect()
    }

    #[test]
    fn every_route_has_a_rule_and_every_rule_a_route() {
        let ruled: BTreeSet<(String, String)> = RULES.iter().map(|(method, path, ..)| (method.to_string(), (*path).to_owned())).collect();
        assert_eq!(ruled.len(), RULES.len(), "a route is listed twice");
        assert_eq!(described(), ruled);
    }

    #[test]
    fn no_change_is_open_to_viewers_and_only_logins_need_no_caller() {
        for (method, path, role, _) in RULES {
            let reads = *method == Method::GET;
            // a link gives no more than its caller has, and ends with its session
            let own = ["/v1/session", "/v1/links"].contains(path);
            assert!(reads || own || role.is_some_and(|role| role >= Operator), "{method} {path}");
            assert!(role.is_some() || *path == "/v1/session", "{method} {path}");
        }
    }

    #[test]
    fn routes_with_a_pool_in_their_path_are_bound_to_it() {
        for (method, path, role, pools) in RULES {
            let bound = matches!(pools, InPath | Pools::InPathAndBody(_) | Whole);
            assert!(!path.contains("{pool}") || bound, "{method} {path} {role:?}");
        }
        assert_eq!(rule(&Method::HEAD, "/v1/status"), rule(&Method::GET, "/v1/status"));
        assert_eq!(rule(&Method::PUT, "/v1/status"), None);
        assert_eq!(rule(&Method::GET, "/v1/nothing"), None);
    }
}
