//! Names in a client's certificate: the common name of its subject, and its alternative names.
//!
//! The library has verified the certificate before this module reads it, and gives only its bytes.
//! So this module reads just enough of X.509 (RFC 5280, section 4.1) in DER. A certificate that it
//! cannot parse has no names, and gives no access.

use std::net::{Ipv4Addr, Ipv6Addr};

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_ID: u8 = 0x06;
const OCTETS: u8 = 0x04;
/// `[0]`, the version, where there is one.
const VERSION: u8 = 0xa0;
/// `[3]`, the extensions.
const EXTENSIONS: u8 = 0xa3;
/// Kinds of strings that are text as it stands: UTF8String, PrintableString, IA5String.
const TEXTS: [u8; 3] = [0x0c, 0x13, 0x16];
/// 2.5.4.3
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
/// 2.5.29.17
const ALTERNATIVE_NAMES: [u8; 3] = [0x55, 0x1d, 0x11];
/// Kinds of alternative names: `[1]` mail, `[2]` DNS, `[6]` URI, `[7]` address.
const MAIL: u8 = 0x81;
const DNS: u8 = 0x82;
const URI: u8 = 0x86;
const ADDRESS: u8 = 0x87;
/// Most names that are read from one certificate.
const MOST: usize = 100;

/// One of the names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CertificateName {
    pub(super) text: String,
    /// It is a DNS name, which is compared without regard to case.
    is_dns: bool,
}

impl CertificateName {
    /// True when it is the name `listed`.
    pub(super) fn is(&self, listed: &str) -> bool {
        if self.is_dns { self.text.eq_ignore_ascii_case(listed) } else { self.text == listed }
    }
}

/// Returns the names in the first certificate of a chain as TLS sends it: three bytes of length
/// before each certificate.
pub(super) fn of_chain(chain: &[u8]) -> Vec<CertificateName> {
    let Some((length, rest)) = chain.split_first_chunk::<3>() else { return Vec::new() };
    let length = length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    rest.get(..length).map(of_certificate).unwrap_or_default()
}

/// Returns the names in a certificate.
pub(super) fn of_certificate(der: &[u8]) -> Vec<CertificateName> {
    let mut names = Vec::new();
    let _ = gather(der, &mut names);
    names.truncate(MOST);
    names
}

/// Collects names as far as it can parse; `None` where it cannot.
fn gather(der: &[u8], names: &mut Vec<CertificateName>) -> Option<()> {
    let mut to_be_signed = Der(Der(der).take(SEQUENCE)?).nested(SEQUENCE)?;
    to_be_signed.take(VERSION);
    // serial number, algorithm, issuer, validity
    for _ in 0..4 {
        to_be_signed.next()?;
    }
    let mut subject = to_be_signed.nested(SEQUENCE)?;
    while let Some(mut set) = subject.nested(SET) {
        while let Some(mut attribute) = set.nested(SEQUENCE) {
            let of_subject = attribute.take(OBJECT_ID) == Some(&COMMON_NAME);
            if let Some((kind, value)) = attribute.next()
                && of_subject
                && TEXTS.contains(&kind)
            {
                push(names, value, false);
            }
        }
    }
    let extensions = loop {
        if let (EXTENSIONS, value) = to_be_signed.next()? {
            break value;
        }
    };
    let mut extensions = Der(extensions).nested(SEQUENCE)?;
    while let Some(mut extension) = extensions.nested(SEQUENCE) {
        if extension.take(OBJECT_ID) != Some(&ALTERNATIVE_NAMES) {
            continue;
        }
        let value = std::iter::from_fn(|| extension.next()).find(|(kind, _)| *kind == OCTETS)?.1;
        let mut alternatives = Der(value).nested(SEQUENCE)?;
        while let Some((kind, value)) = alternatives.next() {
            match kind {
                MAIL | DNS | URI => push(names, value, kind == DNS),
                ADDRESS => names.extend(address(value)),
                _ => {}
            }
        }
    }
    Some(())
}

fn push(names: &mut Vec<CertificateName>, value: &[u8], is_dns: bool) {
    if let Ok(text) = str::from_utf8(value) {
        names.push(CertificateName { text: text.to_owned(), is_dns });
    }
}

fn address(value: &[u8]) -> Option<CertificateName> {
    let text = match value.len() {
        4 => Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?).to_string(),
        16 => Ipv6Addr::from(<[u8; 16]>::try_from(value).ok()?).to_string(),
        _ => return None,
    };
    Some(CertificateName { text, is_dns: false })
}

/// DER values one after another, each after its kind and length.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// Returns the next value with its kind; `None` at the end, and where the bytes are no value.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (kind, rest) = self.0.split_first()?;
        let (first, mut rest) = rest.split_first()?;
        let mut length = usize::from(*first);
        if length >= 0x80 {
            // Length of the length: no certificate has more than 16 MiB.
            let (bytes, after) = rest.split_at_checked(length - 0x80)?;
            if !(1..=3).contains(&bytes.len()) {
                return None;
            }
            length = bytes.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            rest = after;
        }
        let (value, after) = rest.split_at_checked(length)?;
        self.0 = after;
        Some((*kind, value))
    }

    /// Returns the next value if it is of this kind; else leaves it.
    fn take(&mut self, kind: u8) -> Option<&'a [u8]> {
        if self.0.first() == Some(&kind) { self.next().map(|(_, value)| value) } else { None }
    }

    /// Returns the values inside the next one, if that is of this kind.
    fn nested(&mut self, kind: u8) -> Option<Der<'a>> {
        self.take(kind).map(Der)
    }
}

#[cfg(test)]
mod tests;
