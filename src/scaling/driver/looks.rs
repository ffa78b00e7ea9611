//! Looks at policies' pods and targets that are under way, each in a task of its own.

use tokio::task::{Id, JoinError, JoinSet};

use crate::actuator::{Look, Seen};

/// A look that has ended, and its results; `None`: it broke off.
pub(super) type Ended = (Id, Option<Seen>);

/// Looks that are under way. Each ends within its limit.
#[derive(Debug, Default)]
pub(super) struct Looks(JoinSet<Seen>);

impl Looks {
    /// Begins a look. Returns the number that it is known by.
    pub(super) fn begin(&mut self, look: Look) -> Id {
        self.0.spawn(look.ask()).id()
    }

    /// Waits for one to end; `None`: none is under way.
    pub(super) async fn next(&mut self) -> Option<Ended> {
        self.0.join_next_with_id().await.map(ended)
    }

    /// One that has ended by now.
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
