//! gRPC health: the state that probes and gateways see, and the service that answers them.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::stream::{BoxStream, unfold};
use futures_util::{Stream, StreamExt};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use proto::health_check_response::ServingStatus;
use proto::health_server::{Health, HealthServer};
use proto::{HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse};

#[allow(
    missing_docs,
    unreachable_pub,
    reason = "generated: documented in the .proto file, and as public as the generator likes"
)]
mod proto {
    tonic::include_proto!("grpc.health.v1");
}

/// The full name of the ext_proc service, which is also a name to ask the health of.
pub const EXTPROC_SERVICE: &str = "envoy.service.ext_proc.v3.ExternalProcessor";

/// Largest request, in bytes. There is only a name in it.
const MAX_REQUEST: usize = 4096;

/// Names that are distinguished when a leader is elected. Chart probes use them.
const LIVENESS: &str = "liveness";
const READINESS: &str = "readiness";

/// The health service, ready to serve. Also for the plain-text port.
pub type HealthService = HealthServer<HealthReporter>;

/// Conditions that health depends on. Written by whoever learns of one, read by every check.
///
/// Starts as not synced, plugins ready, protocols matching, warm, not draining, not leading, ready on the leader only.
#[derive(Debug)]
pub struct HealthState {
    view: watch::Sender<HealthView>,
}

/// [`HealthState`] at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthView {
    /// Endpoints have been loaded once.
    pub synced: bool,
    /// Every plugin that has to prepare itself has done so.
    pub plugins_ready: bool,
    /// The configured parsers understand the pool's protocol.
    pub protocols_match: bool,
    /// The start waits no longer for what other replicas know.
    pub warm: bool,
    /// The server stops, and clients should no longer choose it.
    pub draining: bool,
    /// `None` without leader election, else whether this process leads.
    pub leads: Option<bool>,
    /// Replicas that don't lead are ready, too: they share their load.
    pub standbys_serve: bool,
}

/// The response to a check. The names are those of grpc.health.v1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serving {
    /// Send traffic.
    Serving,
    /// Don't.
    NotServing,
    /// No such service.
    ServiceUnknown,
}

impl HealthState {
    /// A server that has just started.
    #[must_use]
    pub fn new(leader_election: bool) -> Self {
        let view = HealthView {
            synced: false,
            plugins_ready: true,
            protocols_match: true,
            warm: true,
            draining: false,
            leads: leader_election.then_some(false),
            standbys_serve: false,
        };
        Self { view: watch::Sender::new(view) }
    }

    /// Replicas that don't lead are ready, too, from now on.
    pub fn let_standbys_serve(&self) {
        self.set(|view| view.standbys_serve = true);
    }

    /// Endpoints have been loaded, or the pool is gone.
    pub fn set_synced(&self, synced: bool) {
        self.set(|view| view.synced = synced);
    }

    /// All plugins are prepared, or one is no longer.
    pub fn set_plugins_ready(&self, ready: bool) {
        self.set(|view| view.plugins_ready = ready);
    }

    /// The parsers understand the pool's protocol, or don't.
    pub fn set_protocols_match(&self, matching: bool) {
        self.set(|view| view.protocols_match = matching);
    }

    /// The start has read what other replicas know, or still waits for it.
    pub fn set_warm(&self, warm: bool) {
        self.set(|view| view.warm = warm);
    }

    /// The server stops; there is no way back.
    pub fn set_draining(&self) {
        self.set(|view| view.draining = true);
    }

    /// Sets whether this process holds the lease. Unused without leader election.
    pub fn set_leader(&self, leader: bool) {
        self.set(|view| view.leads = view.leads.map(|_| leader));
    }

    fn set(&self, change: impl FnOnce(&mut HealthView)) {
        self.view.send_if_modified(|view| {
            let before = *view;
            change(view);
            *view != before
        });
    }

    /// Waits until endpoints have been loaded.
    pub async fn synced(&self) {
        let mut views = self.view.subscribe();
        // The state isn't gone while it is borrowed.
        while !views.borrow_and_update().synced && views.changed().await.is_ok() {}
    }

