//! Limits of all ports that serve few, small requests: health, KEDA's external scaler, metrics and
//! administration.

use std::time::Duration;

/// Connections of a port. For one more the oldest is closed, or the new one where each serves one
/// request only and ends soon by itself.
pub const MAX_CONNECTIONS: usize = 256;

/// Streams of a port.
const MAX_STREAMS_OF_ALL: usize = 4096;

/// Connections of a port where each may have so many streams.
pub fn max_connections(streams: u32) -> usize {
    (MAX_STREAMS_OF_ALL / streams.max(1) as usize).clamp(1, MAX_CONNECTIONS)
}

/// Streams of a connection, of those that serve more than one request at a time.
pub const MAX_STREAMS: u32 = 16;

/// Time for a request to be complete, and for a gRPC call to begin with its answer.
pub const COMPLETE: Duration = Duration::from_secs(10);
