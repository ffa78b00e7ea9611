//! Pages: their examples load or are those of the sources, and the metrics of flow control are all explained.

use std::time::Duration;

use prometheus::Registry;
use usher::endpoints::Clock;
use usher::flow::{Gate, GateCollector, GateMetrics};

use crate::config::build_with;

const FLOW_CONTROL: &str = "docs/guide/flow-control.md";

/// The blocks of a Markdown text that are marked as YAML, with the lines where they begin.
fn yaml_blocks(text: &str) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let mut inside = false;
    for (number, line) in (1..).zip(text.lines()) {
        match (inside, line) {
            (false, "```yaml") => {
                inside = true;
                blocks.push((number + 1, String::new()));
            }
            (true, "```") => inside = false,
            (true, line) => {
                let (_, block) = blocks.last_mut().unwrap();
                *block += line;
                block.push('\n');
            }
            (false, _) => {}
        }
    }
    blocks
}

#[test]
fn the_examples_load() {
    for (path, least) in [("docs/guide/configuration.md", 2), (FLOW_CONTROL, 1), ("docs/guide/slo.md", 1)] {
        let blocks = yaml_blocks(&std::fs::read_to_string(path).unwrap());
        assert!(blocks.len() >= least, "{path}: {}", blocks.len());
        for (line, block) in blocks {
            let built = build_with(&block, true);
            assert!(built.is_ok(), "{path}, the example at line {line}: {}", built.unwrap_err());
        }
    }
}

#[test]
fn every_flow_control_metric_is_documented() {
    let file = std::fs::read_to_string(FLOW_CONTROL).unwrap();
    let registry = Registry::new();
    let metrics = GateMetrics::register(&registry, "pool").unwrap();
    let config = "featureGates: [flowControl]\nflowControl: {maxRequests: 9, maxBytes: 9}\n";
    let pipeline = build_with(config, true).unwrap();
    let gate = Gate::new(&pipeline.flow_control.unwrap(), Clock::start(), Duration::ZERO, metrics);
    registry.register(Box::new(GateCollector::new(gate).unwrap())).unwrap();
    for family in registry.gather() {
        let name = family.name();
        let (short, is_older) = match name.strip_prefix("llm_d_epp_flow_control_") {
            Some(short) => (short, false),
            None => (name, name.starts_with("inference_extension_")),
        };
        // Pairs are said with the first name and the second one's end.
        let said = file.contains(&format!("`{short}`")) || short.ends_with("_bytes");
        assert!(is_older || said, "{name}");
    }
}

#[test]
fn the_page_of_plugins_shows_the_example() {
    let page = std::fs::read_to_string("docs/contributing/plugins.md").unwrap();
    let example = std::fs::read_to_string("examples/own-plugin/src/power.rs").unwrap();
    let blocks = page.split("```rust,ignore\n").skip(1).map(|rest| rest.split_once("```").unwrap().0);
    let blocks: Vec<&str> = blocks.collect();
    assert_eq!(blocks.len(), 2);
    for block in blocks {
        assert!(example.contains(block), "not in the example: {block}");
    }
}
