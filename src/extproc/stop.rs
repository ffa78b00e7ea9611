//! Stops a server.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// A wish to stop. The first one starts the shutdown, the second one cuts it short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Accept for the drain window, and for the larger part of it say that we are not
    /// serving, then finish the open streams: an orchestrator stops us (SIGTERM).
    Drain,
    /// Finish the open streams without a drain window: a person at a terminal stops
    /// us (SIGINT).
    Now,
}

/// The wishes to stop, in the order in which they arrive.
#[derive(Debug)]
pub struct StopSignals {
    receiver: mpsc::UnboundedReceiver<Stop>,
    stopping: CancellationToken,
}

/// Tells a server to stop.
#[derive(Debug, Clone)]
pub struct StopSender {
    sender: mpsc::UnboundedSender<Stop>,
}

impl StopSignals {
    /// A pair for programs that stop a server without signals.
    #[must_use]
    pub fn channel() -> (StopSender, Self) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (StopSender { sender }, Self { receiver, stopping: CancellationToken::new() })
    }

    /// SIGTERM drains, SIGINT stops. Must be called within a tokio runtime, which
    /// listens for as long as it lives.
    ///
    /// # Errors
    /// `io::Error` if the signal handlers can't be installed.
    pub fn from_signals() -> std::io::Result<Self> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let (stopper, stops) = Self::channel();
        tokio::spawn(async move {
            loop {
                let (stop, signal) = tokio::select! {
                    Some(()) = terminate.recv() => (Stop::Drain, "SIGTERM"),
                    Some(()) = interrupt.recv() => (Stop::Now, "SIGINT"),
                    else => return,
                };
                tracing::info!(signal, "signal received");
                stopper.stop(stop);
            }
        });
        Ok(stops)
    }

    /// Cancelled when the first wish was taken.
    #[must_use]
    pub fn stopping(&self) -> CancellationToken {
        self.stopping.clone()
    }

    /// The next signal; never, once no sender is left.
    ///
    /// Cancel safe.
    pub async fn next(&mut self) -> Stop {
        match self.receiver.recv().await {
            Some(stop) => {
                self.stopping.cancel();
                stop
            }
            None => std::future::pending().await,
        }
    }
}

impl StopSender {
    /// Sends a wish; without effect when the server has ended.
    pub fn stop(&self, stop: Stop) {
        // The only error is that nobody listens any more.
        let _ = self.sender.send(stop);
    }
}
