//! State of a world, and its events that are due.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::chain::Chain;
use super::outcome::{Events, RequestOutcome};
use super::scaling::Scaling;
use crate::replay::configured::ResponseObserver;
use crate::replay::policy::Picker;
use crate::replay::requests::Requests;
use crate::replay::servers::Server;
use crate::sim::{ConfigError, Engine, Links, Output, Place, SimRequest};

/// Interval at which unused state is dropped, as in the server.
pub(super) const SWEEP: Duration = Duration::from_secs(30);

/// Next event. The order of the variants is that of one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// Drop what is of no more use.
    Sweep,
    /// Read what the server with this number says.
    Scrape(usize),
    /// End of this pod's start.
    Ready(u64),
    /// The server with this number joins the pool.
    Join(usize),
    /// The server with this number leaves the pool.
    Leave(usize),
    /// Look how many pods there should be.
    Size,
    /// The request at this position comes.
    Arrive(usize),
    /// Next step of this server's engine.
    Engine(usize),
}

/// A request that a server has.
pub(super) struct UnderWay {
    pub(super) arrived: Duration,
    /// Number of the server that responds.
    pub(super) server: usize,
    /// Request for that server once another one has computed the prompt; `None`: nothing is awaited.
    pub(super) awaits_prompt: Option<Box<SimRequest>>,
    pub(super) observer: Option<Box<dyn ResponseObserver>>,
}

/// Links that prompts move over from server to server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interconnect {
    /// Speed of the links.
    pub links: Links,
    /// Bytes of keys and values per token of a prompt.
    pub kv_bytes_per_token: u64,
}

/// A policy, its servers, and what became of the requests so far.
pub struct World {
    pub(super) picker: Picker,
    pub(super) engines: Vec<Engine>,
    pub(super) places: Vec<Place>,
    pub(super) interconnect: Interconnect,
    /// Time that clients see on top of the servers', of every request.
    pub(super) gateway_delay: Duration,
    /// Time at which each engine is known to go on, so that it is due once.
    pub(super) armed: Vec<Option<Duration>>,
    pub(super) due: BinaryHeap<Reverse<(Duration, Due)>>,
    pub(super) under_way: HashMap<u64, UnderWay>,
    pub(super) outputs: Vec<Output>,
    pub(super) outcomes: Vec<RequestOutcome>,
    pub(super) refusals: BTreeMap<String, u64>,
    pub(super) events: Events,
    /// Decides how many servers there are; `None`: they stay.
    pub(super) scaling: Option<Box<Scaling>>,
    pub(super) requests: Arc<Requests>,
    pub(super) chain: Chain,
    /// Requests that have yet to come.
    pub(super) to_come: usize,
    /// Servers that joined, with their numbers.
    pub(super) pool: Vec<(usize, Server)>,
    /// Servers that have yet to join, by number.
    pub(super) joining: BTreeMap<usize, Server>,
}

impl World {
    /// A world of these servers in which nothing has happened. Those that join later are no
    /// candidates yet.
    pub fn new(
        mut picker: Picker,
        servers: &[Server],
        interconnect: Interconnect,
        requests: Arc<Requests>,
    ) -> Result<Self, ConfigError> {
        let engines: Vec<Engine> =
            servers.iter().map(|server| Engine::new(server.engine.clone())).collect::<Result<_, _>>()?;
        let mut due = BinaryHeap::new();
        let numbered = servers.iter().cloned().enumerate();
        let (pool, joining): (Vec<_>, Vec<_>) = numbered.partition(|(_, server)| server.joins.is_zero());
        if !joining.is_empty() {
            picker.set_servers(&pool);
            due.extend(joining.iter().map(|(number, server)| Reverse((server.joins, Due::Join(*number)))));
        }
        let leaving =
            servers.iter().enumerate().filter_map(|(number, server)| Some((server.leaves?, number)));
        due.extend(leaving.map(|(at, number)| Reverse((at, Due::Leave(number)))));
        if picker.scrape_interval().is_some() {
            for (position, engine) in engines.iter().enumerate() {
                // The pool was there before the first request.
                picker.scrape(position, engine);
                due.push(Reverse((picker.first_scrape(position), Due::Scrape(position))));
            }
        }
        due.push(Reverse((SWEEP, Due::Sweep)));
        let arrivals = requests.arrivals();
        let roots = arrivals.iter().enumerate().filter(|(_, arrival)| !arrival.follows());
        due.extend(roots.map(|(position, arrival)| Reverse((arrival.at, Due::Arrive(position)))));
        Ok(Self {
            picker,
            armed: vec![None; engines.len()],
            engines,
            places: servers.iter().map(Server::place).collect(),
            interconnect,
            gateway_delay: Duration::ZERO,
            due,
            under_way: HashMap::new(),
            outputs: Vec::new(),
            outcomes: vec![RequestOutcome::default(); arrivals.len()],
            refusals: BTreeMap::new(),
            events: Events::default(),
            scaling: None,
            chain: Chain::new(arrivals),
            to_come: arrivals.len(),
            requests,
            pool,
            joining: joining.into_iter().collect(),
        })
    }

    /// This world with a gateway that delays first and last tokens so much for clients.
    pub fn with_gateway_delay(self, gateway_delay: Duration) -> Self {
        Self { gateway_delay, ..self }
    }
}
