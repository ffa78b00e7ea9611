//! Fetches in progress, each in a task of its own.

use tokio::task::{Id, JoinError, JoinSet};

use crate::actuator::{Look, Seen};

/// A completed fetch and its results; `None`: aborted.
pub(super) type Ended = (Id, Option<Seen>);

/// Fetches in progress. Each ends within its time limit.
#[derive(Debug, Default)]
pub(super) struct Looks(JoinSet<Seen>);

impl Looks {
    /// Starts a fetch. Returns its task's id.
    pub(super) fn begin(&mut self, look: Look) -> Id {
        self.0.spawn(look.ask()).id()
    }

    /// Waits for one to complete; `None`: none is in progress.
    pub(super) async fn next(&mut self) -> Option<Ended> {
        self.0.join_next_with_id().await.map(ended)
    }

    /// Completed fetch, without waiting.
    pub(super) fn next_ended(&mut self) -> Option<Ended> {
        self.0.try_join_next_with_id().map(ended)
    }
}

fn ended(joined: Result<(Id, Seen), JoinError>) -> Ended {
    match joined {
        Ok((id, seen)) => (id, Some(seen)),
        Err(error) => (error.id(), None),
    }
}
