//! Sources of the requests of a run.

use std::cell::Cell;
use std::sync::Arc;

use tokio::sync::{Mutex, mpsc};

use super::prompt::{Packer, Prompt};
use super::trace::Row;

/// Requests of a trace that are made before they are needed.
const AHEAD: usize = 64;

/// Gives requests, one after the other.
#[derive(Debug)]
pub(super) enum Source {
    /// Fixed prompts, in rotation.
    Pool { prompts: Vec<Arc<Prompt>>, next: Cell<usize> },
    /// Requests of a trace.
    Trace(Mutex<mpsc::Receiver<Arc<Prompt>>>),
}

impl Source {
    pub(super) fn pool(prompts: Vec<Arc<Prompt>>) -> Self {
        Self::Pool { prompts, next: Cell::new(0) }
    }

    /// The requests of a trace, made on a thread of their own, as a long one takes a
    /// while. `again`: from the start when it is over, with other texts.
    pub(super) fn trace(rows: Vec<Row>, packer: Packer, again: bool) -> Self {
        let (sender, receiver) = mpsc::channel(AHEAD);
        tokio::task::spawn_blocking(move || {
            for salt in 0u64.. {
                for row in &rows {
                    // Nobody takes them any more.
                    if sender.blocking_send(Arc::new(packer.row(row, salt))).is_err() {
                        return;
                    }
                }
                if !again {
                    return;
                }
            }
        });
        Self::Trace(Mutex::new(receiver))
    }

    /// The next request; `None` when there is no more.
    pub(super) async fn next(&self) -> Option<Arc<Prompt>> {
        match self {
            Self::Pool { prompts, next } => {
                let at = next.get();
                next.set((at + 1) % prompts.len());
                prompts.get(at).cloned()
            }
            Self::Trace(receiver) => receiver.lock().await.recv().await,
        }
    }
}
