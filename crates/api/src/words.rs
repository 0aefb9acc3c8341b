//! Words of the API: strings in JSON with a closed set of values, as enums.
//!
//! A client may be older than its daemon. A word that the client does not know must not make the
//! whole answer unreadable, so each enum has a variant `Other` that keeps the word: it is displayed
//! and written again as it was read. Code that decides by a word treats `Other` like the values
//! that it does not name. In a request `Other` is a wrong value, and the daemon refuses it.
//!
//! A value that only requests have is a plain enum: other words are refused when it is read. Some
//! values have a plain enum for requests, so that the daemon never acts on a word that it does not
//! know, and an enum of words for answers (`TlsMode` and `ExportTlsMode`).

use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};

/// Defines an enum of words, with the word of each variant. The words are the same in JSON, in
/// tables and in the OpenAPI document, which lists them with the documentation of the variants.
macro_rules! words {
    (
        $(#[doc = $doc:literal])+
        pub enum $name:ident {
            $($(#[doc = $meaning:literal])+ $variant:ident = $word:literal,)+
        }
    ) => {
        $(#[doc = $doc])+
        #[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
        #[serde(from = "String")]
        pub enum $name {
            $($(#[doc = $meaning])+ $variant,)+
            /// Word that this version does not know, as it was read.
            Other(String),
        }

        impl $name {
            /// The words that this version knows.
            pub const WORDS: &[&str] = &[$($word),+];

            /// Returns the word.
            pub fn as_str(&self) -> &str {
                match self {
                    $($name::$variant => $word,)+
                    $name::Other(word) => word,
                }
            }
        }

        impl From<String> for $name {
            fn from(word: String) -> $name {
                match word.as_str() {
                    $($word => $name::$variant,)+
                    _ => $name::Other(word),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.as_str())
            }
        }

        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                $crate::words::schema(concat!($($doc),+), &[$(($word, concat!($($meaning),+))),+])
            }
        }

        impl utoipa::ToSchema for $name {}
    };
}

pub(super) use words;

/// Returns the schema of an enum of words: a string with these values. `words` are the words with
/// their meanings.
pub(super) fn schema(about: &str, words: &[(&str, &str)]) -> RefOr<Schema> {
    let meanings = words.iter().map(|(word, meaning)| format!("\n- `{word}`: {}", meaning.trim()));
    let description = format!("{} Later versions may add values.\n{}", about.trim(), meanings.collect::<String>());
    let values = words.iter().map(|(word, _)| *word);
    ObjectBuilder::new().schema_type(Type::String).description(Some(description)).enum_values(Some(values)).into()
}

#[cfg(test)]
mod tests;
