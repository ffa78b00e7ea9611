//! See `usher_fuzz::usage_sse`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| usher_fuzz::usage_sse(data));
