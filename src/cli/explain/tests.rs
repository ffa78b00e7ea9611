use serde_json::{Value, json};

use super::*;

fn endpoint(number: u8, hidden: Option<&str>) -> Value {
    json!({
        "id": format!("default/pod-{number}"), "address": format!("10.0.0.{number}:8000"), "waiting": 0.0,
        "running": 2.0, "kv_usage": 0.421, "age_ms": 40, "in_flight": 1, "cached_tokens": 512, "hidden_by": hidden,
    })
}

fn decision() -> Value {
    let address = |number: u8| format!("10.0.0.{number}:8000");
    let expected = |number: u8, first: f64| {
        json!({
            "address": address(number), "first_token": first, "slot_wait": 0.0, "queued": 0.02,
            "prefill": first - 0.02, "per_token": 0.011, "uncached_tokens": 722.0,
        })
    };
    json!({
        "number": 7, "sequence": 14, "request_id": "r-7", "decided_unix_ms": 1_795_747_211_123_u64, "waited": 0.0004,
        "model": "llama", "target_model": "llama-lora", "priority": 0, "stream": true, "body_bytes": 5000,
        "input_tokens": 1234, "max_output_tokens": 100, "endpoints": 4, "candidates": 3,
        "detailed": [endpoint(1, None), endpoint(2, None), endpoint(3, None), endpoint(4, Some("ejection"))],
        "profiles": [{
            "profile": "default", "primary": true,
            "filters": [{"filter": "by-label", "left": 2, "dropped": [address(1)]}],
            "survivors": 2, "scorers": [{"scorer": "queue-scorer", "weight": 2.0}], "picker": "max-score-picker",
            "scored": [
                {"address": address(2), "scores": [0.25], "total": 0.5},
                {"address": address(3), "scores": [1.0], "total": 2.0},
            ],
            "picks": [address(3)], "runner_up": address(2), "margin": 1.5,
            "expected": [expected(3, 0.12), expected(2, 0.18)],
        }],
        "refusal": null, "slow": false, "failed": false,
        "outcome": {
            "ending": "complete", "status": 200, "served_by": address(3), "first_token": 0.132, "total": 1.23,
            "per_token": 0.012, "prompt_tokens": 1234, "output_tokens": 100, "cached_tokens": 512,
            "first_token_error": 0.012,
        },
    })
}

fn read(value: Value) -> Decision {
    serde_json::from_value(value).unwrap()
}

#[test]
fn a_decision_is_explained() {
    let expected = "\
request        r-7
asks for       llama, served as llama-lora, about 1,234 prompt tokens, at most 100 tokens back, streamed
decided        2026-11-27 02:40:11.123 UTC, 400 µs after its headers came, among 3 of 4 endpoints
sent to        10.0.0.3:8000 (default/pod-3), ahead of 10.0.0.2:8000 by 1.500
response       status 200 from 10.0.0.3:8000, complete after 1.23 s; TTFT 132 ms; TPOT 12 ms; 100 tokens; 512 of 1,234 prompt tokens cached
expected       TTFT 120 ms (slot 0 µs, prompts before it 20 ms, 722 uncached tokens 100 ms), TPOT 11 ms; it took 12 ms longer
at runner-up   10.0.0.2:8000: TTFT 180 ms (slot 0 µs, prompts before it 20 ms, 722 uncached tokens 160 ms), TPOT 11 ms

profile        default, with the picker max-score-picker
filter         by-label left 2 of 3
endpoint       result               total  queue-scorer  waiting  running  KV cache  in flight  cached       read
10.0.0.3:8000  picked               2.000     2 × 1.000        0        2      42 %          1     512  40 ms ago
10.0.0.2:8000  runner-up            0.500     2 × 0.250        0        2      42 %          1     512  40 ms ago
10.0.0.1:8000  dropped by by-label      -             -        0        2      42 %          1     512  40 ms ago
10.0.0.4:8000  ejected: it fails        -             -        0        2      42 %          1     512  40 ms ago
";
    assert_eq!(shown(&[read(decision())], None), expected);
    for width in [60, 80, 120] {
        let text = shown(&[read(decision())], Some(width));
        assert!(text.lines().all(|line| line.chars().count() <= width), "{width}: {text}");
    }
}

