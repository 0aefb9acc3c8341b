//! Files of pre-shared keys: one line `identity:key` per key, the key in hex, as `psktool` writes
//! and libnbd and QEMU read them.

/// Least bytes of a key: 128 bits, which RFC 9257 (section 6) demands.
const MIN_KEY: usize = 16;
/// Most bytes of a key.
const MAX_KEY: usize = 64;
/// Most keys of a file: all are added to every new connection.
const MAX_KEYS: usize = 100;
/// Most bytes of an identity, the limit of GnuTLS's clients.
const MAX_IDENTITY: usize = 128;

/// An identity and its key.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct PskLine {
    pub(super) identity: String,
    pub(super) key: Vec<u8>,
}

/// Error in a file, and its line (from 1; 0 means the file as a whole).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeysError {
    pub(super) line: usize,
    pub(super) why: &'static str,
}

/// Parses the lines; ignores empty ones and those that begin with `#`.
///
/// # Errors
/// The first line that is not understood: if a key were left out silently, users would search for
/// the error at the client.
pub(super) fn parse(text: &str) -> Result<Vec<PskLine>, KeysError> {
    let mut keys: Vec<PskLine> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |why| KeysError { line: number, why };
        let (identity, hex) = line.split_once(':').ok_or(wrong("not of the form identity:hexkey"))?;
        if identity.is_empty() || identity.len() > MAX_IDENTITY {
            return Err(wrong("an identity has 1 to 128 bytes"));
        }
        let key = decode(hex).ok_or(wrong("the key is not hex"))?;
        if !(MIN_KEY..=MAX_KEY).contains(&key.len()) {
            return Err(wrong("a key has 16 to 64 bytes (32 to 128 hex digits)"));
        }
        if keys.iter().any(|known| known.identity == identity) {
            return Err(wrong("the identity is there already"));
        }
        if keys.len() == MAX_KEYS {
            return Err(wrong("a file has at most 100 keys"));
        }
        keys.push(PskLine { identity: identity.to_owned(), key });
    }
    if keys.is_empty() { Err(KeysError { line: 0, why: "it holds no key" }) } else { Ok(keys) }
}

fn decode(hex: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = hex.chars().map(|digit| digit.to_digit(16).map(|value| value as u8)).collect();
    let (pairs, rest) = digits.as_deref()?.as_chunks::<2>();
    rest.is_empty().then(|| pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

#[cfg(test)]
mod tests;
