//! AES-256-XTS (IEEE 1619, NIST SP 800-38E): encrypts blocks in their own length.
//!
//! `aws-lc-rs` has no interface to XTS, so this file calls the C library below it. A context has the
//! schedule of a key for one direction; it is set up once and gets a tweak for each data unit.

use std::ffi::c_int;
use std::ptr::{self, NonNull};

use aws_lc_sys::{EVP_CIPHER_CTX, EVP_CIPHER_CTX_free, EVP_CIPHER_CTX_new, EVP_CipherInit_ex, EVP_CipherUpdate, EVP_aes_256_xts};

#[cfg(test)]
mod tests;

/// Bytes of a tweak: those of an AES block.
const TWEAK_BYTES: usize = 16;
/// Bytes of the stored forms of blocks: 1 to 8 units.
const UNIT: usize = 512;
const MAX_UNITS: usize = 8;
/// Values of `enc` of `EVP_CipherInit_ex`.
const DECRYPT: c_int = 0;
const ENCRYPT: c_int = 1;
const UNCHANGED: c_int = -1;

/// Where a block is, which determines how it is encrypted: equal blocks at two addresses, or with two
/// numbers, have nothing in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tweak {
    /// Chunk and slot as one number. An address is used once in the life of a pool.
    pub address: u64,
    /// Number of the block in its volume.
    pub block: u64,
}

impl Tweak {
    /// Returns the bytes: the address in the first 8, the block in the last 8, both little-endian.
    fn bytes(self) -> [u8; TWEAK_BYTES] {
        (u128::from(self.block) << 64 | u128::from(self.address)).to_le_bytes()
    }
}

/// A key of the cipher for blocks, in both directions. Dropping it erases it.
///
/// Blocks have 512 to 4,096 bytes, in steps of 512.
pub struct Xts {
    encrypting: Context,
    decrypting: Context,
}

impl Xts {
    /// Bytes of a key: two AES keys of 256 bits.
    pub const KEY_BYTES: usize = 64;

    /// Takes a key. The caller erases its own copy.
    ///
    /// # Panics
    /// When both halves of the key are equal, which IEEE 1619 forbids. Derived keys have equal halves
    /// with a chance of 2^-256.
    pub fn new(key: &[u8; Xts::KEY_BYTES]) -> Xts {
        Xts { encrypting: Context::new(key, ENCRYPT), decrypting: Context::new(key, DECRYPT) }
    }

    /// Writes a block to `to`, encrypted.
    ///
    /// # Panics
    /// When the lengths differ, or are none of a block.
    pub fn encrypt(&mut self, tweak: Tweak, from: &[u8], to: &mut [u8]) {
        check(from.len());
        self.encrypting.copy(&tweak.bytes(), from, to);
    }

    /// Encrypts a block in place.
    ///
    /// # Panics
    /// When the length is none of a block.
    pub fn encrypt_in_place(&mut self, tweak: Tweak, block: &mut [u8]) {
        check(block.len());
        self.encrypting.in_place(&tweak.bytes(), block);
    }

    /// Writes an encrypted block to `to`, decrypted.
    ///
    /// # Panics
    /// When the lengths differ, or are none of a block.
    pub fn decrypt(&mut self, tweak: Tweak, from: &[u8], to: &mut [u8]) {
        check(from.len());
        self.decrypting.copy(&tweak.bytes(), from, to);
    }

    /// Decrypts a block in place.
    ///
    /// # Panics
    /// When the length is none of a block.
    pub fn decrypt_in_place(&mut self, tweak: Tweak, block: &mut [u8]) {
        check(block.len());
        self.decrypting.in_place(&tweak.bytes(), block);
    }
}

fn check(length: usize) {
    assert!(length.is_multiple_of(UNIT) && (1..=MAX_UNITS).contains(&(length / UNIT)), "no block has {length} bytes");
}

/// A context of the library with a key for one direction. The library erases its memory when it frees
/// it.
struct Context(NonNull<EVP_CIPHER_CTX>);

// SAFETY: a context is plain memory of its own, which any thread may use; the library has no state of
// a thread that belongs to it. It is not `Sync`: each call needs `&mut`.
unsafe impl Send for Context {}

impl Context {
    fn new(key: &[u8; Xts::KEY_BYTES], direction: c_int) -> Context {
        // SAFETY: the function has no conditions; it returns null or a new context.
        let context = NonNull::new(unsafe { EVP_CIPHER_CTX_new() });
        let context = Context(context.expect("memory for a context of the cipher"));
        // SAFETY: the function has no conditions; it returns a static object of the library.
        let cipher = unsafe { EVP_aes_256_xts() };
        // SAFETY: the context is live and used by this call alone; the cipher reads 64 bytes, which the
        // key has. Engine and tweak may be null: no engine is used, and `run` sets a tweak.
        let done = unsafe { EVP_CipherInit_ex(context.0.as_ptr(), cipher, ptr::null_mut(), key.as_ptr(), ptr::null(), direction) };
        assert_eq!(done, 1, "the library refuses a key whose halves are equal");
        context
    }

    fn copy(&mut self, tweak: &[u8; TWEAK_BYTES], from: &[u8], to: &mut [u8]) {
        assert_eq!(from.len(), to.len(), "a block keeps its length");
        // SAFETY: both slices have the length, and do not overlap, because one is borrowed mutably.
        unsafe { self.run(tweak, from.as_ptr(), to.as_mut_ptr(), from.len()) }
    }

    fn in_place(&mut self, tweak: &[u8; TWEAK_BYTES], bytes: &mut [u8]) {
        let at = bytes.as_mut_ptr();
        // SAFETY: the slice has the length; source and target are the same, both by one pointer.
        unsafe { self.run(tweak, at, at, bytes.len()) }
    }

    /// Encrypts or decrypts a data unit.
    ///
    /// # Safety
    /// `from` is valid for reads and `to` for writes of `length` bytes. They are equal, or the two
    /// ranges do not overlap.
    unsafe fn run(&mut self, tweak: &[u8; TWEAK_BYTES], from: *const u8, to: *mut u8, length: usize) {
        let context = self.0.as_ptr();
        let length = c_int::try_from(length).expect("a block is shorter than 2 GiB");
        let mut written = 0;
        // SAFETY: the context is live and has the cipher, which `new` set; the cipher reads 16 bytes,
        // which the tweak has. Null for cipher and key leaves them as they are.
        let ready = unsafe { EVP_CipherInit_ex(context, ptr::null(), ptr::null_mut(), ptr::null(), tweak.as_ptr(), UNCHANGED) };
        // SAFETY: the caller guarantees both ranges; XTS writes as many bytes as it reads, and allows a
        // target that equals the source.
        let done = unsafe { EVP_CipherUpdate(context, to, &raw mut written, from, length) };
        assert_eq!((ready, done, written), (1, 1, length), "the library fails for less than an AES block alone");
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: this value owns the context, and nothing uses it afterwards.
        unsafe { EVP_CIPHER_CTX_free(self.0.as_ptr()) }
    }
}
