//! STARTTLS: the server's policy, and the state of a connection.
//!
//! The session knows no cipher. It agrees on encryption and then waits for the loop to insert the
//! cipher between socket and session. From then on the session receives decrypted bytes, and the
//! bytes that it sends are encrypted.
//!
//! - `INV-NBD-5` Plaintext before STARTTLS has no effect after it: results of the negotiation are
//!   discarded, and the connection is closed if plaintext bytes follow STARTTLS, from the client or
//!   from an attacker on the path. Otherwise these bytes would count as encrypted ones
//!   (CVE-2021-3716 and similar).

/// Encryption policy of an export's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encryption {
    /// STARTTLS is refused.
    #[default]
    Off,
    /// STARTTLS is accepted, but not required.
    Allowed,
    /// STARTTLS is required: every other option before it is refused, except ABORT.
    Required,
}

/// State of the encryption of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Secrecy {
    /// Bytes are in plaintext.
    Clear(Encryption),
    /// STARTTLS was accepted; the answer may not be sent yet.
    Starting,
    /// Bytes are encrypted by the loop.
    Secured,
}

impl Default for Secrecy {
    fn default() -> Self {
        Secrecy::Clear(Encryption::Off)
    }
}

impl Secrecy {
    /// Returns true if STARTTLS has to be the next option.
    pub(super) fn is_due(self) -> bool {
        self == Secrecy::Clear(Encryption::Required)
    }

    /// Returns true if STARTTLS would be accepted.
    pub(super) fn is_offered(self) -> bool {
        matches!(self, Secrecy::Clear(Encryption::Allowed | Encryption::Required))
    }
}
