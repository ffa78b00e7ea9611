//! Follows a collection: the thin part that asks and waits. What to do when is in
//! [`WatchMachine`].

use std::time::Duration;

use futures_util::StreamExt;
use kube::core::WatchEvent;
use rand::RngExt;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, sleep, timeout_at};

use super::watch_machine::{Step, WatchMachine};
use super::{Cluster, Collection, Problem, WatchStatus};

/// Seconds that a watch is asked for; a part is drawn, so that watches that began together
/// don't end together. Short, because a connection that broke without a word is only
/// noticed when the watch should have ended: the end of a watch is the one sign of life
/// that nobody between us and the API server can give in its place, as a load balancer does
/// that acknowledges what it no longer passes on. A bookmark comes before each end, so that
/// the next watch goes on from there.
const WATCH_SECONDS: std::ops::Range<u64> = 16..24;

/// Time after the asked end of a watch at which it is given up.
const GRACE: Duration = Duration::from_secs(5);

/// An object that can be followed.
pub trait Watched: DeserializeOwned + Clone + Send + 'static {
    /// `metadata.resourceVersion`
    fn version(&self) -> &str;
}

/// A change of a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<T> {
    /// All objects of the collection.
    All(Vec<T>),
    /// A new or changed object.
    Put(T),
    /// A deleted object in its last state.
    Gone(T),
}

/// Reason that a collection is no longer followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The server knows no objects of this kind.
    NotFound,
    /// The listener is gone.
    Unheard,
}

/// Sends all objects of a collection and then every change, as `message` makes of them. A
/// lost watch, a server that is down, or one that refuses changes nothing: it is asked
/// again until it responds, and what was sent before is true until then.
pub async fn follow<T: Watched, M: Send>(
    cluster: &Cluster,
    collection: &Collection,
    watch_status: &WatchStatus,
    to: &Sender<M>,
    message: impl Fn(Change<T>) -> M + Send + Sync,
) -> Ended {
    let mut machine = WatchMachine::new();
    let mut reports = Reports { path: collection.path(), last: None };
    let mut step = Step::List(Duration::ZERO);
    loop {
        step = match step {
            Step::Stop => return Ended::NotFound,
            Step::List(pause) => {
                sleep(pause).await;
                match cluster.list::<T>(collection).await {
                    Ok((items, version)) => {
                        watch_status.heard();
                        reports.works();
                        if to.send(message(Change::All(items))).await.is_err() {
                            return Ended::Unheard;
                        }
                        machine.listed(version)
                    }
                    Err(problem) => {
                        // A kind that is missing is for the caller to log.
                        if !matches!(problem, Problem::NotFound(_)) {
                            watch_status.set_connected(false);
                        }
                        reports.fails(&problem);
                        machine.list_failed(&problem, &mut rand::rng())
                    }
                }
            }
            Step::Watch(version, pause) => {
                sleep(pause).await;
                let mut open = Open { watch_status, machine: &mut machine, reports: &mut reports };
                let watched = open.watch(cluster, collection, &version, to, &message).await;
                watch_status.set_connected(false);
                match watched {
                    Ok(true) => machine.watch_ended(None, &mut rand::rng()),
                    Ok(false) => return Ended::Unheard,
                    Err(problem) => {
                        reports.fails(&problem);
                        machine.watch_ended(Some(&problem), &mut rand::rng())
                    }
                }
            }
        };
    }
}

/// Interval at which it is asked whether a kind of objects is defined by now that was not.
pub const UNDEFINED: Duration = Duration::from_secs(3);

/// Meaning of a kind that the server doesn't know.
#[derive(Clone, Copy)]
pub enum Missing<'a> {
    /// The cluster doesn't define it, so there are no objects. Said once, in this way.
    IsEmpty(&'a (dyn Fn() + Sync)),
    /// Every server has it: what is known stays.
    IsTrouble,
}

/// Follows a collection as [`follow`] does, and asks again where the server doesn't know its kind (yet). Ends
/// when nobody listens.
pub async fn follow_once_defined<T: Watched, M: Send>(
    cluster: &Cluster,
    collection: &Collection,
    watch_status: &WatchStatus,
    to: &Sender<M>,
    message: impl Fn(Change<T>) -> M + Send + Sync,
    missing: Missing<'_>,
) {
    let mut said = false;
    while follow(cluster, collection, watch_status, to, &message).await == Ended::NotFound {
        if let Missing::IsEmpty(say) = missing {
            watch_status.undefined();
            if !std::mem::replace(&mut said, true) {
                say();
            }
            if to.send(message(Change::All(Vec::new()))).await.is_err() {
                return;
            }
        }
        about(UNDEFINED).await;
    }
}

/// Waits about that long, so that replicas don't ask all at once.
pub async fn about(pause: Duration) {
    let factor = rand::rng().random_range(0.8..1.2);
    sleep(pause.mul_f64(factor)).await;
}

