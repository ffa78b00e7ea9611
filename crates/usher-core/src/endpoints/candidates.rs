//! The published membership of the pool and views of it.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use super::{Endpoint, EndpointName, ROLE_LABEL, SubsetHint};

/// All endpoints of the pool at one moment. Replaced as a whole when membership
/// changes and shared by all readers; loads inside it are live.
#[derive(Debug)]
pub struct Snapshot {
    number: u64,
    generation: u64,
    endpoints: Box<[Arc<Endpoint>]>,
    slots: Box<[u32]>,
    all: Arc<[u32]>,
    /// Endpoints that are about to go, by position; empty: none is.
    drains: Box<[bool]>,
    by_ip: HashMap<IpAddr, Vec<u32>>,
    names: OnceLock<Arc<[EndpointName]>>,
    /// `true` if the endpoints listen on more than one port.
    several_ports: bool,
}

/// Stages of a request that some endpoints do.
#[derive(Debug, Default)]
struct Stages<'a> {
    encode: bool,
    prefill: bool,
    decode: bool,
    /// Labels of endpoints that do none of these.
    others: BTreeSet<Option<&'a str>>,
}

impl<'a> Stages<'a> {
    fn add(&mut self, endpoint: &'a Endpoint) {
        let role = endpoint.role();
        self.encode |= role.encode;
        self.prefill |= role.prefill;
        self.decode |= role.decode;
        if !(role.encode || role.prefill || role.decode) {
            self.others.insert(endpoint.label(ROLE_LABEL));
        }
    }

    /// Returns `true` if these endpoints do all that this one does.
    fn replace(&self, endpoint: &Endpoint) -> bool {
        let role = endpoint.role();
        if role.encode || role.prefill || role.decode {
            return role.encode <= self.encode && role.prefill <= self.prefill && role.decode <= self.decode;
        }
        self.others.contains(&endpoint.label(ROLE_LABEL))
    }
}

/// Drops the endpoints that are about to go, but for those whose role no other has: a request that needs it
/// would be refused.
fn keep_others(indices: &mut Vec<u32>, endpoints: &[Arc<Endpoint>], drains: &[bool]) {
    if drains.is_empty() {
        return;
    }
    let mut stays = Stages::default();
    let is_draining = |index: u32| drains.get(index as usize).is_some_and(|drains| *drains);
    for &index in indices.iter().filter(|index| !is_draining(**index)) {
        stays.add(&endpoints[index as usize]);
    }
    indices.retain(|&index| !is_draining(index) || !stays.replace(&endpoints[index as usize]));
}

/// The last number of a snapshot in this process.
static LAST: AtomicU64 = AtomicU64::new(0);

impl Snapshot {
    /// A snapshot of the given endpoints, in their order.
    pub fn new(generation: u64, endpoints: Vec<Arc<Endpoint>>) -> Self {
        Self::draining(generation, endpoints, &BTreeSet::new())
    }

    /// A snapshot of the given endpoints, in which pods with these uids get no new requests.
    pub(super) fn draining(
        generation: u64,
        endpoints: Vec<Arc<Endpoint>>,
        draining: &BTreeSet<String>,
    ) -> Self {
        let mut by_ip: HashMap<IpAddr, Vec<u32>> = HashMap::with_capacity(endpoints.len());
        for (index, endpoint) in (0u32..).zip(&endpoints) {
            by_ip.entry(endpoint.ip().to_canonical()).or_default().push(index);
        }
        let mut ports = endpoints.iter().map(|endpoint| endpoint.address().port());
        let several_ports = ports.next().is_some_and(|first| ports.any(|port| port != first));
        let drains =
            |endpoint: &Arc<Endpoint>| endpoint.spec().uid.as_ref().is_some_and(|uid| draining.contains(uid));
        let mut drains: Vec<bool> = endpoints.iter().map(drains).collect();
        if !drains.contains(&true) {
            drains.clear();
        }
        let mut all: Vec<u32> = (0u32..).take(endpoints.len()).collect();
        keep_others(&mut all, &endpoints, &drains);
        let (all, drains) = (all.into(), drains.into());
        let number = LAST.fetch_add(1, Relaxed) + 1;
        let slots = endpoints.iter().map(|endpoint| endpoint.slot().number()).collect();
        let endpoints = endpoints.into_boxed_slice();
        Self {
            number,
            generation,
            endpoints,
            slots,
            all,
            drains,
            by_ip,
            names: OnceLock::new(),
            several_ports,
        }
    }

    /// Number of the snapshot, which no other snapshot of this process has, of whatever store.
    /// Later ones have larger numbers.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Grows by one with every change of membership.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The endpoints, in the order of discovery.
    pub fn endpoints(&self) -> &[Arc<Endpoint>] {
        &self.endpoints
    }

    /// Names of the endpoints, in the same order: for who keeps some of them, at the cost of one reference.
    pub fn names(&self) -> &Arc<[EndpointName]> {
        self.names.get_or_init(|| self.endpoints.iter().map(|endpoint| endpoint.names()).collect())
    }

