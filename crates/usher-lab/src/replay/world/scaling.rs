//! Servers that come and go, and who says how many there are.

use crate::replay::scale::{Fleet, Number, Sizer};
use crate::replay::servers::Server;
use crate::sim::EngineConfig;

/// Servers that come and go, and the sizer that decides how many there are.
pub(in crate::replay) struct Scaling {
    pub(super) fleet: Fleet,
    pub(super) sizer: Sizer,
    /// Numbers of each server that the sizer reads.
    pub(super) numbers: Vec<Number>,
    /// Engine configuration of the servers; the seed differs by pod.
    engine: EngineConfig,
}

impl Scaling {
    /// Scaling of the pods of a fleet.
    pub(in crate::replay) fn new(
        fleet: Fleet,
        sizer: Sizer,
        numbers: Vec<Number>,
        engine: EngineConfig,
    ) -> Self {
        Self { fleet, sizer, numbers, engine }
    }

    /// The pods that serve, each under the number of its server.
    pub(in crate::replay) fn servers(&self) -> Vec<(usize, Server)> {
        let server = |(pod, number)| (number, Server::new(format!("pod-{pod}"), self.engine_of(pod)));
        self.fleet.serving().map(server).collect()
    }

    /// Engine configuration of a pod's server.
    pub(super) fn engine_of(&self, pod: u64) -> EngineConfig {
        EngineConfig { seed: self.engine.seed.wrapping_add(pod), ..self.engine.clone() }
    }
}
