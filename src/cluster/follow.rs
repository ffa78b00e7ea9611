//! Follows a collection: the thin part that asks and waits. What to do when is in
//! [`Course`].

use std::time::Duration;

use futures_util::StreamExt;
use kube::core::WatchEvent;
use rand::RngExt;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, sleep, timeout_at};

use super::course::{Course, Step};
use super::{Cluster, Collection, Problem, Standing};

/// Seconds that a watch is asked for; a part is drawn, so that watches that began together
/// don't end together. Short, because a connection that broke without a word is only
/// noticed when the watch should have ended: the end of a watch is the one sign of life
/// that nobody between us and the API server can give in its place, as a load balancer does
/// that acknowledges what it no longer passes on. A bookmark comes before each end, so that
/// the next watch goes on from there.
const WATCH_SECONDS: std::ops::Range<u64> = 16..24;

/// How much later than asked for a watch may end.
const GRACE: Duration = Duration::from_secs(5);

/// An object that can be followed.
pub trait Watched: DeserializeOwned + Clone + Send + 'static {
    /// `metadata.resourceVersion`
    fn version(&self) -> &str;
}

/// A change of a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<T> {
    /// These are all objects.
    All(Vec<T>),
    /// This object is new or has changed.
    Put(T),
    /// This object is gone; its last state.
    Gone(T),
}

/// Why a collection is no longer followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The server knows no objects of this kind.
    NotFound,
    /// Nobody listens any longer.
    Unheard,
}

/// Sends all objects of a collection and then every change, as `message` makes of them. A
/// lost watch, a server that is down, or one that refuses changes nothing: it is asked
/// again until it answers, and what was sent before is true until then.
pub async fn follow<T: Watched, M: Send>(
    cluster: &Cluster,
    collection: &Collection,
    standing: &Standing,
    to: &Sender<M>,
    message: impl Fn(Change<T>) -> M + Send + Sync,
) -> Ended {
    let mut course = Course::new();
    let mut reports = Reports { path: collection.path(), last: None };
    let mut step = Step::List(Duration::ZERO);
    loop {
        step = match step {
            Step::Stop => return Ended::NotFound,
            Step::List(pause) => {
                sleep(pause).await;
                match cluster.list::<T>(collection).await {
                    Ok((items, version)) => {
                        standing.heard();
                        reports.works();
                        if to.send(message(Change::All(items))).await.is_err() {
                            return Ended::Unheard;
                        }
                        course.listed(version)
                    }
                    Err(problem) => {
                        // A kind that is missing is for the caller to tell.
                        if !matches!(problem, Problem::NotFound(_)) {
                            standing.set_connected(false);
                        }
                        reports.fails(&problem);
                        course.list_failed(&problem, &mut rand::rng())
                    }
                }
            }
            Step::Watch(version, pause) => {
                sleep(pause).await;
                let mut open = Open { standing, course: &mut course, reports: &mut reports };
                let watched = open.watch(cluster, collection, &version, to, &message).await;
                standing.set_connected(false);
                match watched {
                    Ok(true) => course.watch_ended(None, &mut rand::rng()),
                    Ok(false) => return Ended::Unheard,
                    Err(problem) => {
                        reports.fails(&problem);
                        course.watch_ended(Some(&problem), &mut rand::rng())
                    }
                }
            }
        };
    }
}

/// A watch, and who hears of how it goes.
struct Open<'a, 'r> {
    standing: &'a Standing,
    course: &'a mut Course,
    reports: &'a mut Reports<'r>,
}

impl Open<'_, '_> {
    /// Watches until it ends. Says whether to go on.
    async fn watch<T: Watched, M: Send>(
        &mut self,
        cluster: &Cluster,
        collection: &Collection,
        version: &str,
        to: &Sender<M>,
        message: &(impl Fn(Change<T>) -> M + Send + Sync),
    ) -> Result<bool, Problem> {
        let seconds = rand::rng().random_range(WATCH_SECONDS);
        let events = cluster.watch::<T>(collection, version, seconds).await?;
        let mut events = std::pin::pin!(events);
        self.standing.heard();
        self.standing.set_connected(true);
        self.reports.works();
        let asked = Duration::from_secs(seconds);
        let (started, limit) = (Instant::now(), asked + GRACE);
        loop {
            let next = timeout_at(started + limit, events.next()).await;
            let Some(event) = next.map_err(|_| Problem::TimedOut(limit))? else {
                // It lasted as long as it was asked for: the server is well, though it
                // had nothing to say.
                if started.elapsed() + Duration::from_secs(1) >= asked {
                    self.standing.heard();
                    self.course.told("");
                }
                return Ok(true);
            };
            let change = match event? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => Change::Put(object),
                WatchEvent::Deleted(object) => Change::Gone(object),
                WatchEvent::Bookmark(bookmark) => {
                    self.standing.heard();
                    self.course.told(&bookmark.metadata.resource_version);
                    continue;
                }
                WatchEvent::Error(status) => return Err(Problem::from(&*status)),
            };
            self.standing.heard();
            if let Change::Put(object) | Change::Gone(object) = &change {
                self.course.told(object.version());
            }
            if to.send(message(change)).await.is_err() {
                return Ok(false);
            }
        }
    }
}

/// Says what is wrong once, not at every attempt.
struct Reports<'a> {
    path: &'a str,
    last: Option<Problem>,
}

impl Reports<'_> {
    fn fails(&mut self, problem: &Problem) {
        // Part of how watches live, and a kind that is missing is for the caller to tell.
        if matches!(problem, Problem::Expired(_) | Problem::NotFound(_))
            || self.last.as_ref() == Some(problem)
        {
            return;
        }
        let path = self.path;
        match problem {
            Problem::Denied(message) => tracing::error!(
                path,
                message,
                "the Kubernetes API server denies access; allow the verbs get, list and watch for it in the picker's Role"
            ),
            _ => tracing::warn!(path, %problem, "cannot follow Kubernetes objects, keeping what is known"),
        }
        self.last = Some(problem.clone());
    }

    fn works(&mut self) {
        if self.last.take().is_some() {
            tracing::info!(path = self.path, "following Kubernetes objects again");
        }
    }
}