#[test]
fn decision_shows_the_kv_events_of_engines() {
    let mut decided = decision();
    for (number, (state, tokens)) in
        [("not heard", None), ("partial", Some(0)), ("in sync", Some(1024)), ("in sync", None)]
            .iter()
            .enumerate()
    {
        decided["detailed"][number]["kv_events"] = json!({"state": state, "cached_tokens": tokens});
    }
    decided["outcome"]["cached_tokens_error"] = json!(-512);
    let text = shown(&[read(decided.clone())], None);
    let line =
        "\nKV events      10.0.0.3:8000 in sync, with 1,024 tokens of the prompt; 512 fewer were cached\n";
    assert!(text.contains(line), "{text}");
    for row in [
        "cached       KV events       read\n",
        "512  1,024, in sync  40 ms ago\n",
        "512      0, partial  40 ms ago\n",
        "512       not heard  40 ms ago\n",
        "512         in sync  40 ms ago\n",
    ] {
        assert!(text.contains(row), "{row}: {text}");
    }
    decided["detailed"][2]["kv_events"]["cached_tokens"] = Value::Null;
    let text = shown(&[read(decided.clone())], None);
    assert!(
        text.contains("\nKV events      10.0.0.3:8000 in sync, and the prompt's tokens were not known\n"),
        "{text}"
    );
    decided["detailed"][2]["kv_events"]["state"] = json!("not heard");
    let text = shown(&[read(decided)], None);
    assert!(text.contains("\nKV events      10.0.0.3:8000 not heard\n"), "{text}");
}

#[test]
fn refusal_names_its_reason_and_lost_candidates() {
    let mut refused = decision();
    refused["refusal"] = json!({"status": 429, "reason": "rejected-saturated", "message": "no endpoints"});
    (refused["outcome"], refused["request_id"]) = (Value::Null, json!(""));
    let profile = &mut refused["profiles"][0];
    (profile["primary"], profile["survivors"], profile["scored"]) = (json!(false), json!(0), json!([]));
    (profile["picks"], profile["runner_up"], profile["margin"]) = (json!([]), Value::Null, Value::Null);
    let text = shown(&[read(refused.clone())], None);
    assert!(text.contains("request        without an id\n"), "{text}");
    assert!(text.contains("\nrefused        status 429 (rejected-saturated): no endpoints\n"), "{text}");
    assert!(text.contains("dropped by by-label") && !text.contains("response"), "{text}");
    let listed = shown(&[read(refused), read(decision())], None);
    let expected = "\
request  decided                      model  endpoint        lead    TTFT  result
-        2026-11-27 02:40:11.123 UTC  llama  -                  -       -  refused with 429, rejected-saturated
r-7      2026-11-27 02:40:11.123 UTC  llama  10.0.0.3:8000  1.500  132 ms  200
";
    assert_eq!(listed, expected);
}

fn args(flags: &[&str]) -> Result<ExplainArgs, CliError> {
    let all = ["usher", "explain"].iter().chain(flags).map(|flag| (*flag).into());
    let crate::cli::Command::Explain(args) = crate::cli::parse(all)? else { panic!("not explain") };
    Ok(*args)
}

#[test]
fn flags_become_a_query() {
    let table: &[(&[&str], &str)] = &[
        (&[], "last=1"),
        (&["a/b&c"], "id=a%2Fb%26c"),
        (&["--slow", "--last=20"], "slow&last=20"),
        (
            &["--model=m", "--endpoint=10.0.0.1:80", "--failed"],
            "model=m&endpoint=10.0.0.1%3A80&failed&last=1",
        ),
        (&["--follow", "--model=m", "--slow"], "model=m&slow&"),
        (&["--follow"], ""),
    ];
    for (flags, expected) in table {
        assert_eq!(query(&args(flags).unwrap()), *expected, "{flags:?}");
    }
    for flags in [&["--last=0"][..], &["--last=1001"], &["x", "--follow"], &["--follow", "--last=2"]] {
        assert!(args(flags).is_err(), "{flags:?}");
    }
}

#[test]
fn missing_decision_names_the_age_of_the_records() {
    let page = |kept: usize, since: Option<u64>| -> Page {
        let page = json!({
            "version": 1, "recording": true, "kept": kept, "kept_since_unix_ms": since, "sampled_out": 3,
            "sequence": 9, "decisions": [],
        });
        serde_json::from_value(page).unwrap()
    };
    let text = nothing(&args(&["<b>\u{1b}"]).unwrap(), &page(2, Some(0)));
    let expected = "no decision about request \"<b>\\u{1b}\" is kept; there are 2 records, the oldest of 1970-01-01 00:00:00.000 UTC; 3 were not kept, as there were too many";
    assert_eq!(text, expected);
    assert!(
        nothing(&args(&[]).unwrap(), &page(0, None))
            .starts_with("no decision has been kept yet; there are 0")
    );
    assert!(
        nothing(&args(&["--slow"]).unwrap(), &page(1, Some(0))).starts_with("no kept decision is like that")
    );
}
