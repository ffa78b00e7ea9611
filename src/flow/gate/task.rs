//! Background tasks of the gate, for changes that no request brings: endpoints come and go, readings
//! change, waits end, objectives get other priorities.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::endpoints::Store;
use crate::flow::{Dispatcher, Gate};
use crate::request::RuleBook;

/// Readings of a large pool change all the time. They are looked at so often at most: a
/// tenth of the shortest interval at which an endpoint is read.
const THROTTLE: Duration = Duration::from_millis(5);

/// While requests wait, the pool is checked so often at least: for what other replicas
/// report, for readings that grow old, and for locators without change notifications.
const LONGEST: Duration = Duration::from_millis(50);

/// Keeps the gate of a dispatcher moving. Returns at once where there is none.
pub async fn run_gate(dispatcher: Arc<Dispatcher>, store: Arc<Store>) {
    let Some(gate) = dispatcher.gate() else { return };
    let mut membership = store.subscribe();
    loop {
        membership.mark_unchanged();
        let mut next = gate.tick(None);
        let mut looking = pin!(dispatcher.room());
        let pool = loop {
            // A locator that takes its time holds up nobody's end.
            tokio::select! {
                biased;
                pool = &mut looking => break pool,
                () = sleep_until(next.wake.unwrap_or_else(Instant::now)), if next.wake.is_some() => {}
                () = gate.alarm.notified() => {}
            }
            next = gate.tick(None);
        };
        let now = Instant::now();
        let next = gate.tick(Some(&pool));
        let longest = next.somebody_waits.then(|| now + LONGEST);
        let wake = [next.wake, longest].into_iter().flatten().min();
        let readings = async {
            sleep_until(now + THROTTLE).await;
            store.loads_change().await;
        };
        tokio::select! {
            () = gate.alarm.notified() => {}
            // The store is gone with whoever holds it, and we hold it.
            _ = membership.changed() => {}
            () = sleep_until(wake.unwrap_or(now)), if wake.is_some() => {}
            () = readings, if next.somebody_waits => {}
        }
    }
}

/// Keeps the bands of a gate those of the priorities that objectives give, so that each is
/// there before its first request: to be seen, and for ceilings that depend on it.
pub async fn keep_bands(gate: Arc<Gate>, rules: Arc<RuleBook>) {
    let mut replaced = rules.subscribe();
    loop {
        replaced.mark_unchanged();
        let priorities = rules.current().objectives.values().copied().collect();
        gate.during(|inner, now, wakeups| {
            inner.queue.know(now, &priorities);
            gate.run(inner, now, None, wakeups);
        });
        // The book is gone with whoever holds it, and we hold it.
        let _ = replaced.changed().await;
    }
}
