//! The OpenAPI document.

use serde_json::{Value, json};

use super::document;

/// Follows the reference of a field to the schema of its type. The schema of an object with flattened
/// fields has several parts.
fn field<'a>(document: &'a Value, object: &str, field: &str) -> &'a Value {
    let schemas = &document["components"]["schemas"];
    let object = &schemas[object];
    let parts = object["allOf"].as_array().map_or(std::slice::from_ref(object), Vec::as_slice);
    let text: String = parts.iter().map(|part| part["properties"][field].to_string()).collect();
    let name = text.split("#/components/schemas/").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
    &schemas[name]
}

#[test]
fn the_document_lists_the_words_of_fields() {
    let document = serde_json::to_value(document()).expect("the document");
    for (object, name, word) in [
        ("Pool", "health", "degraded"),
        ("Device", "class", "special"),
        ("Device", "layout", "parity2"),
        ("Device", "state", "resilvering"),
        ("Device", "health", "slow"),
        ("Found", "state", "in-use"),
        ("Job", "kind", "rejoin"),
        ("Job", "state", "stopped"),
        ("Scrub", "state", "done"),
        ("Checkpoint", "verified", "unknown"),
        ("Export", "kind", "vhost-user"),
        ("Export", "state", "stopped"),
        ("ExportTls", "mode", "require"),
        ("ExportTls", "credentials", "psk"),
        ("Event", "event", "device.failed"),
        ("Event", "severity", "warning"),
        ("ApiError", "kind", "not_found"),
        ("FullCopy", "state", "planned"),
        ("DiffExtent", "kind", "zero"),
        ("Place", "class", "data"),
        ("Volume", "sector", "4kn"),
        ("Volume", "cache", "writeback"),
        ("Volume", "compression", "zstd"),
        ("CreateVolume", "sector", "512n"),
        ("SetProperties", "cache", "none"),
        ("SetProperties", "compression", "off"),
        ("SetSector", "sector", "512e"),
    ] {
        let words = field(&document, object, name)["enum"].as_array().map_or(&[][..], Vec::as_slice);
        assert!(words.contains(&json!(word)), "{object}.{name}: {words:?}");
    }
}

/// Collects the references in a part of the document.
fn references<'a>(part: &'a Value, into: &mut Vec<&'a str>) {
    into.extend(part["$ref"].as_str());
    part.as_object().into_iter().flat_map(|fields| fields.values()).for_each(|field| references(field, into));
    part.as_array().into_iter().flatten().for_each(|item| references(item, into));
}

#[test]
fn every_reference_in_the_document_has_a_schema() {
    let document = serde_json::to_value(document()).expect("the document");
    let mut all = Vec::new();
    references(&document, &mut all);
    assert!(all.contains(&"#/components/schemas/EventSeverity") && all.contains(&"#/components/schemas/LayoutSpec"));
    let filter = document["paths"]["/v1/events"]["get"]["parameters"].to_string();
    assert!(filter.contains(r#""enum":["info","warning","error"]"#), "{filter}");
    for reference in all {
        let schema = reference.strip_prefix('#').and_then(|pointer| document.pointer(pointer));
        assert!(schema.is_some(), "{reference}");
    }
}

#[test]
fn parameters_are_in_the_path_or_in_the_query() {
    let document = serde_json::to_value(document()).expect("the document");
    let mut queries = 0;
    for (path, item) in document["paths"].as_object().expect("paths") {
        let operations = item.as_object().into_iter().flatten();
        for parameter in operations.flat_map(|(_, operation)| operation["parameters"].as_array().into_iter().flatten()) {
            let name = parameter["name"].as_str().expect("a name");
            let place = if path.contains(&format!("{{{name}}}")) { "path" } else { "query" };
            assert_eq!(parameter["in"], place, "{path}: {name}");
            queries += usize::from(place == "query");
        }
    }
    assert!(queries > 10, "{queries}");
}
