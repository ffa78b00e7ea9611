//! Flags of a single run: the suite says itself what they say.

/// Arguments that `--suite` refuses, by the names of their fields.
pub(super) const SINGLE: [&str; 31] = [
    "trace",
    "workload",
    "recording",
    "requests",
    "users",
    "speed",
    "rate",
    "utilization",
    "latency_class",
    "hide_targets",
    "servers",
    "servers_file",
    "engine_model",
    "engine_seed",
    "prefill_rate",
    "decode_step",
    "batch_factor",
    "jitter",
    "max_running",
    "max_waiting",
    "max_batched_tokens",
    "max_model_len",
    "block_size",
    "num_blocks",
    "shared_link",
    "links",
    "kv_bytes_per_token",
    "scrape_interval",
    "metrics_staleness_threshold",
    "gateway_delay",
    "seed",
];

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;
    use clap::{Args, Command};

    use crate::cli::replay::ReplayArgs;

    /// Flags that the suite has, too.
    const SUITE: [&str; 11] = [
        "config-file",
        "baseline",
        "ttft-limit",
        "tpot-limit",
        "output",
        "suite",
        "results",
        "cases",
        "engines",
        "utilizations",
        "seeds",
    ];

    #[test]
    fn suite_takes_every_flag_or_refuses_it_by_name() {
        let command = ReplayArgs::augment_args(Command::new("replay"));
        // One of these is good for each flag.
        let values = ["2", "0.5", "1s", "linear", "poisson", "zone=1G", "1s/50ms"];
        let mut refused = 0;
        for argument in command.get_arguments() {
            let Some(name) = argument.get_long().filter(|name| !SUITE.contains(name)) else { continue };
            let flag = format!("--{name}");
            let takes_value = argument.get_action().takes_values();
            let given = values.map(|value| match takes_value {
                true => format!("{flag}={value}"),
                false => flag.clone(),
            });
            let errors = given.map(|given| {
                command.clone().try_get_matches_from(["replay", "--suite", given.as_str()]).unwrap_err()
            });
            let conflict = errors.iter().find(|error| error.kind() == ErrorKind::ArgumentConflict);
            let text = conflict.map(ToString::to_string).unwrap_or_default();
            assert!(text.contains("--suite") && text.contains(&flag), "{flag}: {errors:?}");
            refused += 1;
        }
        assert_eq!(refused, super::SINGLE.len());
    }
}
