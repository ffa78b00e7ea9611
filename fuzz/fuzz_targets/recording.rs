//! See `usher_fuzz::recording`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| usher_fuzz::recording(data));
