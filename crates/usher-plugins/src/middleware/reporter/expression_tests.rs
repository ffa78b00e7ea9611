use proptest::prelude::*;

use super::super::check::MAX_DEPTH;
use super::*;

fn usage(prompt: u64, completion: u64, cached: Option<u64>) -> Usage {
    Usage { prompt_tokens: Some(prompt), completion_tokens: Some(completion), cached_tokens: cached }
}

fn number(source: &str, usage: &Usage) -> Result<i64, String> {
    let expression = Expression::compile(source, Kind::Number).map_err(|problem| problem.message)?;
    expression.number(&Variables::of(usage)).map_err(|failure| failure.to_string())
}

#[test]
fn numbers_are_computed_and_cut_off() {
    let table = [
        ("usage.prompt_tokens", 100),
        ("usage.completion_tokens", 7),
        ("usage.total_tokens", 107),
        ("usage['total_tokens']", 107),
        ("usage.prompt_tokens_details.cached_tokens", 40),
        ("usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens", 60),
        ("usage.completion_tokens / 2.0", 3),
        ("-usage.completion_tokens / 2.0", -3),
        ("usage.completion_tokens > 5 ? 1 : 2", 1),
        ("usage.completion_tokens >= 7.5 || usage.total_tokens in [107.0] ? 1 : 2", 1),
        ("has(usage.prompt_tokens_details) ? usage.prompt_tokens_details.cached_tokens : 0.0", 40),
        ("has(usage.nothing) ? 1 : 2", 2),
        ("int(usage.completion_tokens) % 4", 3),
        ("double(3u) * usage.completion_tokens", 21),
        ("18446744073709551615u > 3u ? 5u : 0u", 5),
        ("0", 0),
        ("  1 + // one more\n 2", 3),
    ];
    for (source, expected) in table {
        assert_eq!(number(source, &usage(100, 7, Some(40))), Ok(expected), "{source}");
    }
}

#[test]
fn missing_usage_is_zero_and_missing_details_are_absent() {
    let only = Usage { prompt_tokens: Some(9), ..Usage::default() };
    assert_eq!(number("usage.prompt_tokens + usage.completion_tokens", &only), Ok(9));
    assert_eq!(number("has(usage.completion_tokens) ? 1 : 2", &only), Ok(1));
    assert_eq!(number("has(usage.prompt_tokens_details) ? 1 : 2", &only), Ok(2));
    let missing = number("usage.prompt_tokens_details.cached_tokens", &only).unwrap_err();
    assert!(missing.contains("prompt_tokens_details"), "{missing}");
}

#[test]
fn values_beyond_64_bits_are_failures() {
    let table = [
        ("usage.prompt_tokens / 0.0", "does not fit"),
        ("0.0 / 0.0 * usage.prompt_tokens", "does not fit"),
        ("1e300", "does not fit"),
        ("-9223372036854775808.0 - 3000.0", "does not fit"),
        ("18446744073709551615u", "does not fit"),
        ("9223372036854775807 + 1", "Overflow"),
        ("-9223372036854775807 - 2", "Overflow"),
        ("9223372036854775807 * 2", "Overflow"),
        ("-(-9223372036854775807 - 1)", "Overflow"),
        ("(-9223372036854775807 - 1) / -1", "Overflow"),
        ("(-9223372036854775807 - 1) % -1", "Overflow"),
        ("1 / 0", "Division by zero"),
        ("1 % 0", "Remainder by zero"),
        ("1u - 2u", "Overflow"),
        ("int(1e300)", "overflow"),
        ("usage.nothing", "nothing"),
        ("usage.prompt_tokens > 0.0 / 0.0 ? 1 : 2", "no matching overload"),
    ];
    for (source, message) in table {
        let failure = number(source, &usage(1, 2, None)).unwrap_err();
        assert!(failure.contains(message), "{source}: {failure}");
    }
    assert_eq!(number("-9223372036854775808.0", &usage(1, 2, None)), Ok(i64::MIN));
}

