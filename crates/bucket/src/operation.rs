//! Operations on a bucket, and their answers, as values.

use millpond_format::{ObjectFolder, ObjectName};

use crate::Verb;

/// Most names of one request to delete, and most that one page of a list has.
pub const MOST_NAMES: usize = 1000;

/// Part of an object, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// `length` bytes from `offset`; fewer where the object ends before.
    Range {
        /// Bytes before the part.
        offset: u64,
        /// Bytes of the part.
        length: u64,
    },
    /// The last bytes.
    Tail(u64),
}

/// A request to a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Writes an object.
    Put {
        /// Its name.
        name: ObjectName,
        /// Refuse to write when there is an object of that name.
        create: bool,
        /// Its content, with the head.
        object: Vec<u8>,
    },
    /// Reads an object.
    Get {
        /// Its name.
        name: ObjectName,
        /// The part to read.
        part: Part,
    },
    /// Lists names in the order of their texts. A list may lack objects that were written lately, so it
    /// is a hint: a reader asks for the next names until one is absent.
    List {
        /// The names that are listed.
        folder: ObjectFolder,
        /// List names after this one.
        after: Option<ObjectName>,
        /// Most names to return; at most [`MOST_NAMES`].
        most: usize,
    },
    /// Deletes objects; that one is absent is no error.
    Delete {
        /// Their names; at most [`MOST_NAMES`].
        names: Vec<ObjectName>,
    },
}

impl Operation {
    /// The verb, for errors.
    pub fn verb(&self) -> Verb {
        match self {
            Operation::Put { create: true, .. } => Verb::Create,
            Operation::Put { create: false, .. } => Verb::Write,
            Operation::Get { .. } => Verb::Read,
            Operation::List { .. } => Verb::List,
            Operation::Delete { .. } => Verb::Delete,
        }
    }

    /// The object or folder, for errors.
    pub fn subject(&self) -> String {
        match self {
            Operation::Put { name, .. } | Operation::Get { name, .. } => name.to_string(),
            Operation::List { folder, .. } => folder.to_string(),
            Operation::Delete { names } => match &names[..] {
                [name] => name.to_string(),
                names => format!("{} objects", names.len()),
            },
        }
    }
}

/// Answer to an [`Operation`] that was carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The object was written.
    Written,
    /// Bytes of an object.
    Read {
        /// The part that was asked for, or as much of it as the object has.
        bytes: Vec<u8>,
        /// Bytes of the whole object.
        length: u64,
    },
    /// Names, in the order of their texts. Objects whose names are not of this project are left out.
    Names {
        /// The names.
        names: Vec<ObjectName>,
        /// Whether the list goes on after the last one.
        more: bool,
    },
    /// The objects are gone.
    Deleted,
}
