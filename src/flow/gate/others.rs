//! Queues of other replicas.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::Gate;
use crate::flow::queue::{Nanos, nanos};
use crate::replicas::{FlowService, QueueState, SharedQueue};

impl SharedQueue for Gate {
    fn state(&self) -> QueueState {
        if !self.somebody_waits.load(Relaxed) {
            return QueueState::default();
        }
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.queue.state()
    }

    fn report_others(&self, others: &[(u128, QueueState)]) {
        let counts =
            others.iter().flat_map(|(_, queue)| &queue.waiting).map(|(_, requests)| u64::from(*requests));
        let waiting = counts.fold(0, u64::saturating_add);
        if self.waiting_elsewhere.swap(waiting, Relaxed) == 0 && waiting > 0 {
            self.demanded.send_replace(());
        }
        self.during(|inner, now, wakeups| {
            inner.queue.report_others(now, others);
            self.run(inner, now, None, wakeups);
        });
    }

    fn charged(&self) -> u64 {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).queue.charged()
    }

    fn service(&self) -> Vec<FlowService> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).queue.service(self.now())
    }

    fn report_service(&self, others: &[(Duration, Vec<FlowService>)]) {
        let others: Vec<(Nanos, &[FlowService])> =
            others.iter().map(|(age, flows)| (nanos(*age), flows.as_slice())).collect();
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).queue.report_service(self.now(), &others);
    }
}