#[test]
fn invalid_expressions_are_refused_with_a_reason() {
    let deep = |count: usize| format!("1.0{}", " + usage.total_tokens".repeat(count));
    let table = [
        ("usage.prompt_tokens +".to_owned(), "not a CEL expression, column 22: "),
        ("usage.prompt_tokens total".to_owned(), "not a CEL expression, column 21: "),
        ("'open".to_owned(), "not a CEL expression, column 1: "),
        ("99999999999999999999".to_owned(), "invalid int literal"),
        ("tokens.total".to_owned(), "unknown variable 'tokens'"),
        ("total_tokens".to_owned(), "unknown variable 'total_tokens'"),
        ("usage.size()".to_owned(), "unknown function 'size'"),
        ("size(usage)".to_owned(), "unknown function 'size'"),
        ("'a'.matches('(a+)+$') ? 1 : 2".to_owned(), "unknown function 'matches'"),
        ("[1, 2].map(x, x * 2)[0]".to_owned(), "map are not supported"),
        ("usage.exists(key, key == 'a') ? 1 : 2".to_owned(), "map are not supported"),
        ("{'a': 1}.a".to_owned(), "maps and messages are not supported"),
        ("Message{a: 1}.a".to_owned(), "maps and messages are not supported"),
        ("usage.?total_tokens".to_owned(), "not a CEL expression, column 6: unsupported syntax"),
        ("usage".to_owned(), "it gives a map instead of a number"),
        ("usage.total_tokens > 3.0".to_owned(), "it gives true or false instead of a number"),
        ("'3'".to_owned(), "it gives text instead of a number"),
        ("usage.total_tokens * 4".to_owned(), "it always fails"),
        ("3u + 1".to_owned(), "it always fails"),
        ("!usage.total_tokens ? 1 : 2".to_owned(), "it always fails"),
        ("usage.total_tokens ? 1 : 2".to_owned(), "it always fails"),
        ("usage.total_tokens.more".to_owned(), "it always fails"),
        ("double(true)".to_owned(), "it always fails"),
        (deep(MAX_DEPTH), "nested more than 24 deep"),
        (deep(45), "nested more than 24 deep"),
        ("(".repeat(400) + "1" + &")".repeat(400), "nested too deeply"),
        (format!("1{}", "+1".repeat(499)), "nested more than 24 deep"),
        (" ".repeat(1001), "longer than 1000 bytes"),
    ];
    for (source, message) in table {
        let problem = Expression::compile(&source, Kind::Number).expect_err(&source);
        assert!(problem.message.contains(message), "{source}: {problem:?}");
    }
    assert!(Expression::compile(&format!("{}true ? 1 : 2", "!".repeat(900)), Kind::Number).is_ok());
    assert!(Expression::compile(&deep(MAX_DEPTH - 2), Kind::Number).is_ok());
    let problem = Expression::compile("usage.total_tokens", Kind::Truth).unwrap_err();
    assert_eq!(problem.message, "it gives a number instead of true or false");
}

#[test]
fn the_deepest_expression_fits_the_stack_of_a_worker() {
    let sum = format!("1.0{}", " + usage.total_tokens".repeat(MAX_DEPTH - 2));
    let lists =
        format!("{}usage.total_tokens{}", "[".repeat(MAX_DEPTH / 2 - 2), "][0]".repeat(MAX_DEPTH / 2 - 2));
    for source in [sum, lists] {
        let expression = Expression::compile(&source, Kind::Number).unwrap();
        // Workers have 2 MiB.
        let small = thread::Builder::new().stack_size(3 << 19);
        let value = small.spawn(move || expression.number(&Variables::of(&usage(3, 4, None))));
        assert!(value.unwrap().join().unwrap().is_ok(), "{source}");
    }
}

/// Expressions that are well-formed more often than not.
fn source() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("usage.prompt_tokens".to_owned()),
        Just("usage.completion_tokens".to_owned()),
        Just("usage.prompt_tokens_details.cached_tokens".to_owned()),
        Just("has(usage.prompt_tokens_details)".to_owned()),
        Just("usage['total_tokens']".to_owned()),
        Just("usage".to_owned()),
        Just("true".to_owned()),
        Just("null".to_owned()),
        Just("b'a'".to_owned()),
        Just("'text'".to_owned()),
        Just("9223372036854775807".to_owned()),
        Just("-9223372036854775808".to_owned()),
        Just("18446744073709551615u".to_owned()),
        any::<i32>().prop_map(|value| value.to_string()),
        any::<f32>().prop_map(|value| format!("{value:e}")),
        "[0-9a-z.\"'()+?:\\[\\]{}-]{1,6}",
    ];
    leaf.prop_recursive(5, 24, 3, |inner| {
        let operator = prop::sample::select(vec![
            "+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "&&", "||", "in",
        ]);
        let function = prop::sample::select(vec!["int", "uint", "double", "dyn", "-", "!", "size", "string"]);
        prop_oneof![
            (inner.clone(), operator, inner.clone()).prop_map(|(a, op, b)| format!("({a} {op} {b})")),
            (function, inner.clone()).prop_map(|(f, a)| format!("{f}({a})")),
            (inner.clone(), inner.clone(), inner.clone()).prop_map(|(a, b, c)| format!("({a} ? {b} : {c})")),
            prop::collection::vec(inner.clone(), 0..3).prop_map(|items| format!("[{}]", items.join(", "))),
            (inner.clone(), inner).prop_map(|(a, b)| format!("{a}[{b}]")),
        ]
    })
}

proptest! {
    /// Compiling may fail, evaluating may fail, neither may panic; and what is left out of
    /// the language stays out.
    #[test]
    fn random_expressions_never_panic(source in source(), prompt: u64, completion: u64, cached: Option<u64>) {
        let variables = Variables::of(&usage(prompt, completion, cached));
        for kind in [Kind::Number, Kind::Truth] {
            let compiled = Expression::compile(&source, kind);
            if let Ok(expression) = compiled {
                prop_assert!(!source.contains("size(") && !source.contains("string("), "{}", source);
                let _ = expression.number(&variables);
                let _ = expression.holds(&variables);
            } else if let Err(problem) = compiled {
                prop_assert_ne!(problem.message, "it can't be parsed", "{}", source);
            }
        }
    }

    #[test]
    fn sums_equal_their_reference(prompt in 0u64..1 << 40, completion in 0u64..1 << 40, factor in -9i32..9, bound in 0u64..1 << 40) {
        let source = format!(
            "usage.prompt_tokens > {bound}.0 ? usage.prompt_tokens * {factor}.0 : usage.completion_tokens + {bound}.5"
        );
        let expected = if prompt > bound { prompt as i64 * i64::from(factor) } else { (completion + bound) as i64 };
        prop_assert_eq!(number(&source, &usage(prompt, completion, None)), Ok(expected));
    }
}
