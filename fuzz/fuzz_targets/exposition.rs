//! See `usher_fuzz::exposition`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| usher_fuzz::exposition(data));
