//! Limits of all ports that serve few, small requests: health, KEDA's external scaler, metrics and
//! administration.

use std::time::Duration;

use super::Budget;

/// Connections of a port. For one more an [old one](super::ConnectionSlots) is closed.
const MAX_CONNECTIONS: usize = 256;

/// Connections of a port, however small the memory budget and the limit on open files.
pub(super) const LEAST_CONNECTIONS: usize = 8;

/// Streams of a port.
const MAX_STREAMS_OF_ALL: usize = 4096;

/// Streams of a connection, of those that serve more than one request at a time.
pub const MAX_STREAMS: u32 = 16;

/// Memory of a connection, in bytes: its buffers and its state. Measured: 20 KiB with HTTP/2, 27 with
/// HTTP/1.1.
pub const CONNECTION: u64 = 28 << 10;

/// Memory of a gRPC call, in bytes: its stream in HTTP/2 and its task. Measured: 7 KiB of a `Watch`,
/// and 10 on the ext_proc port.
pub const CALL: u64 = 10 << 10;

/// Time for a request to be complete, and for a gRPC call to begin with its response.
pub const COMPLETE: Duration = Duration::from_secs(10);

/// Most bytes that small ports take together, in a process that has no budget or a large one.
const MOST: u64 = 64 << 20;

/// Connections of a port where each may have so many streams, within this budget.
pub fn max_connections(streams: u32, budget: &Budget) -> usize {
    let places = usize::try_from(share(budget) / CONNECTION).unwrap_or(usize::MAX);
    let most = (MAX_STREAMS_OF_ALL / streams.max(1) as usize).clamp(1, MAX_CONNECTIONS);
    most.min(places.max(LEAST_CONNECTIONS)).min(budget.max_small_connections())
}

/// Ports that serve such requests: health, ext_proc (which answers health checks too), KEDA, metrics and
/// administration.
const PORTS: u64 = 5;

/// Most bytes that requests of a port may take, of the [share] that all of them have.
pub(super) fn calls_share(budget: &Budget) -> u64 {
    share(budget) / PORTS
}

/// Most bytes that large responses of a port may take until they are sent; one that is larger is sent alone.
pub(super) fn pages_share(budget: &Budget) -> u64 {
    budget.process().map_or(MOST, |process| (process / 16).min(MOST))
}

/// Most bytes that connections of a port may take, and requests of all of them: a quarter of what is
/// for small ports, which is a sixteenth of the budget. Health, metrics and administration have many
/// connections, and KEDA has few.
fn share(budget: &Budget) -> u64 {
    budget.process().map_or(MOST, |process| (process / 16).min(MOST)) / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_budgets_have_fewer_places() {
        // Budget in MiB (0: none), connections for health, those for KEDA.
        for (process, health, keda) in [(0, 256, 16), (1024, 256, 16), (96, 54, 16), (16, 9, 9), (1, 8, 8)] {
            let budget =
                if process == 0 { Budget::default() } else { Budget::of_process(process << 20, None) };
            assert_eq!(
                (max_connections(16, &budget), max_connections(256, &budget)),
                (health, keda),
                "{process}"
            );
            assert_eq!(max_connections(1, &budget), health);
        }
    }
}