    /// The current view.
    #[must_use]
    pub fn view(&self) -> HealthView {
        *self.view.borrow()
    }

    /// The health of a service name now and whenever it changes. Ends after the last change, which
    /// is that the server stops, so that no client waits for the stream.
    fn watch(&self, service: String) -> impl Stream<Item = Serving> + Send + use<> {
        unfold((self.view.subscribe(), None, service), |(mut views, sent, service)| async move {
            loop {
                let view = *views.borrow_and_update();
                let serving = view.of(&service);
                if sent != Some(serving) {
                    return Some((serving, (views, Some(serving), service)));
                }
                if view.draining {
                    return None;
                }
                views.changed().await.ok()?;
            }
        })
    }
}

impl HealthView {
    /// The health of one service name.
    ///
    /// Without leader election every name gets the same response: the charts' probes ask
    /// for names of their own. With it, `liveness` always serves, so that a replica that
    /// waits for its turn is not restarted; the others serve on the leader only, unless replicas share
    /// their load.
    #[must_use]
    pub fn of(&self, service: &str) -> Serving {
        let can_serve =
            self.synced && self.protocols_match && self.plugins_ready && self.warm && !self.draining;
        let serving = match (self.leads, service) {
            (None, _) => can_serve,
            (Some(_), LIVENESS) => true,
            (Some(leads), "" | READINESS | EXTPROC_SERVICE) => can_serve && (leads || self.standbys_serve),
            (Some(_), _) => return Serving::ServiceUnknown,
        };
        if serving { Serving::Serving } else { Serving::NotServing }
    }

    /// The names that `List` responds with.
    fn services(&self) -> &'static [&'static str] {
        if self.leads.is_some() { &[EXTPROC_SERVICE, LIVENESS, READINESS] } else { &[EXTPROC_SERVICE] }
    }
}

impl From<Serving> for HealthCheckResponse {
    fn from(serving: Serving) -> Self {
        let status = match serving {
            Serving::Serving => ServingStatus::Serving,
            Serving::NotServing => ServingStatus::NotServing,
            Serving::ServiceUnknown => ServingStatus::ServiceUnknown,
        };
        Self { status: status.into() }
    }
}

/// Answers health checks from a [`HealthState`].
#[derive(Debug)]
pub struct HealthReporter {
    state: Arc<HealthState>,
}

/// The health service over `state`.
#[must_use]
pub fn service(state: Arc<HealthState>) -> HealthService {
    HealthServer::new(HealthReporter { state }).max_decoding_message_size(MAX_REQUEST)
}

