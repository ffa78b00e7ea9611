//! Limits of all ports that serve few, small requests: health, KEDA's external scaler, metrics and
//! administration.

use std::time::Duration;

/// Connections of a port. For one more the oldest is closed, or the new one where each serves one
/// request only and ends soon by itself.
pub const MAX_CONNECTIONS: usize = 256;

/// Streams of a connection, of those that serve more than one request at a time.
pub const MAX_STREAMS: u32 = 16;

/// Time for a request to be complete, and for a gRPC call to begin with its answer.
pub const COMPLETE: Duration = Duration::from_secs(10);
