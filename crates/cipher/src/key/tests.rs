use super::*;
use crate::{Tweak, vectors};

/// Fails to compile when one of the types has `Debug`: then two traits have the function.
macro_rules! has_no_debug {
    ($($secret:ty),*) => {$(
        const _: fn() = || {
            trait Ambiguous<Marker> {
                fn exists() {}
            }
            impl<T> Ambiguous<u8> for T {}
            impl<T: std::fmt::Debug> Ambiguous<u16> for T {}
            <$secret as Ambiguous<_>>::exists();
        };
    )*};
}
has_no_debug!(DataKey, Aead, Xts);

fn key() -> DataKey {
    DataKey::take(&mut std::array::from_fn(|at| at as u8))
}

/// The result of another program (OpenSSL 3) for the same key, domain, address and block: the form of
/// blocks on devices.
#[test]
fn blocks_have_a_form_that_stays() {
    const CHUNK: u64 = 0x02_0312_3456;
    let mut cipher = key().xts(Domain(*b"\xa0\xa1\xa2\xa3\xa4\xa5\xa6\xa7"), KeySpan::of_chunk(CHUNK));
    let mut block: Vec<u8> = (0..512).map(|at| at as u8).collect();
    cipher.encrypt_in_place(Tweak { address: CHUNK << 13 | 5, block: 0x0708_090a }, &mut block);
    assert_eq!(block[..32], vectors::hex("164d8f47b739bf13131daf0929521e702256a38660c449c2b5e2239d003b0453"));
    assert_eq!(block[496..], vectors::hex("f3c4a78e0474172543ae181313ee31d1"));
}

#[test]
fn each_data_key_domain_and_span_has_its_own_key() {
    let tweak = Tweak { address: 1, block: 2 };
    let encrypted = |key: &DataKey, domain, chunk| {
        let mut unit = [0; 512];
        key.xts(Domain([domain; 8]), KeySpan::of_chunk(chunk)).encrypt_in_place(tweak, &mut unit);
        unit
    };
    let first = encrypted(&key(), 1, 0);
    assert_eq!(first, encrypted(&key(), 1, (1 << 24) - 1), "of one span");
    for other in [
        encrypted(&key(), 2, 0),
        encrypted(&key(), 1, 1 << 24),
        encrypted(&key(), 1, 1 << 32),
        encrypted(&DataKey::take(&mut [1; 32]), 1, 0),
    ] {
        assert_ne!(first, other);
    }
}

#[test]
fn a_wrap_opens_with_its_own_key_alone() {
    let (by, nonce) = (Aead::new(&[7; 32]), [9; NONCE_BYTES]);
    let wrapped = key().wrap(&by, nonce, b"clear");
    // by the same other program
    let known = "22a001cacaef50c639b503b716ff54c32d4ae19dec67325e21928c1af9a09e980690d85115970c3bb7d0b47649ede535";
    assert_eq!(wrapped.as_slice(), vectors::hex(known));
    let opened = |wrapped: &[u8; WRAPPED_BYTES], by: &Aead, clear: &[u8]| {
        DataKey::from_wrap(wrapped, by, nonce, clear).map(|opened| *opened.0 == *key().0)
    };
    assert_eq!(opened(&wrapped, &by, b"clear"), Ok(true));
    assert_eq!(opened(&wrapped, &by, b"cleaR"), Err(Unauthentic));
    assert_eq!(opened(&wrapped, &Aead::new(&[8; 32]), b"clear"), Err(Unauthentic));
    for bit in 0..WRAPPED_BYTES * 8 {
        let mut changed = wrapped;
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(opened(&changed, &by, b"clear"), Err(Unauthentic), "bit {bit}");
    }
}

#[test]
fn taken_bytes_are_erased_at_their_old_place() {
    let mut bytes = [5; DataKey::BYTES];
    let key = DataKey::take(&mut bytes);
    assert_eq!((bytes, *key.0), ([0; DataKey::BYTES], [5; DataKey::BYTES]));
}
