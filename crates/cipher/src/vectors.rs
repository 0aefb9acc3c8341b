//! Reads test vectors: `NAME: bytes in hex` on each line, an empty line after each vector, and `#`
//! before comments.

use std::collections::BTreeMap;

/// The fields of a vector.
pub(crate) struct Vector<'a>(BTreeMap<&'a str, Vec<u8>>);

impl Vector<'_> {
    /// Returns a field.
    pub(crate) fn get(&self, name: &str) -> &[u8] {
        self.0.get(name).expect("the vector has the field")
    }

    /// Returns a field of fixed length.
    pub(crate) fn array<const N: usize>(&self, name: &str) -> [u8; N] {
        self.get(name).try_into().expect("the field has the length")
    }
}

/// Returns all vectors of a file.
pub(crate) fn read(text: &str) -> Vec<Vector<'_>> {
    let mut vectors = Vec::new();
    for part in text.split("\n\n") {
        let lines = part.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(':'));
        let fields: BTreeMap<&str, Vec<u8>> = lines.map(|(name, value)| (name, hex(value.trim()))).collect();
        if !fields.is_empty() {
            vectors.push(Vector(fields));
        }
    }
    vectors
}

/// Returns the bytes of a text in hex.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2), "{text} has half a byte");
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex")).collect()
}
