//! Arguments that don't fit together.

use crate::load::refusal;

#[tokio::test]
async fn wrong_arguments_are_named() {
    let direct = "127.0.0.1:1";
    let table: [(&str, &[&str], &[&str]); 24] = [
        ("nowhere", &[], &["--target", "HOST:PORT", "http://"]),
        ("127.0.0.1:x", &[], &["--target"]),
        (direct, &["--rate=1", "--concurrency=1"], &["--rate", "--concurrency"]),
        (direct, &["--rate=0"], &["--rate", "above 0"]),
        (direct, &["--arrivals=poisson"], &["--rate"]),
        (direct, &["--idle=5", "--output-tokens=5"], &["--idle", "--output-tokens"]),
        (direct, &["--idle=5", "--concurrency=5"], &["--idle", "--concurrency"]),
        (direct, &["--chunk-interval=1ms"], &["--stream"]),
        (direct, &["--tokens=5", "--trace=x"], &["--tokens", "--trace"]),
        (direct, &["--speed=2"], &["--trace"]),
        (direct, &["--trace=x", "--speed=2", "--rate=2"], &["--speed", "--rate"]),
        (direct, &["--trace=x", "--trace-speed=2", "--rate=2"], &["--speed", "--rate"]),
        (direct, &["--trace=/nowhere.jsonl"], &["/nowhere.jsonl"]),
        (direct, &["--prefix-groups=2"], &["--prefix-tokens"]),
        (direct, &["--prefix-groups=2", "--prefix-tokens=201"], &["201", "200", "--tokens"]),
        (
            direct,
            &["--prefix-groups=9000000", "--prefix-tokens=20"],
            &["--prefix-groups", "memory", "1342177"],
        ),
        (direct, &["--tokens=900000000"], &["--tokens", "at most 10000000"]),
        (direct, &["--duration=2000000h"], &["--duration", "720h"]),
        (direct, &["--max-in-flight=5"], &["--max-in-flight", "--rate"]),
        (direct, &["--duration=0"], &["--duration", "above 0"]),
        (direct, &["--header=a b=c"], &["--header", "x-tenant: blue"]),
        (direct, &["--pid=usher"], &["--pid", "process id"]),
        ("http://127.0.0.1:1", &["--idle=5"], &["--idle", "ext_proc"]),
        ("http://127.0.0.1:1", &["--subset=10.0.0.1"], &["--subset", "ext_proc"]),
    ];
    for (target, arguments, parts) in table {
        let (line, code) = refusal(target, arguments).await;
        assert_eq!(code, 2, "{arguments:?}: {line}");
        for part in parts {
            assert!(line.contains(part), "{arguments:?}: no {part} in {line}");
        }
    }
}
