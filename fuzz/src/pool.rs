//! Endpoints that exchanges run over, and the dispatcher that decides among them.

use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::FutureExt;
use prometheus::Registry;
use usher::endpoints::{Snapshot, SubsetHint};
use usher::extproc::exchange::Shared;
use usher::extproc::metrics::ExtProcMetrics;
use usher::extproc::parsing::Parsing;
use usher::flow::Dispatcher;
use usher::request::Parsers;
use usher::schedule::SchedulerMetrics;

#[allow(dead_code, reason = "the benchmarks use more of it")]
#[path = "../../benches/common/picker.rs"]
mod picker;

/// Largest body of a request in bytes; three large chunks are more.
pub const MAX_BODY: usize = 200_000;

thread_local! {
    static POOLS: [OnceCell<Rc<Pool>>; 4] = const { [const { OnceCell::new() }; 4] };
}

/// State shared by all exchanges over the same endpoints. It is made once, as that takes longer
/// than an exchange; none of it remembers one.
pub struct Pool {
    pub dispatcher: Arc<Dispatcher>,
    pub snapshot: Arc<Snapshot>,
    parsers: Parsers,
    scheduling: SchedulerMetrics,
}

impl Pool {
    /// The pool of 0 to 3 endpoints, the same for everybody on a thread.
    pub fn of(endpoints: u16) -> Rc<Self> {
        let new = || Rc::new(Self::new(endpoints));
        POOLS.with(|pools| Rc::clone(pools[usize::from(endpoints)].get_or_init(new)))
    }

    fn new(endpoints: u16) -> Self {
        let picker = picker::Picker::new(endpoints);
        let candidates = picker.dispatcher.locator().locate(&SubsetHint::Missing);
        let candidates = candidates.now_or_never().expect("nothing to wait for");
        let snapshot = Arc::clone(candidates.snapshot());
        let scheduling = SchedulerMetrics::register(&Registry::new()).expect("a new registry has room");
        let parsers = picker.shared.parsers.clone();
        Self { dispatcher: picker.dispatcher, snapshot, parsers, scheduling }
    }

    /// The shared state of exchanges, with ext_proc metrics of its own.
    pub fn shared(&self, registry: &Registry) -> Shared {
        Shared {
            parsers: self.parsers.clone(),
            max_request_body_bytes: MAX_BODY,
            budget: Arc::default(),
            policy: self.dispatcher.policy().clone(),
            rules: Arc::default(),
            metrics: ExtProcMetrics::register(registry, false).expect("a new registry has room"),
            parsing: Parsing::new(&self.scheduling),
            tracer: None,
            records: None,
        }
    }
}
