//! Fetches in progress, each in a task of its own.

use tokio::task::{Id, JoinError, JoinSet};

use crate::actuator::{FetchRequest, Fetched};

/// A completed fetch and its results; `None`: aborted.
pub(super) type Ended = (Id, Option<Fetched>);

/// Fetches in progress. Each ends within its time limit.
#[derive(Debug, Default)]
pub(super) struct Fetches(JoinSet<Fetched>);

impl Fetches {
    /// Starts a fetch. Returns its task's id.
    pub(super) fn begin(&mut self, request: FetchRequest) -> Id {
        self.0.spawn(request.send()).id()
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

fn ended(joined: Result<(Id, Fetched), JoinError>) -> Ended {
    match joined {
        Ok((id, fetched)) => (id, Some(fetched)),
        Err(error) => (error.id(), None),
    }
}