/// A watch, and who hears of how it goes.
struct Open<'a, 'r> {
    watch_status: &'a WatchStatus,
    machine: &'a mut WatchMachine,
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
        self.watch_status.heard();
        self.watch_status.set_connected(true);
        self.reports.works();
        let asked = Duration::from_secs(seconds);
        let (started, limit) = (Instant::now(), asked + GRACE);
        loop {
            let next = timeout_at(started + limit, events.next()).await;
            let Some(event) = next.map_err(|_| Problem::TimedOut(limit))? else {
                // It lasted as long as it was asked for: the server is well, though it
                // had nothing to say.
                if started.elapsed() + Duration::from_secs(1) >= asked {
                    self.watch_status.heard();
                    self.machine.received("");
                }
                return Ok(true);
            };
            let change = match event? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => Change::Put(object),
                WatchEvent::Deleted(object) => Change::Gone(object),
                WatchEvent::Bookmark(bookmark) => {
                    self.watch_status.heard();
                    self.machine.received(&bookmark.metadata.resource_version);
                    continue;
                }
                WatchEvent::Error(status) => return Err(Problem::from(&*status)),
            };
            self.watch_status.heard();
            if let Change::Put(object) | Change::Gone(object) = &change {
                self.machine.received(object.version());
            }
            if to.send(message(change)).await.is_err() {
                return Ok(false);
            }
        }
    }
}

/// Logs a problem once, not at every attempt.
struct Reports<'a> {
    path: &'a str,
    last: Option<Problem>,
}

impl Reports<'_> {
    fn fails(&mut self, problem: &Problem) {
        // Part of how watches live, and a kind that is missing is for the caller to log.
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
            _ => {
                tracing::warn!(path, %problem, "cannot follow Kubernetes objects; keeping the last known ones and trying again")
            }
        }
        self.last = Some(problem.clone());
    }

    fn works(&mut self) {
        if self.last.take().is_some() {
            tracing::info!(path = self.path, "following Kubernetes objects again");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};

    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::{BodyExt, Full};
    use kube::client::{Body, ClientBuilder, DynBody};
    use serde::Deserialize;
    use tower::service_fn;
    use tower::util::AndThenLayer;

    use super::*;
    use crate::cluster::problem::keep_retry_after;
    use crate::endpoints::Clock;

    #[derive(Clone, Deserialize)]
    struct Thing {}

    impl Watched for Thing {
        fn version(&self) -> &str {
            ""
        }
    }

    /// Status, `Retry-After` and body.
    type CannedResponse = (u16, Option<&'static str>, &'static str);

    /// Follows a collection at a server that gives these responses, and returns what it was asked
    /// for, and when.
    async fn asked(responses: &[CannedResponse]) -> Vec<(Duration, String)> {
        let (asked, began) = (Arc::new(Mutex::new(Vec::new())), Instant::now());
        let (responses, seen) =
            (Arc::new(Mutex::new(VecDeque::from(responses.to_vec()))), Arc::clone(&asked));
        let (over, mut is_over) = tokio::sync::mpsc::channel::<()>(1);
        let service = service_fn(move |request: Request<Body>| {
            let version = request.uri().query().unwrap_or_default().split('&');
            let version = version.filter_map(|part| part.strip_prefix("resourceVersion=")).next();
            let what = version.map_or("list".to_owned(), |version| format!("watch {version}"));
            let (response, over) = (responses.lock().unwrap().pop_front(), over.clone());
            seen.lock().unwrap().push((began.elapsed(), what));
            async move {
                let Some((status, after, text)) = response else {
                    over.send(()).await.unwrap();
                    return std::future::pending().await;
                };
                let body: Box<DynBody> = Box::new(Full::new(Bytes::from(text)).map_err(Into::into));
                let response = Response::builder().status(status);
                let response =
                    after.into_iter().fold(response, |all, after| all.header("retry-after", after));
                Ok::<_, tower::BoxError>(response.body(body).unwrap())
            }
        });
        let layer = AndThenLayer::new(keep_retry_after);
        let cluster = Cluster::from(ClientBuilder::new(service, "ns").with_layer(&layer).build());
        let (collection, watch_status) =
            (Collection::new("", "v1", "ns", "things"), WatchStatus::new(Clock::stopped()));
        let (to, _open) = tokio::sync::mpsc::channel(9);
        tokio::select! {
            _ = follow(&cluster, &collection, &watch_status, &to, |_: Change<Thing>| ()) => panic!("it ended"),
            Some(()) = is_over.recv() => {}
        }
        let asked = asked.lock().unwrap();
        asked.clone()
    }

    #[tokio::test(start_paused = true)]
    async fn overloaded_server_is_not_listed_again() {
        let empty = r#"{"metadata":{"resourceVersion":"5"},"items":[]}"#;
        let expired =
            "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":410,\"message\":\"too old\"}}\n";
        let asked = asked(&[
            (429, Some("3"), "Too many requests, please try again later.\n"),
            (200, None, empty),
            (429, Some("7"), "Too many requests, please try again later.\n"),
            (503, None, "<html>"),
            (500, None, r#"{"kind":"Status","code":500,"message":"etcdserver: leader changed"}"#),
            (200, None, expired),
            (200, None, r#"{"metadata":{"resourceVersion":"9"},"items":[]}"#),
        ])
        .await;
        let (times, whats): (Vec<Duration>, Vec<&str>) =
            asked.iter().map(|(at, what)| (*at, what.as_str())).unzip();
        assert_eq!(whats, ["list", "list", "watch 5", "watch 5", "watch 5", "watch 5", "list", "watch 9"]);
        let pause = |place: usize| times[place + 1] - times[place];
        for (place, seconds) in [(0, 3), (2, 7)] {
            let after = Duration::from_secs(seconds);
            assert!(
                pause(place) >= after && pause(place) <= after * 5 / 4 + after / 100,
                "{:?}",
                pause(place)
            );
        }
        assert!(pause(3) > Duration::ZERO && pause(4) > Duration::ZERO);
    }
}
