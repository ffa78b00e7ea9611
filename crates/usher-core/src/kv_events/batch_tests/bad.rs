//! Payloads and events that make no sense.

use super::*;

#[test]
fn payloads_without_events_are_refused() {
    for batch in [
        list([]),
        list([1.0.into()]),
        list([1.0.into(), Value::Nil]),
        list([1.0.into(), "events".into()]),
        map(&[("ts", 1.0.into())]),
        "foo".into(),
        5.into(),
    ] {
        let payload = written(&batch);
        assert_eq!(Batch::decode(&payload, Dialect::Vllm).unwrap_err(), BatchError::NoEvents, "{batch}");
    }
    for hex in [
        "",
        "c1",
        "93",
        "93cb0000000000000000ddffffffffc0",
        "93cb000000000000000091ddffffffffab",
        "93cb000000000000000091dfffffffffa474797065",
        "93cb000000000000000091c6ffffffff00",
        "ddffffffff",
    ] {
        let payload: Vec<u8> =
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        assert_eq!(Batch::decode(&payload, Dialect::Vllm).unwrap_err(), BatchError::Truncated, "{hex}");
    }
    let deep: Vec<u8> = [&b"\x92\xcb\0\0\0\0\0\0\0\0\x91"[..], &vec![0x91; 100_000], b"\xc0"].concat();
    assert_eq!(decoded(&deep, Dialect::Vllm), [Err(Skip::Malformed)]);
}

/// Each event, and why it is skipped, with the good ones around it delivered.
#[test]
fn invalid_event_is_skipped_alone() {
    let store = |at: usize, value: Value| {
        let mut values = full();
        values[at] = value;
        list(values)
    };
    let removal = |at: usize, value: Value| {
        let mut values =
            vec!["BlockRemoved".into(), numbers(&[1]), "GPU".into(), 0.into(), Value::Nil, Value::Nil];
        values[at] = value;
        list(values)
    };
    let cases = [
        (Value::Nil, Skip::Malformed),
        (5.into(), Skip::Malformed),
        (list([]), Skip::Malformed),
        (list([5.into()]), Skip::Malformed),
        (map(&[]), Skip::Malformed),
        (map(&[("block_hashes", numbers(&[1]))]), Skip::Malformed),
        (list(["BlockMoved".into(), numbers(&[1])]), Skip::UnknownEvent),
        (map(&[("type", "BlockMoved".into())]), Skip::UnknownEvent),
        (list(["BlockStored".into()]), Skip::Malformed),
        (store(1, Value::Nil), Skip::Malformed),
        (store(1, list([1.5.into()])), Skip::Malformed),
        (store(1, list([list([])])), Skip::Malformed),
        (store(2, list([])), Skip::Malformed),
        (store(3, list([(-1).into()])), Skip::Malformed),
        (store(3, list([(1u64 << 32).into()])), Skip::Malformed),
        (store(3, list([numbers(&[1, 2, 3])])), Skip::Malformed),
        (store(3, "tokens".into()), Skip::Malformed),
        (store(4, (-2).into()), Skip::Malformed),
        (store(6, 5.into()), Skip::Malformed),
        (store(7, Value::String(rmpv::Utf8String::from("x"))), Skip::Malformed),
        (store(8, 5.into()), Skip::Malformed),
        (store(8, list([5.into()])), Skip::Malformed),
        (store(9, "0".into()), Skip::Malformed),
        (store(12, "REMOTE".into()), Skip::Remote),
        (store(12, 5.into()), Skip::Malformed),
        (store(13, "tier-2".into()), Skip::Owned),
        (list(["BlockRemoved".into()]), Skip::MalformedRemoval),
        (removal(1, list([1.into(), Value::Nil])), Skip::MalformedRemoval),
        (removal(2, 5.into()), Skip::MalformedRemoval),
        (removal(3, (-1).into()), Skip::MalformedRemoval),
        (removal(4, "remote".into()), Skip::Remote),
        (removal(5, "tier-2".into()), Skip::Owned),
        (list(["AllBlocksCleared".into(), 5.into()]), Skip::MalformedRemoval),
    ];
    // The name that is not UTF-8 can't be written as a text: its bytes are put in below.
    let good = || list(["AllBlocksCleared".into()]);
    for (bad, skip) in cases {
        let batch = written(&list([1.0.into(), list([good(), bad.clone(), good()])]));
        let mut payload = batch.clone();
        if let Some(at) = payload.windows(2).position(|pair| pair == [0xa1, b'x']) {
            payload[at + 1] = 0xff;
        }
        let cleared = || Ok(Owned::Cleared(None));
        assert_eq!(decoded(&payload, Dialect::Vllm), [cleared(), Err(skip), cleared()], "{bad}");
        assert_eq!(skip.may_miss_removals(), skip == Skip::MalformedRemoval);
    }
}
