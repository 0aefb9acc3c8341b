//! The reference of the API: a page of the book, made from the OpenAPI document and the table of
//! roles.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use axum::http::Method;
use millpond_api::Role;
use millpond_testing::{cell, compare_page};
use serde_json::Value;

use super::document;
use super::rules::rule;

const PAGE: &str = "docs/reference/api.md";
const HEAD: &str = "\
# API

This page is written by `cargo xtask reference` from the OpenAPI document, which a daemon serves as
`/v1/openapi.json`.
The control socket speaks HTTP/1.1 and JSON; over TCP a request needs a token ([access.md](../access.md)).
Sizes are bytes, and times are RFC 3339 in UTC.
An error has an HTTP status and an [ApiError](#apierror).
";
/// Methods in the order of the page.
const METHODS: [&str; 5] = ["get", "post", "patch", "put", "delete"];

#[test]
fn the_page_of_the_reference_has_the_routes() {
    let document = serde_json::to_value(document()).expect("the document");
    let mut groups: BTreeMap<&str, Vec<(&str, &Value)>> = BTreeMap::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        let group = path.trim_start_matches("/v1/").trim_start_matches('/').split('/').next().unwrap_or_default();
        groups.entry(group).or_default().push((path, item));
    }
    let mut page = HEAD.to_owned();
    for (group, routes) in groups {
        let _ = write!(page, "\n## {group}\n\n| request | role | body | answer | purpose |\n|---|---|---|---|---|\n");
        for (path, item) in &routes {
            METHODS.iter().filter(|method| item[**method].is_object()).for_each(|method| route(method, path, &item[*method], &mut page));
        }
        let queries = routes.iter().flat_map(|(path, item)| METHODS.iter().flat_map(|method| query(method, path, &item[*method])));
        let queries: Vec<String> = queries.collect();
        if !queries.is_empty() {
            let _ = write!(page, "\n| request | in the query | type | meaning |\n|---|---|---|---|\n{}", queries.concat());
        }
    }
    page.push_str("\n## Objects\n\nFields with `?` may be missing, here and in queries.\n");
    for (name, schema) in document["components"]["schemas"].as_object().expect("schemas") {
        object(name, schema, &mut page);
    }
    compare_page(PAGE, &page);
}

fn route(method: &str, path: &str, operation: &Value, page: &mut String) {
    let upper = method.to_uppercase();
    let role = Method::from_bytes(upper.as_bytes()).ok().and_then(|method| rule(&method, path)).and_then(|rule| rule.role);
    let role = role.map_or("none", Role::name);
    let body = content(&operation["requestBody"]["content"]);
    let answers = operation["responses"].as_object().into_iter().flatten().filter(|(status, _)| status.starts_with('2'));
    let answers: Vec<String> =
        answers.map(|(status, answer)| format!("{status} {}", content(&answer["content"])).trim().to_owned()).collect();
    let purpose = operation["summary"].as_str().unwrap_or_default();
    let _ = writeln!(page, "| `{upper} {path}` | {role} | {body} | {} | {} |", answers.join(", "), cell(purpose.trim_end_matches('.')));
}

/// Returns the rows of a request's parameters that are in its query.
fn query(method: &str, path: &str, operation: &Value) -> Vec<String> {
    let parameters = operation["parameters"].as_array().into_iter().flatten().filter(|parameter| parameter["in"] == "query");
    let row = |parameter: &Value| {
        let may_miss = if parameter["required"] == true { "" } else { "?" };
        let name = parameter["name"].as_str().unwrap_or_default();
        let text = without_links(parameter["description"].as_str().unwrap_or_default());
        let (upper, kind) = (method.to_uppercase(), kind_of(&parameter["schema"]));
        format!("| `{upper} {path}` | `{name}`{may_miss} | {kind} | {} |\n", cell(&text))
    };
    parameters.map(row).collect()
}

/// Returns the type of a body.
fn content(content: &Value) -> String {
    let mut types: Vec<String> = content
        .as_object()
        .into_iter()
        .flatten()
        .map(|(kind, body)| match kind.as_str() {
            "application/json" => kind_of(&body["schema"]),
            other => format!("`{}`", other.split(';').next().unwrap_or_default()),
        })
        .collect();
    types.dedup();
    types.join(" or ")
}

/// Returns the type of a value as text; an object's type is a link to its fields.
fn kind_of(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        return format!("[{name}](#{})", name.to_lowercase());
    }
    let parts = ["allOf", "oneOf", "anyOf"].iter().filter_map(|key| schema[*key].as_array()).flatten();
    let mut names: Vec<String> = parts.map(kind_of).filter(|name| !name.is_empty()).collect();
    let simple = match &schema["type"] {
        Value::String(one) => vec![one.as_str()],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    for kind in simple.into_iter().filter(|kind| *kind != "null") {
        names.push(match kind {
            "array" => format!("list of {}", kind_of(&schema["items"])),
            "object" if schema["additionalProperties"].is_object() => format!("map to {}", kind_of(&schema["additionalProperties"])),
            other => other.to_owned(),
        });
    }
    names.dedup();
    names.join(" or ")
}

fn object(name: &str, schema: &Value, page: &mut String) {
    let _ = write!(page, "\n### {name}\n\n");
    if let Some(text) = schema["description"].as_str() {
        let _ = writeln!(page, "{}\n", without_links(text.split("\n\n").next().unwrap_or_default()).replace('<', "&lt;"));
    }
    let mut parts = vec![schema];
    parts.extend(schema["allOf"].as_array().into_iter().flatten());
    let mut rows = String::new();
    for part in parts {
        if let Some(words) = part["enum"].as_array() {
            let words: Vec<String> = words.iter().filter_map(Value::as_str).map(|word| format!("`{word}`")).collect();
            let _ = writeln!(page, "One of {}.", words.join(", "));
        }
        if let Some(name) = part["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
            let _ = writeln!(page, "It has the fields of [{name}](#{}), too.\n", name.to_lowercase());
        }
        let needed = part["required"].as_array().map_or(&[][..], Vec::as_slice);
        for (field, value) in part["properties"].as_object().into_iter().flatten() {
            let may_miss = if needed.iter().any(|name| name == field) { "" } else { "?" };
            let text = value["description"].as_str().unwrap_or_default();
            let first = without_links(text.split("\n\n").next().unwrap_or_default());
            let _ = writeln!(rows, "| `{field}`{may_miss} | {} | {} |", kind_of(value), cell(&first));
        }
    }
    if !rows.is_empty() {
        let _ = write!(page, "| field | type | meaning |\n|---|---|---|\n{rows}");
    }
}

/// Returns a text of the code without its links to other types, which have no page here.
fn without_links(text: &str) -> String {
    let mut parts = text.split("](crate::");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |before, part| before + part.split_once(')').map_or("", |(_, rest)| rest)).replace("[`", "`").replace("`]", "`")
}
