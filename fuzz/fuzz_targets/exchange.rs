//! See `usher_fuzz::exchange`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| usher_fuzz::exchange(data));
