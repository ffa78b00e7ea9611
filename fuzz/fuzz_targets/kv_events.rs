//! See `usher_fuzz::kv_events`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| usher_fuzz::kv_events(data));