#[tonic::async_trait]
impl Health for HealthReporter {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        Ok(Response::new(self.state.view().of(&request.get_ref().service).into()))
    }

    async fn list(
        &self,
        _request: Request<HealthListRequest>,
    ) -> Result<Response<HealthListResponse>, Status> {
        let view = self.state.view();
        let statuses: HashMap<_, _> =
            view.services().iter().map(|name| ((*name).to_owned(), view.of(name).into())).collect();
        Ok(Response::new(HealthListResponse { statuses }))
    }

    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let states = self.state.watch(request.into_inner().service);
        Ok(Response::new(states.map(|serving| Ok(serving.into())).boxed()))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::Serving::{NotServing, ServiceUnknown, Serving};
    use super::*;

    const READY: HealthView = HealthView {
        synced: true,
        plugins_ready: true,
        protocols_match: true,
        warm: true,
        draining: false,
        leads: None,
        standbys_serve: false,
    };

    #[test]
    fn without_leader_election_every_name_gets_the_same_response() {
        let table = [
            (READY, Serving),
            (HealthView { synced: false, ..READY }, NotServing),
            (HealthView { plugins_ready: false, ..READY }, NotServing),
            (HealthView { protocols_match: false, ..READY }, NotServing),
            (HealthView { warm: false, ..READY }, NotServing),
            (HealthView { draining: true, ..READY }, NotServing),
        ];
        for (view, expected) in table {
            for name in ["", LIVENESS, READINESS, EXTPROC_SERVICE, "inference-extension", "anything"] {
                assert_eq!(view.of(name), expected, "{view:?} {name:?}");
            }
        }
        assert_eq!(READY.services(), [EXTPROC_SERVICE]);
    }

    #[test]
    fn only_the_leader_is_ready_and_all_replicas_are_live() {
        let leader = HealthView { leads: Some(true), ..READY };
        // View, then the response for readiness, "" and the ext_proc service.
        let table = [
            (leader, Serving),
            (HealthView { leads: Some(false), ..leader }, NotServing),
            (HealthView { synced: false, ..leader }, NotServing),
            (HealthView { plugins_ready: false, ..leader }, NotServing),
            (HealthView { protocols_match: false, ..leader }, NotServing),
            (HealthView { draining: true, ..leader }, NotServing),
        ];
        for (view, expected) in table {
            for name in ["", READINESS, EXTPROC_SERVICE] {
                assert_eq!(view.of(name), expected, "{view:?} {name:?}");
            }
            assert_eq!(view.of(LIVENESS), Serving, "{view:?}");
            assert_eq!(view.of("inference-extension"), ServiceUnknown, "{view:?}");
        }
        assert_eq!(leader.services(), [EXTPROC_SERVICE, LIVENESS, READINESS]);
    }

    #[test]
    fn replicas_that_share_their_load_are_ready_whoever_leads() {
        let standby = HealthView { leads: Some(false), standbys_serve: true, ..READY };
        for (view, expected) in [
            (standby, Serving),
            (HealthView { leads: Some(true), ..standby }, Serving),
            (HealthView { synced: false, ..standby }, NotServing),
            (HealthView { plugins_ready: false, ..standby }, NotServing),
            (HealthView { protocols_match: false, ..standby }, NotServing),
            (HealthView { draining: true, ..standby }, NotServing),
        ] {
            for name in ["", READINESS, EXTPROC_SERVICE] {
                assert_eq!(view.of(name), expected, "{view:?} {name:?}");
            }
            assert_eq!(view.of(LIVENESS), Serving, "{view:?}");
        }
        let state = HealthState::new(true);
        state.set_synced(true);
        assert_eq!(state.view().of(READINESS), NotServing);
        state.let_standbys_serve();
        assert_eq!((state.view().of(READINESS), state.view().leads), (Serving, Some(false)));
    }

    #[test]
    fn a_new_server_waits_for_its_endpoints() {
        let state = HealthState::new(false);
        assert_eq!(state.view().of(""), NotServing);
        state.set_synced(true);
        assert_eq!(state.view().of(""), Serving);
        state.set_draining();
        assert_eq!(state.view().of(""), NotServing);
        let elected = HealthState::new(true);
        elected.set_synced(true);
        assert_eq!(elected.view().of(READINESS), NotServing);
        elected.set_leader(true);
        assert_eq!(elected.view().of(READINESS), Serving);
    }

    #[tokio::test]
    async fn watchers_get_changes_until_the_server_stops() {
        let state = HealthState::new(true);
        let mut names = ["", LIVENESS, "elsewhere"]
            .map(|name| Box::pin(state.watch(name.to_owned())) as BoxStream<'static, super::Serving>);
        let mut next = |at: usize| names[at].next().now_or_never();
        assert_eq!([next(0), next(1), next(2)], [NotServing, Serving, ServiceUnknown].map(|s| Some(Some(s))));
        assert_eq!(next(0), None, "nothing has changed");
        state.set_synced(true);
        assert_eq!(next(0), None, "another leads");
        state.set_leader(true);
        assert_eq!([next(0), next(0), next(1), next(2)], [Some(Some(Serving)), None, None, None]);
        state.set_draining();
        assert_eq!([next(0), next(0), next(1)], [Some(Some(NotServing)), Some(None), Some(None)]);
    }
}
