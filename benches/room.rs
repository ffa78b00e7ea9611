//! Cost of finding the room of 1,000 free nodes for the steps of a policy, by host, rack and zone.

#![allow(clippy::panic, reason = "a benchmark that cannot go on has nothing to measure")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use serde_json::json;
use usher::actuator::node::{Needs, NodeObject};
use usher::actuator::room::{Part, Room};

const NODES: usize = 1_000;

fn node(number: usize) -> NodeObject {
    let object = json!({
        "metadata": {"name": format!("n{number}"), "labels": {
            "host": format!("n{number}"), "rack": format!("r{}", number / 16), "zone": format!("z{}", number / 500),
        }},
        "status": {
            "allocatable": {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    serde_json::from_value(object).unwrap_or_else(|error| panic!("{error}"))
}

fn part(pods: u32, most: u32, gpus: u32) -> Part {
    let requests = json!({"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": gpus.to_string()});
    let needs: Result<Needs, _> =
        serde_json::from_value(json!({"containers": [{"resources": {"requests": requests}}]}));
    Part { pods, most, first: 0, needs: Some(needs.unwrap_or_else(|error| panic!("{error}"))) }
}

fn room(criterion: &mut Criterion) {
    let nodes: Vec<NodeObject> = (0..NODES).map(node).collect();
    let layers = ["host", "rack", "zone"].map(str::to_owned);
    for most in [16, 128, 4096] {
        let step = [part(4, most, 1), part(2, most / 2, 2)];
        criterion.bench_function(&format!("capacity/room of {NODES} nodes for {most} pods"), |bencher| {
            bencher.iter(|| {
                let room = Room::of(black_box(&nodes), []);
                black_box(room.layers(&layers, &step))
            });
        });
    }
}

criterion_group!(benches, room);
criterion_main!(benches);