    /// The numbers of the endpoints' slots, in the same order: what an index is asked with,
    /// without a look at every endpoint.
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// Every endpoint as candidates, but for those that are about to go and whose role others have.
    pub fn all(self: &Arc<Self>) -> Candidates {
        Candidates::new(Arc::clone(self), Arc::clone(&self.all))
    }

    /// The endpoints that a subset hint allows.
    ///
    /// An address without a port allows every port there. A port counts when the pool
    /// has several ports. In a pool with one port only the address is compared, as
    /// gateways may name the port of a service, which the pods need not use.
    pub fn subset(self: &Arc<Self>, hint: &SubsetHint) -> Candidates {
        let Some(addresses) = hint.addresses() else { return self.all() };
        // A hint may name many times what there is.
        let mut indices: Vec<u32> = Vec::with_capacity(addresses.len().min(self.endpoints.len()));
        for &(ip, port) in addresses {
            let exact = port.filter(|_| self.several_ports);
            for &index in self.by_ip.get(&ip).map_or(&[][..], Vec::as_slice) {
                if exact.is_none_or(|p| self.endpoints[index as usize].address().port() == p) {
                    indices.push(index);
                }
            }
        }
        indices.sort_unstable();
        indices.dedup();
        keep_others(&mut indices, &self.endpoints, &self.drains);
        Candidates::new(Arc::clone(self), indices.into())
    }

    /// The endpoint with this address, if there is one.
    pub fn at(&self, ip: IpAddr, port: u16) -> Option<&Arc<Endpoint>> {
        let indices = self.by_ip.get(&ip.to_canonical())?;
        indices.iter().map(|&i| &self.endpoints[i as usize]).find(|e| e.address().port() == port)
    }
}

/// The endpoints that may serve a request: an index list into a snapshot. A clone costs
/// one reference count.
#[derive(Clone, Debug)]
pub struct Candidates(Arc<Selected>);

/// On cache lines of its own, two of them, as processors fetch them in pairs: threads
/// that have one each count references without a word to each other.
#[derive(Debug)]
#[repr(align(128))]
struct Selected {
    snapshot: Arc<Snapshot>,
    indices: Arc<[u32]>,
}

impl Candidates {
    fn new(snapshot: Arc<Snapshot>, indices: Arc<[u32]>) -> Self {
        Self(Arc::new(Selected { snapshot, indices }))
    }

    /// The snapshot that the candidates belong to.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.0.snapshot
    }

    /// Positions in the snapshot, ascending, each once.
    pub fn indices(&self) -> &[u32] {
        &self.0.indices
    }

    /// Returns `true` if these are a copy of the others, and not only equal.
    pub fn is_same(&self, other: &Self) -> bool {
        let (one, other) = (&*self.0, &*other.0);
        Arc::ptr_eq(&one.snapshot, &other.snapshot) && Arc::ptr_eq(&one.indices, &other.indices)
    }

    /// Equal candidates with a separate reference count, for a thread that clones them often while
    /// others do, too.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self::new(Arc::clone(&self.0.snapshot), Arc::clone(&self.0.indices))
    }

    /// Number of candidates.
    pub fn len(&self) -> usize {
        self.0.indices.len()
    }

    /// Returns `true` if nothing can be picked.
    pub fn is_empty(&self) -> bool {
        self.0.indices.is_empty()
    }

    /// Some of these candidates: positions in the snapshot, ascending, each once
    /// and below the number of endpoints.
    #[must_use]
    pub fn narrowed(&self, indices: &[u32]) -> Self {
        Self::new(Arc::clone(&self.0.snapshot), indices.into())
    }

    /// The candidates as filters and scorers see them.
    pub fn view(&self) -> View<'_> {
        View { snapshot: &self.0.snapshot, indices: &self.0.indices }
    }
}

/// Borrowed candidates: what is left of them at some stage of a profile.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    snapshot: &'a Snapshot,
    indices: &'a [u32],
}

impl<'a> View<'a> {
    /// A view of some endpoints of a snapshot. Every index must be below the
    /// number of endpoints.
    pub fn new(snapshot: &'a Snapshot, indices: &'a [u32]) -> Self {
        Self { snapshot, indices }
    }

    /// The snapshot that the candidates belong to.
    pub fn snapshot(&self) -> &'a Snapshot {
        self.snapshot
    }

    /// Number of candidates left.
    pub fn len(&self) -> usize {
        self.indices.len()
    }

    /// Returns `true` if none is left.
    pub fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }
    /// Positions in the snapshot.
    pub fn indices(&self) -> &'a [u32] {
        self.indices
    }

    /// The candidate at a position of this view.
    pub fn get(&self, position: usize) -> &'a Arc<Endpoint> {
        &self.snapshot.endpoints[self.indices[position] as usize]
    }

    /// The candidates, in the order of the view.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a Arc<Endpoint>> + use<'a> {
        let snapshot = self.snapshot;
        self.indices.iter().map(move |&i| &snapshot.endpoints[i as usize])
    }
}
