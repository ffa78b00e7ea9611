//! Requests that run at an endpoint.

use usher_core::endpoints::Load;
use usher_plugin::Context;

/// Requests that run at an endpoint, as it says. Where it says nothing, as Triton, those in
/// flight from here and from replicas that share theirs, less the `waiting` ones: right where nobody
/// else sends there, and too few elsewhere. Not negative.
pub(crate) fn running(cx: &Context<'_>, load: &Load, waiting: f64) -> f64 {
    let reported = load.running.fresh(cx.now_ms, cx.max_age).filter(|running| running.is_finite());
    reported.unwrap_or_else(|| (load.in_flight() + load.others()) as f64 - waiting).max(0.0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use usher_core::endpoints::{EndpointSpec, Store};
    use usher_core::request::Request;

    #[test]
    fn running_defaults_to_in_flight_minus_waiting() {
        let store = Store::default();
        store.replace(vec![EndpointSpec::new("pod", ([10, 0, 0, 1], 80))]);
        let load = Arc::clone(store.snapshot().endpoints()[0].load());
        let request = Request::default();
        let cx = Context::new(&request, 1000, Duration::from_secs(1));
        assert_eq!(running(&cx, &load, 0.0), 0.0);
        let _under_way: Vec<_> = (0..5).map(|_| load.book()).collect();
        assert_eq!([0.0, 2.0, 7.0].map(|waiting| running(&cx, &load, waiting)), [5.0, 3.0, 0.0]);
        load.report_others(4);
        assert_eq!(running(&cx, &load, 2.0), 7.0, "those of other replicas count, too");
        load.running.set(9.0, 1000);
        assert_eq!(running(&cx, &load, 2.0), 9.0);
        load.running.set(0.0, 1000);
        assert_eq!(running(&cx, &load, 2.0), 0.0, "a reported 0 counts");
    }
}
