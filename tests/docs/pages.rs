//! Pages: their examples load or are those of the sources.

use crate::config::build_with;

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
    for (path, least) in
        [("docs/guide/configuration.md", 2), ("docs/guide/flow-control.md", 1), ("docs/guide/slo.md", 1)]
    {
        let blocks = yaml_blocks(&std::fs::read_to_string(path).unwrap());
        assert!(blocks.len() >= least, "{path}: {}", blocks.len());
        for (line, block) in blocks {
            let built = build_with(&block, true);
            assert!(built.is_ok(), "{path}, the example at line {line}: {}", built.unwrap_err());
        }
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
