//! See `usher_fuzz::request_body`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| usher_fuzz::request_body(data));
