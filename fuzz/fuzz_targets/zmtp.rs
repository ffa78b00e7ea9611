//! See `usher_fuzz::zmtp`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| usher_fuzz::zmtp(data));
