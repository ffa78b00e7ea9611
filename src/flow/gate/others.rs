//! Queues of other replicas.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::Gate;
use crate::flow::queue::{Nanos, ServedElsewhere, busiest, nanos};
use crate::replicas::{FlowService, QueueState, SharedQueue};

impl SharedQueue for Gate {
    fn state(&self) -> QueueState {
        if !self.somebody_waits.load(Relaxed) {
            return QueueState::default();
        }
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = inner.queue.bands().filter(|band| band.waiting.requests > 0);
        let count = |requests| u32::try_from(requests).unwrap_or(u32::MAX);
        QueueState { waiting: waits.map(|band| (band.priority, count(band.waiting.requests))).collect() }
    }

    fn report_others(&self, others: &[QueueState]) {
        let counts = others.iter().flat_map(|queue| &queue.waiting).map(|(_, requests)| u64::from(*requests));
        let waiting = counts.fold(0, u64::saturating_add);
        if self.waiting_elsewhere.swap(waiting, Relaxed) == 0 && waiting > 0 {
            self.demanded.send_replace(());
        }
    }

    fn charged(&self) -> u64 {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).queue.charged()
    }

    fn service(&self) -> Vec<FlowService> {
        let all = self.inner.lock().unwrap_or_else(PoisonError::into_inner).queue.service(self.now());
        // Without the lock, for which requests wait.
        busiest(all)
    }

    fn report_service(&self, others: &[(Duration, Vec<FlowService>)]) {
        let others: Vec<(Nanos, &[FlowService])> =
            others.iter().map(|(age, flows)| (nanos(*age), flows.as_slice())).collect();
        let served = ServedElsewhere::new(&others);
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).queue.report_service(self.now(), &served);
    }
}
