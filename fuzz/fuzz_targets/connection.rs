//! See `usher_fuzz::connection`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| usher_fuzz::connection(data));
