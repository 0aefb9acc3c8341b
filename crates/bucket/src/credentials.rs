//! Credentials of a bucket: from the environment or a file. They are never shown.

use std::fmt;

/// Variables of the environment, which are also the keys of a file.
const KEY: &str = "AWS_ACCESS_KEY_ID";
const SECRET: &str = "AWS_SECRET_ACCESS_KEY";
const TOKEN: &str = "AWS_SESSION_TOKEN";
/// Section of a file with several.
const SECTION: &str = "default";

/// Credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub(crate) key: String,
    pub(crate) secret: String,
    pub(crate) token: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({})", self.key)
    }
}

/// Reason why there are no credentials. Display is one line without secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsError {
    /// A value is missing or empty.
    #[error("no {0}")]
    Missing(&'static str),
    /// A value that cannot be sent.
    #[error("{0} has characters other than visible ASCII")]
    Characters(&'static str),
    /// A line that is none of a file of credentials.
    #[error("line {0} is neither NAME=VALUE nor [SECTION]")]
    Line(usize),
}

impl Credentials {
    /// Takes credentials from variables. `value` returns the value of a variable.
    ///
    /// # Errors
    /// [`CredentialsError::Missing`] and [`CredentialsError::Characters`].
    pub fn from_variables(value: impl Fn(&str) -> Option<String>) -> Result<Credentials, CredentialsError> {
        let value = |name| match value(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty()) {
            Some(value) if !value.chars().all(|c| c.is_ascii_graphic()) => Err(CredentialsError::Characters(name)),
            value => Ok(value),
        };
        Ok(Credentials {
            key: value(KEY)?.ok_or(CredentialsError::Missing(KEY))?,
            secret: value(SECRET)?.ok_or(CredentialsError::Missing(SECRET))?,
            token: value(TOKEN)?,
        })
    }

    /// Reads the text of a file: lines `AWS_ACCESS_KEY_ID=VALUE` as in the environment, or a file of
    /// AWS's tools (`aws_access_key_id = VALUE`), of which the section `default` is read.
    ///
    /// # Errors
    /// [`CredentialsError`].
    pub fn from_text(text: &str) -> Result<Credentials, CredentialsError> {
        let mut values: Vec<(String, String)> = Vec::new();
        let mut chosen = true;
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if let Some(section) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                chosen = section.trim() == SECTION;
            } else if !line.is_empty() && !line.starts_with(['#', ';']) {
                let line = line.strip_prefix("export ").unwrap_or(line);
                let (name, value) = line.split_once('=').ok_or(CredentialsError::Line(index + 1))?;
                if chosen {
                    values.push((name.trim().to_ascii_uppercase(), value.trim().trim_matches('"').to_owned()));
                }
            }
        }
        Credentials::from_variables(|name| values.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_a_file_are_read() {
        let plain = Credentials::from_text("AWS_ACCESS_KEY_ID=k\nexport AWS_SECRET_ACCESS_KEY=\"s=\"\n").expect("plain");
        assert_eq!((plain.key.as_str(), plain.secret.as_str(), &plain.token), ("k", "s=", &None));
        let text =
            "# mine\n[other]\naws_access_key_id = x\n\n[default]\naws_access_key_id = k\naws_secret_access_key = s\naws_session_token=t\n";
        let aws = Credentials::from_text(text).expect("aws");
        assert_eq!((aws.key.as_str(), aws.secret.as_str(), aws.token.as_deref()), ("k", "s", Some("t")));
    }

    #[test]
    fn a_lack_is_named_and_no_secret_is_shown() {
        assert_eq!(Credentials::from_text("AWS_ACCESS_KEY_ID=k\n"), Err(CredentialsError::Missing(SECRET)));
        assert_eq!(Credentials::from_text("AWS_ACCESS_KEY_ID=\n"), Err(CredentialsError::Missing(KEY)));
        assert_eq!(Credentials::from_text("# x\nsecret\n"), Err(CredentialsError::Line(2)));
        let odd = Credentials::from_text("AWS_ACCESS_KEY_ID=k\nAWS_SECRET_ACCESS_KEY=a\u{e4}\n");
        assert_eq!(odd, Err(CredentialsError::Characters(SECRET)));
        let own = Credentials::from_variables(|name| Some(format!("value-of-{name}"))).expect("all set");
        assert!(!format!("{own:?}").contains("SECRET") && own.token.is_some());
    }
}
