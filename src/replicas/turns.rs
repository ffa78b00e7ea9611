//! Turns at a stream: connects while there is something to share, reads and writes, and begins again after a failure.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::failure::Failure;
use super::retries::Retries;
use super::stream::Stream;

/// Whether there is something to share.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Readiness {
    Ready,
    /// Not yet, as no endpoints are known.
    Later,
    /// There won't be, unless the configuration changes.
    Nothing,
}

/// State that replicas share through a stream.
pub(super) trait Shared {
    /// Line of the log when it is shared.
    const SHARED: &'static str;
    /// Line of the log when it can't be.
    const NOT_SHARED: &'static str;
    /// Interval at which it is looked at while there is nothing to share.
    const IDLE: Duration;

    /// Follows the configuration and the membership.
    fn readiness(&mut self) -> Readiness;

    /// Begins with a new connection. Returns the time until the first turn.
    async fn begin(&mut self, stream: &mut Stream) -> Result<Duration, Failure>;

    /// Reads and writes. Returns the time from its beginning to that of the next turn.
    async fn turn(&mut self, stream: &mut Stream) -> Result<Duration, Failure>;
}

/// Takes turns for ever.
pub(super) async fn take_turns<S: Shared>(stream: &mut Stream, shared: &mut S) {
    let (mut retries, mut is_first) = (Retries::new(stream.connector.named.clone()), true);
    loop {
        let readiness = shared.readiness();
        if readiness == Readiness::Nothing {
            stream.is_warm();
        }
        if readiness != Readiness::Ready {
            stream.connected.set(1);
            sleep(S::IDLE).await;
            continue;
        }
        stream.connected.set(0);
        let began = Instant::now();
        let ended = serve(stream, shared, &mut retries, &mut is_first).await;
        stream.disconnect();
        retries.ended(began);
        if let Err(failure) = ended {
            if failure.needs_somebody() {
                stream.is_warm();
            }
            let pause = stream.connector.failed(&failure, &mut retries, S::NOT_SHARED);
            sleep(pause).await;
        }
    }
}

/// Takes turns at a new connection until it fails, or there is nothing to share any more.
async fn serve<S: Shared>(
    stream: &mut Stream,
    shared: &mut S,
    retries: &mut Retries,
    is_first: &mut bool,
) -> Result<(), Failure> {
    let pause = shared.begin(stream).await?;
    let mut next = Instant::now() + pause;
    loop {
        sleep_until(next).await;
        if shared.readiness() != Readiness::Ready {
            return Ok(());
        }
        let began = Instant::now();
        next = began + shared.turn(stream).await?;
        // A store that refuses to write connects all the same.
        if retries.connected(Instant::now()) | std::mem::take(is_first) {
            tracing::info!(store = %stream.connector.store.address, "{}", S::SHARED);
        }
        stream.connected.set(1);
    }
}
