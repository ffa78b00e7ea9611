//! See `usher_fuzz::chat`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| usher_fuzz::chat(data));
