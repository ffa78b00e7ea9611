//! Payloads of each engine and version.

use super::*;

/// From the five fields of the first SGLang to vLLM with sessions.
#[test]
fn stores_of_every_version_are_read_in_both_forms() {
    for fields in 5..=NAMES.len() {
        let values = full()[..fields].to_vec();
        assert_eq!(
            decoded(&batch_of(list(values.clone())), Dialect::Vllm),
            [Ok(expected(fields))],
            "{fields}"
        );
        let named: Vec<_> = NAMES.into_iter().zip(values).collect();
        for dialect in [Dialect::Vllm, Dialect::Sglang] {
            assert_eq!(decoded(&batch_of(map(&named)), dialect), [Ok(expected(fields))], "{fields}");
        }
        let mut reversed = named.clone();
        reversed.reverse();
        reversed.insert(1, ("new_thing", map(&[("a", numbers(&[1, 2]))])));
        assert_eq!(decoded(&batch_of(map(&reversed)), Dialect::Vllm), [Ok(expected(fields))], "{fields}");
    }
}

/// SGLang's `BlockStored` before #37482: seven elements, one more with metadata, or nine with salt and session.
#[test]
fn sglang_arrays_have_salt_and_session_behind_the_medium() {
    let metadata = |name: &str| map(&[(name, "tenant".into())]);
    for (more, salt) in [
        (vec![], None),
        (vec![Value::Nil, "session".into()], None),
        (vec![metadata("session_id")], None),
        (vec![metadata("cache_salt")], Some("tenant")),
        (vec!["tenant".into(), Value::Nil], Some("tenant")),
        (vec!["tenant".into(), "session".into()], Some("tenant")),
    ] {
        let values: Vec<Value> = full()[..7].iter().cloned().chain(more).collect();
        let Owned::Stored(store) = expected(7) else { unreachable!() };
        let store = Store { cache_salt: salt.map(str::to_owned), ..store };
        let found = decoded(&batch_of(list(values.clone())), Dialect::Sglang);
        assert_eq!(found, [Ok(Owned::Stored(store.clone()))]);
        if salt.is_none() || values[7].is_map() {
            // A session is no extra key, and metadata no adapter, even where the dialect is not known.
            assert_eq!(decoded(&batch_of(list(values)), Dialect::Vllm), [Ok(Owned::Stored(store))]);
        }
    }
    let salted = map(&[
        ("type", "BlockStored".into()),
        ("block_hashes", numbers(&[1])),
        ("token_ids", numbers(&[5])),
        ("block_size", 1.into()),
        ("cache_salt", "tenant".into()),
    ]);
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let [Ok(Owned::Stored(store))] = &decoded(&batch_of(salted.clone()), dialect)[..] else { panic!() };
        assert_eq!(store.cache_salt.as_deref(), Some("tenant"));
    }
}

/// TensorRT-LLM's `BlockStored` in `pyexecutor/kv_cache_events.py` (#17023).
#[test]
fn tensorrt_llm_images_have_mm_keys() {
    let key = map(&[("type", "mm_key".into()), ("hash", "cat".into()), ("start_offset", 3.into())]);
    let mut named: Vec<_> = NAMES.into_iter().zip(full()).take(8).collect();
    named.push(("mm_keys", list([list([key]), list([])])));
    named[3].1 = list([1.into(), 2.into(), "0f1e".into(), 70_000.into()]);
    let [Ok(Owned::Stored(store))] = &decoded(&batch_of(map(&named)), Dialect::Vllm)[..] else { panic!() };
    assert_eq!(store.mm_keys, [vec!["cat".to_owned()], vec![]]);
    assert_eq!((store.tokens.len(), &store.tokens[..2]), (4, &[1, 2][..]), "a digest has a token's place");
}

#[test]
fn bigrams_are_read_as_their_first_token() {
    let pairs = [[97, 98], [98, 99], [99, 100]].map(|pair| numbers(&pair));
    let event = list(["BlockStored".into(), numbers(&[1]), Value::Nil, list(pairs), 3.into()]);
    let [Ok(Owned::Stored(store))] = &decoded(&batch_of(event), Dialect::Sglang)[..] else { panic!() };
    assert_eq!(store.tokens, [97, 98, 99]);
}

#[test]
fn removals_and_clears_are_read_in_both_forms() {
    let removed = |medium: Option<&str>, group| Owned::Removed {
        hashes: vec![HASH, 2],
        medium: medium.map(str::to_owned),
        group,
    };
    let values: [Value; 6] =
        ["BlockRemoved".into(), numbers(&[HASH, 2]), "CPU".into(), 3.into(), "LOCAL".into(), Value::Nil];
    let names = ["type", "block_hashes", "medium", "group_idx", "locality", "ownership"];
    for fields in 2..=6 {
        let expected = removed((fields > 2).then_some("CPU"), (fields > 3).then_some(3));
        let array = list(values[..fields].to_vec());
        assert_eq!(decoded(&batch_of(array), Dialect::Vllm), [Ok(expected.clone())]);
        let named: Vec<_> = names.into_iter().zip(values.clone()).take(fields).collect();
        assert_eq!(decoded(&batch_of(map(&named)), Dialect::Sglang), [Ok(expected)]);
    }
    for (event, medium) in [
        (list(["AllBlocksCleared".into()]), None),
        (map(&[("type", "AllBlocksCleared".into())]), None),
        (list(["AllBlocksCleared".into(), "CPU".into()]), Some("CPU")),
        (map(&[("type", "AllBlocksCleared".into()), ("medium", "CPU".into())]), Some("CPU")),
    ] {
        let cleared = Owned::Cleared(medium.map(str::to_owned));
        assert_eq!(decoded(&batch_of(event), Dialect::Vllm), [Ok(cleared)]);
    }
}

