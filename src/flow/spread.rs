//! Equal shares for endpoints that come up before a crowd.

use std::collections::HashMap;

use crate::endpoints::Candidates;

/// The candidates that have no more under way than those of their role have on average:
/// never none of a role. What a crowd finds are endpoints that nobody has measured yet, all
/// equal, or one that was measured first; without this the chance, or that one, would
/// decide how many each gets.
pub(super) fn least_busy(candidates: &Candidates) -> Candidates {
    let key = |role: crate::endpoints::Role| (role.encode, role.prefill, role.decode);
    let mut of_role: HashMap<(bool, bool, bool), (i64, i64)> = HashMap::new();
    for endpoint in candidates.view().iter() {
        let (requests, endpoints) = of_role.entry(key(endpoint.role())).or_default();
        *requests += endpoint.load().in_flight();
        *endpoints += 1;
    }
    let view = candidates.view();
    let kept: Vec<u32> = view
        .indices()
        .iter()
        .zip(view.iter())
        .filter(|(_, endpoint)| {
            let (requests, endpoints) = of_role.get(&key(endpoint.role())).copied().unwrap_or_default();
            endpoint.load().in_flight() * endpoints <= requests
        })
        .map(|(index, _)| *index)
        .collect();
    // Other threads book meanwhile, and the numbers were read twice.
    if kept.is_empty() { candidates.clone() } else { candidates.narrowed(&kept) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoints::{EndpointSpec, ROLE_LABEL, Store};

    #[test]
    fn endpoints_above_the_average_of_their_role_are_left_out() {
        // Roles and what is under way, and who stays.
        let table: [(&[(&str, usize)], &[u32]); 6] = [
            (&[("decode", 0), ("decode", 0)], &[0, 1]),
            (&[("decode", 1), ("decode", 0)], &[1]),
            (&[("decode", 3), ("decode", 2), ("decode", 2), ("decode", 1)], &[1, 2, 3]),
            (&[("decode", 9), ("prefill", 0)], &[0, 1]),
            (&[("decode", 9), ("decode", 8), ("prefill", 0), ("prefill", 1)], &[1, 2]),
            (&[], &[]),
        ];
        for (endpoints, expected) in table {
            let store = Store::default();
            let spec = |(index, (role, _)): (usize, &(&str, usize))| EndpointSpec {
                labels: [(ROLE_LABEL.to_owned(), (*role).to_owned())].into(),
                ..EndpointSpec::new(format!("pod-{index}"), ([10, 0, 0, index as u8 + 1], 8000))
            };
            store.replace(endpoints.iter().enumerate().map(spec).collect());
            let candidates = store.snapshot().all();
            let bookings: Vec<_> = candidates
                .view()
                .iter()
                .zip(endpoints)
                .flat_map(|(endpoint, (_, count))| (0..*count).map(|_| endpoint.load().book()))
                .collect();
            assert_eq!(least_busy(&candidates).indices(), expected, "{endpoints:?}");
            drop(bookings);
        }
    }
}
