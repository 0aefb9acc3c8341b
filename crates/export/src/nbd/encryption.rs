//! STARTTLS: what a server offers, and how far a connection is.
//!
//! The session knows no cipher. It agrees on encryption and then waits for the loop to put it between socket and session; from there on
//! it is given decrypted bytes and its own are encrypted.
//!
//! - `INV-NBD-5` Nothing that came in the clear counts after STARTTLS: what was negotiated is forgotten, and a client (or somebody on
//!   the way) that has sent bytes behind it is cut off. Those bytes would else be taken for encrypted ones (CVE-2021-3716 and its kin).

/// Whether the connections of an export are encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encryption {
    /// STARTTLS is refused.
    #[default]
    Off,
    /// STARTTLS is accepted; a client may do without.
    Allowed,
    /// Until STARTTLS nothing else is answered.
    Required,
}

/// How far the encryption of one connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Secrecy {
    /// The bytes are in the clear.
    Clear(Encryption),
    /// STARTTLS was accepted; the answer may be on its way.
    Starting,
    /// Encrypted by the loop.
    Secured,
}

impl Default for Secrecy {
    fn default() -> Self {
        Secrecy::Clear(Encryption::Off)
    }
}

impl Secrecy {
    /// STARTTLS has to come first.
    pub(super) fn is_due(self) -> bool {
        self == Secrecy::Clear(Encryption::Required)
    }

    /// STARTTLS would be accepted.
    pub(super) fn is_offered(self) -> bool {
        matches!(self, Secrecy::Clear(Encryption::Allowed | Encryption::Required))
    }
}