#[test]
fn hashes_of_every_width_are_read() {
    let one = |write: &dyn Fn(&mut Vec<u8>)| {
        let mut payload = written(&Value::Nil);
        payload.clear();
        rmp::encode::write_array_len(&mut payload, 2).unwrap();
        rmp::encode::write_f64(&mut payload, 1.0).unwrap();
        rmp::encode::write_array_len(&mut payload, 1).unwrap();
        rmp::encode::write_array_len(&mut payload, 2).unwrap();
        rmp::encode::write_str(&mut payload, "BlockRemoved").unwrap();
        rmp::encode::write_array_len(&mut payload, 1).unwrap();
        write(&mut payload);
        match &decoded(&payload, Dialect::Vllm)[..] {
            [Ok(Owned::Removed { hashes, .. })] => Some(hashes[0]),
            [Err(Skip::MalformedRemoval)] => None,
            other => panic!("{other:?}"),
        }
    };
    let digest: Vec<u8> = (0..32).collect();
    let bytes = |bytes: &[u8]| one(&|out| rmp::encode::write_bin(out, bytes).unwrap());
    assert_eq!(one(&|out| rmp::encode::write_u64(out, HASH).unwrap()), Some(HASH));
    assert_eq!(one(&|out| rmp::encode::write_u64(out, 5).unwrap()), Some(5), "wider than it has to be");
    assert_eq!(one(&|out| rmp::encode::write_pfix(out, 5).unwrap()), Some(5));
    assert_eq!(one(&|out| rmp::encode::write_u8(out, 200).unwrap()), Some(200));
    assert_eq!(one(&|out| rmp::encode::write_u16(out, 60_000).unwrap()), Some(60_000));
    assert_eq!(one(&|out| rmp::encode::write_u32(out, 1 << 31).unwrap()), Some(1 << 31));
    assert_eq!(one(&|out| rmp::encode::write_i64(out, HASH as i64).unwrap()), Some(HASH));
    assert_eq!(one(&|out| rmp::encode::write_i8(out, -2).unwrap()), Some(u64::MAX - 1));
    assert_eq!(one(&|out| rmp::encode::write_i32(out, 7).unwrap()), Some(7));
    assert_eq!(bytes(&digest), Some(0x1819_1a1b_1c1d_1e1f), "the last eight bytes");
    assert_eq!(bytes(&[1, 2]), Some(0x0102));
    assert_eq!(bytes(&[]), None);
    assert_eq!(one(&|out| rmp::encode::write_f64(out, 5.0).unwrap()), None);
    assert_eq!(one(&|out| rmp::encode::write_nil(out).unwrap()), None);
}

#[test]
fn batches_are_arrays_or_maps_with_or_without_rank() {
    let clear = list([list(["AllBlocksCleared".into()])]);
    let time: Value = 1_763_870_000.25.into();
    for (batch, rank) in [
        (list([time.clone(), clear.clone(), 3.into()]), Some(3)),
        (list([time.clone(), clear.clone(), Value::Nil]), None),
        (list([time.clone(), clear.clone()]), None),
        (list([time.clone(), clear.clone(), 3.into(), "more".into(), list([])]), Some(3)),
        (map(&[("ts", time.clone()), ("events", clear.clone()), ("data_parallel_rank", 3.into())]), Some(3)),
        (map(&[("ts", time.clone()), ("events", clear.clone()), ("attn_dp_rank", 3.into())]), Some(3)),
        (
            map(&[
                ("data_parallel_rank", 3.into()),
                ("x", list([])),
                ("events", clear.clone()),
                ("ts", time),
            ]),
            Some(3),
        ),
    ] {
        let payload = written(&batch);
        assert_eq!(decoded(&payload, Dialect::Vllm), [Ok(Owned::Cleared(None))]);
        let read = Batch::decode(&payload, Dialect::Sglang).unwrap();
        assert_eq!((read.rank(), read.timestamp()), (rank, Some(1_763_870_000.25)));
    }
    let whole = written(&list([1_763_870_000.into(), clear.clone(), Value::Nil]));
    assert_eq!(Batch::decode(&whole, Dialect::Vllm).unwrap().timestamp(), Some(1_763_870_000.0));
    let nothing = map(&[("events", clear)]);
    assert_eq!(Batch::decode(&written(&nothing), Dialect::Vllm).unwrap().timestamp(), None);
}

#[test]
fn other_extra_keys_are_left_out() {
    let mut values = full();
    values[8] =
        list([list([5.into(), list([]), list([1.into()]), vec![7u8, 8].into(), Value::Nil]), Value::Nil]);
    let [Ok(Owned::Stored(store))] = &decoded(&batch_of(list(values)), Dialect::Vllm)[..] else { panic!() };
    assert_eq!(store.extra_keys, [vec!["\u{7}\u{8}".to_owned()], vec![]]);
}

#[test]
fn origin_field_marks_reused_blocks() {
    for (origin, reused) in [("NEW", false), ("REUSED", true)] {
        let mut named: Vec<_> = NAMES.into_iter().zip(full()).collect();
        named.push(("origin", origin.into()));
        let [Ok(Owned::Stored(store))] = &decoded(&batch_of(map(&named)), Dialect::Vllm)[..] else {
            panic!()
        };
        assert_eq!(store.reused, reused);
    }
}
