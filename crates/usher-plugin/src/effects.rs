//! Effects of a decision: headers, and observers of the response.

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

/// Observes the response to one request. Dropped when the request's stream ends, for whatever
/// reason, which releases what it holds.
pub trait ResponseObserver: Send {
    /// Another endpoint than the first choice serves the request.
    fn rerouted(&mut self, _to: &Arc<Endpoint>) {}

    /// The response's headers came. Those in `out` are set on it.
    fn response_headers(&mut self, _head: &ResponseHead<'_>, _out: &mut Vec<Header>) {}

    /// The first generated token has passed: text, reasoning or part of a tool call. Where the
    /// response is no stream, or its content isn't recognised (see
    /// [`FirstTokenReader`](usher_core::request::first_token::FirstTokenReader)), the first bytes of
    /// its body have. Called at most once, and not where the response ends before.
    fn first_token(&mut self) {}

    /// The response is complete. Attributes in `out` are sent to the gateway.
    fn response_complete(&mut self, _usage: &Usage, _out: &mut Vec<Attribute>) {}
}

/// Effects that plugins ask for.
#[derive(Default)]
pub struct Effects {
    headers: SmallVec<[Header; 1]>,
    port: Option<u16>,
    observers: ResponseObservers,
    /// Types of observers added with [`observe_once`](Self::observe_once).
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
    pub fn observe(&mut self, observer: impl ResponseObserver + 'static) {
        self.observers.list.push(TimedObserver { observer: Box::new(observer), durations: None });
    }

    /// Adds an observer of the response, unless one of this type is there: several plugins may
    /// need what it does.
    pub fn observe_once<F: ResponseObserver + 'static>(&mut self, observer: impl FnOnce() -> F) {
        let id = TypeId::of::<F>();
        if !self.once.contains(&id) {
            self.once.push(id);
            self.observe(observer());
        }
    }

    /// Returns `true` if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.headers.is_empty() && self.port.is_none() && self.observers.is_empty()
    }

    /// Headers to set on the request.
    pub fn headers(&self) -> &[Header] {
        &self.headers
    }

    /// The port to use instead of the endpoints' own.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// Takes the observers of the response.
    pub fn take_observers(&mut self) -> ResponseObservers {
        std::mem::take(&mut self.observers)
    }

    /// Runs a plugin that may add observers of the response. The time of those that it adds is
    /// counted in `received` for headers, and in `streaming` for the body.
    pub fn timed(&mut self, received: &Timing, streaming: &Timing, run: impl FnOnce(&mut Self)) {
        let before = self.observers.list.len();
        run(self);
        for timed in self.observers.list.iter_mut().skip(before) {
            timed.durations = Some((received.clone(), streaming.clone()));
        }
    }
}

/// Observers of one response, in the order of the configuration.
#[derive(Default)]
pub struct ResponseObservers {
    list: SmallVec<[TimedObserver; 1]>,
}

struct TimedObserver {
    observer: Box<dyn ResponseObserver>,
    /// Timers of its calls: for headers, and for the body.
    durations: Option<(Timing, Timing)>,
}

impl ResponseObservers {
    /// Returns `true` without observers.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// See [`ResponseObserver::response_headers`].
    pub fn response_headers(&mut self, head: &ResponseHead<'_>, out: &mut Vec<Header>) {
        self.each(|durations| &durations.0, |observer| observer.response_headers(head, out));
    }

    /// [`ResponseObserver::rerouted`] and [`ResponseObserver::response_headers`], timed as one call: for a
    /// response from another endpoint than the first choice.
    pub fn rerouted_response_headers(&mut self, head: &ResponseHead<'_>, out: &mut Vec<Header>) {
        let headers = |observer: &mut (dyn ResponseObserver + 'static)| {
            observer.rerouted(head.endpoint);
            observer.response_headers(head, out);
        };
        self.each(|durations| &durations.0, headers);
    }

    /// See [`ResponseObserver::first_token`].
    pub fn first_token(&mut self) {
        self.each(|durations| &durations.1, ResponseObserver::first_token);
    }

    /// See [`ResponseObserver::response_complete`].
    pub fn response_complete(&mut self, usage: &Usage, out: &mut Vec<Attribute>) {
        self.each(|durations| &durations.1, |observer| observer.response_complete(usage, out));
    }

    fn each(
        &mut self,
        point: impl Fn(&(Timing, Timing)) -> &Timing,
        mut call: impl FnMut(&mut (dyn ResponseObserver + 'static)),
    ) {
        for timed in &mut self.list {
            let start = Instant::now();
            call(timed.observer.as_mut());
            if let Some(durations) = &timed.durations {
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
            .field("observers", &self.observers)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ResponseObservers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ResponseObservers({})", self.list.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_core::endpoints::{EndpointSpec, Store};

    struct Calls(Arc<std::sync::Mutex<Vec<&'static str>>>);

    impl ResponseObserver for Calls {
        fn rerouted(&mut self, _to: &Arc<Endpoint>) {
            self.0.lock().unwrap().push("rerouted");
        }

        fn response_headers(&mut self, _head: &ResponseHead<'_>, _out: &mut Vec<Header>) {
            self.0.lock().unwrap().push("headers");
        }
    }

    #[test]
    fn shared_observer_is_created_once() {
        let (calls, mut effects) = (Arc::default(), Effects::default());
        effects.observe_once(|| Calls(Arc::clone(&calls)));
        effects.observe_once(|| -> Calls { unreachable!("there is one already") });
        effects.observe(Calls(calls));
        assert_eq!(effects.observers.list.len(), 2);
    }

    #[test]
    fn observer_is_rerouted_before_it_gets_headers() {
        let store = Store::default();
        store.replace(vec![EndpointSpec::new("pod", ([10, 0, 0, 1], 80))]);
        let head = ResponseHead {
            served: &Served::Unknown,
            endpoint: &store.snapshot().endpoints()[0].clone(),
            is_stream: true,
        };
        let (calls, mut effects) = (Arc::default(), Effects::default());
        effects.observe(Calls(Arc::clone(&calls)));
        let mut observers = effects.take_observers();
        observers.rerouted_response_headers(&head, &mut Vec::new());
        assert_eq!(*calls.lock().unwrap(), ["rerouted", "headers"]);
        observers.response_headers(&head, &mut Vec::new());
        assert_eq!(calls.lock().unwrap().len(), 3);
    }
}
