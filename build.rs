//! Compiles `proto/` with protox, so that no `protoc` has to be installed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["health.proto"], ["proto"])?;
    tonic_prost_build::configure().build_client(false).bytes(".").compile_fds(files)?;
    // With the client that its tests ask with.
    let files = protox::compile(["externalscaler.proto"], ["proto"])?;
    tonic_prost_build::configure().build_transport(false).compile_fds(files)?;
    Ok(())
}
