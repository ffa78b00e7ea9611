//! See `usher_fuzz::usage_json`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| usher_fuzz::usage_json(data));
