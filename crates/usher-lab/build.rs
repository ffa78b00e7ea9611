//! Passes to the library how far it is optimised: measurements of an unoptimised build say so.

fn main() {
    let level = std::env::var("OPT_LEVEL").unwrap_or_default();
    println!("cargo:rustc-env=USHER_OPT_LEVEL={level}");
    println!("cargo:rerun-if-changed=build.rs");
}
