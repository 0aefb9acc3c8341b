//! Paths that are passed to the daemon.

use std::path::{Path, PathBuf};

/// Makes `path` absolute, because the daemon has another working directory.
pub fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
