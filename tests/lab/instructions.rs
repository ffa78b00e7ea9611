//! Comparison of counts of instructions with those that were written down.

#[path = "../../benches/instructions/src/compare.rs"]
mod compare;

use compare::{Numbers, compare};

const COMPILER: &str = "rustc 1.95.0 (59807616e 2026-04-14)";

fn numbers(cases: &[(&str, u64)]) -> Numbers {
    let cases = cases.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
    Numbers { compiler: COMPILER.to_owned(), target: "x86_64-linux".to_owned(), cases }
}

#[test]
fn up_to_five_percent_more_instructions_pass() {
    let expected = numbers(&[("a", 1000), ("b", 1000), ("c", 1000)]);
    let comparison = compare(&expected, &numbers(&[("a", 1050), ("b", 1051), ("c", 950)]));
    assert_eq!(comparison.worse, ["b"]);
    assert_eq!(
        comparison.lines,
        [
            "a: 1050 instructions, expected 1000, +5.0 %: ok",
            "b: 1051 instructions, expected 1000, +5.1 %: TOO MANY, at most 5 % more are allowed",
            "c: 950 instructions, expected 1000, -5.0 %: ok",
        ]
    );
}

#[test]
fn fewer_instructions_pass_with_a_hint_to_accept() {
    let comparison = compare(&numbers(&[("a", 1000)]), &numbers(&[("a", 949)]));
    assert!(comparison.worse.is_empty());
    assert_eq!(
        comparison.lines,
        ["a: 949 instructions, expected 1000, -5.1 %: fewer: make instructions-accept lowers the number"]
    );
}

#[test]
fn cases_and_numbers_have_to_match() {
    let comparison = compare(&numbers(&[("old", 1000)]), &numbers(&[("new", 7)]));
    assert_eq!(comparison.worse, ["new", "old"]);
    assert_eq!(
        comparison.lines,
        [
            "new: 7 instructions, no number to compare with",
            "old: there is no such case any more; make instructions-accept drops it",
        ]
    );
}

#[test]
fn other_compiler_is_compared_with_a_note() {
    let measured = Numbers { compiler: "rustc 2.0.0".to_owned(), ..numbers(&[("a", 2000)]) };
    let comparison = compare(&numbers(&[("a", 1000)]), &measured);
    assert_eq!(comparison.worse, ["a"]);
    assert_eq!(
        comparison.lines[0],
        format!("another compiler may count differently: the numbers are of {COMPILER}, this is rustc 2.0.0")
    );
}

#[test]
fn other_processor_is_not_compared() {
    let measured = Numbers { target: "aarch64-linux".to_owned(), ..numbers(&[("a", 2000)]) };
    let comparison = compare(&numbers(&[("a", 1000)]), &measured);
    assert!(comparison.worse.is_empty() && !comparison.compared);
    assert_eq!(
        comparison.lines,
        [
            "not compared: the numbers are of x86_64-linux, this is aarch64-linux",
            "a: 2000 instructions, no number to compare with",
        ]
    );
}

#[test]
fn written_numbers_are_read_back() {
    let written = numbers(&[("request-200", 61234), ("request-100k", 7_000_000)]);
    assert_eq!(Numbers::parse(&written.to_string()), Ok(written));
}

#[test]
fn invalid_number_line_is_named() {
    let text = |line: &str| format!("# numbers\ncompiler: c\n\ntarget: t\n{line}\n");
    for (line, error) in [
        ("a 5", "line 5: no `name: value`"),
        ("a: five", "line 5: \"five\" is not a count"),
        ("a: 0", "line 5: \"0\" is not a count"),
    ] {
        assert_eq!(Numbers::parse(&text(line)), Err(error.to_owned()));
    }
    assert_eq!(Numbers::parse("target: t"), Err("the line `compiler: …` is missing".to_owned()));
    assert_eq!(Numbers::parse("compiler: c"), Err("the line `target: …` is missing".to_owned()));
}
