//! Numbers of replays that messages quote. Their table is in docs/guide/prefix-and-pairs.md.

/// Mean TTFT of requests that begin alike, at 2 % load on eight servers, under the built-in configuration.
pub const BUILT_IN_TTFT: &str = "5.143 s";

/// Mean TTFT of these requests under deploy/config/expected-latency.yaml.
pub const EXPECTED_LATENCY_TTFT: &str = "0.906 s";

/// Mean TTFT of these requests under deploy/config/sticky-until-saturated.yaml.
pub const STICKY_TTFT: &str = "0.933 s";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_match_the_table() {
        let guide = include_str!("../../docs/guide/prefix-and-pairs.md");
        let row = guide.lines().find(|line| line.starts_with("| 0.02 |")).unwrap();
        let means: Vec<&str> =
            row.split('|').filter_map(|cell| Some(cell.split_once('/')?.0.trim())).collect();
        let [built_in, _, sticky, expected] = means[..] else { panic!("{row}") };
        let quoted =
            [BUILT_IN_TTFT, STICKY_TTFT, EXPECTED_LATENCY_TTFT].map(|text| text.trim_end_matches(" s"));
        assert_eq!(quoted, [built_in, sticky, expected]);
    }
}
