//! Effects of a decision: headers, and followers of the response.

use std::any::TypeId;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use smallvec::SmallVec;
use usher_core::endpoints::Endpoint;
use usher_core::metrics::Timing;
use usher_core::request::usage::Usage;
pub use usher_core::request::{Attribute, Header, Served};

/// Beginning of a response.
#[derive(Clone, Copy, Debug)]
pub struct ResponseHead<'a> {
    /// Endpoint that served, as the gateway says.
    pub served: &'a Served,
    /// The endpoint that served: the one that the gateway named, if the pool knows it,
    /// or else the first choice.
    pub endpoint: &'a Arc<Endpoint>,
    /// The response is a stream of events or of gRPC messages, and so no error, and its bytes
    /// are seen as they come.
    pub is_stream: bool,
}

/// Goes with one request until its stream ends, however that happens: dropping it
/// gives back what it holds.
pub trait Follower: Send {
    /// The gateway was served by another endpoint than the first choice.
    fn moved(&mut self, _to: &Arc<Endpoint>) {}

    /// The response begins. Headers in `out` are set on it.
    fn begins(&mut self, _head: &ResponseHead<'_>, _out: &mut Vec<Header>) {}

    /// The first generated token has passed: text, reasoning or part of a tool call. Where the
    /// response is no stream, or its content isn't recognised (see
    /// [`FirstTokenReader`](usher_core::request::first_token::FirstTokenReader)), the first bytes of
    /// its body have. Called at most once, and not where the response ends before.
    fn first_token(&mut self) {}

    /// The response is complete. What is in `out` goes to the gateway.
    fn ends(&mut self, _usage: &Usage, _out: &mut Vec<Attribute>) {}
}

/// Effects that plugins ask for.
#[derive(Default)]
pub struct Effects {
    headers: SmallVec<[Header; 1]>,
    port: Option<u16>,
    followers: Followers,
    /// Types of followers of which there is one only.
    once: SmallVec<[TypeId; 1]>,
}

impl Effects {
    /// Sets a header of the request, in place of an earlier one of that name.
    pub fn set_header(&mut self, name: &Arc<str>, value: impl Into<Bytes>) {
        self.headers.retain(|header| header.name != *name);
        self.headers.push(Header { name: Arc::clone(name), value: value.into() });
    }

    /// Sends the request to this port of the chosen pods instead of their own. The
    /// gateway gets no scores then, as they would name the pods' own ports.
    pub fn set_port(&mut self, port: u16) {
        self.port = Some(port);
    }

    /// Adds an observer of the response.
    pub fn follow(&mut self, follower: impl Follower + 'static) {
        self.followers.list.push(Following { follower: Box::new(follower), durations: None });
    }

    /// Adds an observer of the response, unless one of this type does so already: several
    /// plugins may need what it does, and once is enough.
    pub fn follow_once<F: Follower + 'static>(&mut self, follower: impl FnOnce() -> F) {
        let id = TypeId::of::<F>();
        if !self.once.contains(&id) {
            self.once.push(id);
            self.follow(follower());
        }
    }

    /// Returns `true` if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.headers.is_empty() && self.port.is_none() && self.followers.is_empty()
    }

    /// Headers to set on the request.
    pub fn headers(&self) -> &[Header] {
        &self.headers
    }

    /// The port to use instead of the endpoints' own.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// Takes who follows the response.
    pub fn take_followers(&mut self) -> Followers {
        std::mem::take(&mut self.followers)
    }

    /// Runs a plugin that may add observers of the response. The time of those that it adds is
    /// counted in `received` for headers, and in `streaming` for the body.
    pub fn timed(&mut self, received: &Timing, streaming: &Timing, run: impl FnOnce(&mut Self)) {
        let before = self.followers.list.len();
        run(self);
        for following in self.followers.list.iter_mut().skip(before) {
            following.durations = Some((received.clone(), streaming.clone()));
        }
    }
}

/// Followers of one response, in the order of the configuration.
#[derive(Default)]
pub struct Followers {
    list: SmallVec<[Following; 1]>,
}

struct Following {
    follower: Box<dyn Follower>,
    /// Timers of its calls: for headers, and for the body.
    durations: Option<(Timing, Timing)>,
}

impl Followers {
    /// Returns `true` without observers.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// See [`Follower::begins`].
    pub fn begins(&mut self, head: &ResponseHead<'_>, out: &mut Vec<Header>) {
        self.each(|durations| &durations.0, |follower| follower.begins(head, out));
    }

    /// The same for a response from another endpoint than the first choice. See also
    /// [`Follower::moved`]; both count as one call.
    pub fn begins_elsewhere(&mut self, head: &ResponseHead<'_>, out: &mut Vec<Header>) {
        let begins = |follower: &mut (dyn Follower + 'static)| {
            follower.moved(head.endpoint);
            follower.begins(head, out);
        };
        self.each(|durations| &durations.0, begins);
    }

    /// See [`Follower::first_token`].
    pub fn first_token(&mut self) {
        self.each(|durations| &durations.1, Follower::first_token);
    }

    /// See [`Follower::ends`].
    pub fn ends(&mut self, usage: &Usage, out: &mut Vec<Attribute>) {
        self.each(|durations| &durations.1, |follower| follower.ends(usage, out));
    }

    fn each(
        &mut self,
        point: impl Fn(&(Timing, Timing)) -> &Timing,
        mut call: impl FnMut(&mut (dyn Follower + 'static)),
    ) {
        for following in &mut self.list {
            let start = Instant::now();
            call(following.follower.as_mut());
            if let Some(durations) = &following.durations {
                point(durations).observe(start.elapsed());
            }
        }
    }
}

impl std::fmt::Debug for Effects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Effects")
            .field("headers", &self.headers)
            .field("port", &self.port)
            .field("followers", &self.followers)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Followers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Followers({})", self.list.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_core::endpoints::{EndpointSpec, Store};

    struct Calls(Arc<std::sync::Mutex<Vec<&'static str>>>);

    impl Follower for Calls {
        fn moved(&mut self, _to: &Arc<Endpoint>) {
            self.0.lock().unwrap().push("moved");
        }

        fn begins(&mut self, _head: &ResponseHead<'_>, _out: &mut Vec<Header>) {
            self.0.lock().unwrap().push("begins");
        }
    }

    #[test]
    fn shared_follower_is_created_once() {
        let (calls, mut effects) = (Arc::default(), Effects::default());
        effects.follow_once(|| Calls(Arc::clone(&calls)));
        effects.follow_once(|| -> Calls { unreachable!("there is one already") });
        effects.follow(Calls(calls));
        assert_eq!(effects.followers.list.len(), 2);
    }

    #[test]
    fn a_follower_moves_before_the_response_begins() {
        let store = Store::default();
        store.replace(vec![EndpointSpec::new("pod", ([10, 0, 0, 1], 80))]);
        let head = ResponseHead {
            served: &Served::Unknown,
            endpoint: &store.snapshot().endpoints()[0].clone(),
            is_stream: true,
        };
        let (calls, mut effects) = (Arc::default(), Effects::default());
        effects.follow(Calls(Arc::clone(&calls)));
        let mut followers = effects.take_followers();
        followers.begins_elsewhere(&head, &mut Vec::new());
        assert_eq!(*calls.lock().unwrap(), ["moved", "begins"]);
        followers.begins(&head, &mut Vec::new());
        assert_eq!(calls.lock().unwrap().len(), 3);
    }
}
