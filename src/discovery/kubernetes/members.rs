//! From pods to endpoints: each port of the pool on each pod that is ready is one.

use crate::endpoints::{EndpointSpec, StartingPod};

use super::types::Pod;

/// The endpoints of a pod in a pool with these ports. The number of an endpoint is the place of its port in the pool, so it
/// stays when other ports come or go.
pub(super) fn endpoints_of(pod: &Pod, ports: &[u16]) -> Vec<EndpointSpec> {
    let Some(ip) = pod.ip.filter(|_| pod.ready) else { return Vec::new() };
    let active = pod.active_ports.as_deref().map(|written| active_ports(written).0);
    let serves = |port: &u16| active.as_ref().is_none_or(|active| active.contains(port));
    let ranked = ports.iter().zip(0u32..).filter(|(port, _)| serves(port));
    let endpoint = |(port, rank): (&u16, u32)| EndpointSpec {
        namespace: pod.namespace.clone(),
        name: format!("{}-rank-{rank}", pod.name),
        pod: pod.name.clone(),
        address: (ip, *port).into(),
        labels: pod.labels.clone(),
        rank,
        node: pod.node,
        uid: Some(pod.uid.clone()).filter(|uid| !uid.is_empty()),
    };
    ranked.map(endpoint).collect()
}

/// A pod that has no endpoint in a pool with these ports, and isn't on its way out.
pub(super) fn starting(pod: &Pod, ports: &[u16]) -> Option<StartingPod> {
    let active = pod.active_ports.as_deref().map(|written| active_ports(written).0);
    let serves = |port: &u16| active.as_ref().is_none_or(|active| active.contains(port));
    let has_endpoint = pod.ready && pod.ip.is_some() && ports.iter().any(serves);
    (!pod.leaves && !has_endpoint).then(|| StartingPod {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        labels: pod.labels.clone(),
    })
}

/// The ports that an annotation names, and the parts of it that are no port.
pub(super) fn active_ports(written: &str) -> (Vec<u16>, Vec<&str>) {
    let (mut ports, mut wrong) = (Vec::new(), Vec::new());
    for part in written.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        match part.parse() {
            Ok(port) => ports.push(port),
            Err(_) => wrong.push(part),
        }
    }
    (ports, wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> Pod {
        Pod {
            name: "a".to_owned(),
            namespace: "ns".to_owned(),
            ip: "10.0.0.1".parse().ok(),
            node: "10.9.0.1".parse().ok(),
            ready: true,
            labels: [("k".to_owned(), "v".to_owned())].into(),
            ..Pod::default()
        }
    }

    fn written(endpoints: &[EndpointSpec]) -> String {
        endpoints.iter().map(|e| format!("{}@{}#{} ", e.id(), e.address, e.rank)).collect()
    }

    #[test]
    fn every_port_is_an_endpoint_and_its_place_is_its_rank() {
        let endpoints = endpoints_of(&pod(), &[8001, 8000]);
        assert_eq!(written(&endpoints), "ns/a-rank-0@10.0.0.1:8001#0 ns/a-rank-1@10.0.0.1:8000#1 ");
        assert_eq!((endpoints[1].pod.as_str(), endpoints[1].labels["k"].as_str()), ("a", "v"));
        assert_eq!(endpoints[1].node, "10.9.0.1".parse().ok());
    }

    #[test]
    fn pod_needs_readiness_and_an_address() {
        assert!(endpoints_of(&Pod { ready: false, ..pod() }, &[8000]).is_empty());
        assert!(endpoints_of(&Pod { ip: None, ..pod() }, &[8000]).is_empty());
    }

    #[test]
    fn living_pod_without_endpoints_is_starting() {
        let idle = |ports: &str| Pod { active_ports: Some(ports.to_owned()), ..pod() };
        let table = [
            (pod(), false),
            (Pod { ready: false, ..pod() }, true),
            (Pod { ip: None, ..pod() }, true),
            (idle("8000"), false),
            (idle("9"), true),
            (Pod { ready: false, leaves: true, ..pod() }, false),
        ];
        for (pod, expected) in table {
            let starts = starting(&pod, &[8000, 8002]);
            assert_eq!(starts.is_some(), expected, "{pod:?}");
            assert!(!expected || endpoints_of(&pod, &[8000, 8002]).is_empty(), "{pod:?}");
            if let Some(starts) = starts {
                assert_eq!((starts.namespace.as_str(), starts.name.as_str()), ("ns", "a"));
                assert_eq!(starts.labels["k"], "v");
            }
        }
    }

    #[test]
    fn annotation_lists_the_serving_ports() {
        // annotation, endpoints
        let table = [
            (None, "ns/a-rank-0@10.0.0.1:8000#0 ns/a-rank-1@10.0.0.1:8002#1 "),
            (Some("8002"), "ns/a-rank-1@10.0.0.1:8002#1 "),
            (Some(" 8002 , 8000,"), "ns/a-rank-0@10.0.0.1:8000#0 ns/a-rank-1@10.0.0.1:8002#1 "),
            (Some("9000,8000"), "ns/a-rank-0@10.0.0.1:8000#0 "),
            (Some("8000x,8002"), "ns/a-rank-1@10.0.0.1:8002#1 "),
            (Some("99999"), ""),
            (Some(""), ""),
        ];
        for (active, expected) in table {
            let pod = Pod { active_ports: active.map(str::to_owned), ..pod() };
            assert_eq!(written(&endpoints_of(&pod, &[8000, 8002])), expected, "{active:?}");
        }
        assert_eq!(active_ports("8000x, -1,8002"), (vec![8002], vec!["8000x", "-1"]));
    }
}
