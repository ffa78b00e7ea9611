//! The guard: counts the instructions of what every request costs, and compares them
//! with the numbers in `expected.txt`. `make instructions` and `make instructions-accept`
//! run it; the section "The guard" of `docs/contributing/performance.md` explains it.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot set itself up has nothing to measure")]
#![allow(clippy::print_stdout, reason = "it reports to a terminal")]

mod callgrind;
mod cases;
mod compare;
mod gateway;
mod messages;
#[path = "../../common/picker.rs"]
mod picker;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use cases::{CASES, Case};
use compare::Numbers;
use tikv_jemallocator::Jemalloc;

/// As in the program: what the allocator does is part of the numbers.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

const EXPECTED: &str = "benches/instructions/expected.txt";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["check"] => check(),
        ["accept"] => accept(),
        [callgrind::CASE, name] => run(name),
        _ => Err("use: usher-instructions check, or accept to write the numbers down".to_owned()),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a case, in the process that callgrind watches.
fn run(name: &str) -> Result<bool, String> {
    let case =
        CASES.iter().find(|case| case.name == name).ok_or_else(|| format!("there is no case {name}"))?;
    (case.run)(case.times);
    Ok(true)
}

fn check() -> Result<bool, String> {
    let text = std::fs::read_to_string(expected_file())
        .map_err(|error| format!("cannot read {EXPECTED}: {error}; make instructions-accept writes it"))?;
    let expected = Numbers::parse(&text).map_err(|error| format!("{EXPECTED}: {error}"))?;
    let comparison = compare::compare(&expected, &measure()?);
    println!("{comparison}");
    if !comparison.compared && std::env::var_os("CI").is_some_and(|ci| ci == "true") {
        return Err("CI has to compare, and can't on this kind of machine".to_owned());
    }
    if comparison.worse.is_empty() {
        return Ok(true);
    }
    for name in &comparison.worse {
        println!("where {name} spends them: callgrind_annotate --auto=no {}", profile(name).display());
    }
    println!("to accept the new numbers: make instructions-accept, commit {EXPECTED} and say why");
    Ok(false)
}

fn accept() -> Result<bool, String> {
    let measured = measure()?;
    std::fs::write(expected_file(), measured.to_string())
        .map_err(|error| format!("cannot write {EXPECTED}: {error}"))?;
    print!("{measured}");
    Ok(true)
}

fn measure() -> Result<Numbers, String> {
    let count = |case: &Case| {
        let count = callgrind::count(case.name, &profile(case.name))?;
        Ok((case.name.to_owned(), count / u64::from(case.times)))
    };
    let cases = CASES.iter().map(count).collect::<Result<_, String>>()?;
    let target = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
    Ok(Numbers { compiler: compiler(), target, cases })
}

/// The compiler that cargo uses here.
fn compiler() -> String {
    let version = Command::new("rustc").arg("--version").output().ok();
    version.map_or_else(|| "unknown".to_owned(), |v| String::from_utf8_lossy(&v.stdout).trim().to_owned())
}

fn expected_file() -> PathBuf {
    // Of the checkout that cargo runs in, which need not be the one that this was built in.
    std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(PathBuf::new, PathBuf::from).join("expected.txt")
}

/// File that callgrind wrote about a case, beside this program.
fn profile(name: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    program.with_file_name(format!("callgrind.out.{name}"))
}
