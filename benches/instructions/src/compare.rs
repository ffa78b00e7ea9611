//! Compares counts with those that were written down.

use std::fmt;

/// Instructions that a case may take beyond the number written down, in percent of that.
const ALLOWED: f64 = 5.0;

/// The counts of all cases, and where they were taken.
#[derive(Debug, PartialEq)]
pub struct Numbers {
    /// Output of `rustc --version`.
    pub compiler: String,
    /// Processor and system; counts of another one mean nothing here.
    pub target: String,
    /// Names, and instructions per repetition.
    pub cases: Vec<(String, u64)>,
}

impl Numbers {
    /// Reads lines of `name: value`. Empty ones, and those that start with `#`, are skipped.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut compiler, mut target, mut cases) = (None, None, Vec::new());
        for (number, line) in (1..).zip(text.lines().map(str::trim)) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, value) = line.split_once(": ").ok_or(format!("line {number}: no `name: value`"))?;
            match name {
                "compiler" => compiler = Some(value.to_owned()),
                "target" => target = Some(value.to_owned()),
                case => match value.parse::<u64>() {
                    Ok(count) if count > 0 => cases.push((case.to_owned(), count)),
                    _ => return Err(format!("line {number}: {value:?} is not a count")),
                },
            }
        }
        let compiler = compiler.ok_or("the line `compiler: …` is missing")?;
        let target = target.ok_or("the line `target: …` is missing")?;
        Ok(Self { compiler, target, cases })
    }

    fn get(&self, name: &str) -> Option<u64> {
        self.cases.iter().find(|(case, _)| case == name).map(|(_, count)| *count)
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# Instructions of each case of the guard, written by make instructions-accept.")?;
        writeln!(f, "# docs/contributing/performance.md explains them.")?;
        writeln!(f, "compiler: {}", self.compiler)?;
        writeln!(f, "target: {}", self.target)?;
        self.cases.iter().try_for_each(|(name, count)| writeln!(f, "{name}: {count}"))
    }
}

/// Difference of counts from those that were written down.
#[derive(Debug, Default)]
pub struct Comparison {
    /// Results and notes, a line each.
    pub lines: Vec<String>,
    /// The cases that took more than is allowed, that nothing was written down for,
    /// or that are gone.
    pub worse: Vec<String>,
    /// `true` if the counts could be compared at all.
    pub compared: bool,
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}

/// Compares case by case.
pub fn compare(expected: &Numbers, measured: &Numbers) -> Comparison {
    let mut comparison = Comparison::default();
    let lines = &mut comparison.lines;
    let compared = expected.target == measured.target;
    comparison.compared = compared;
    if !compared {
        lines.push(format!(
            "not compared: the numbers are of {}, this is {}",
            expected.target, measured.target
        ));
    } else if expected.compiler != measured.compiler {
        let (then, now) = (&expected.compiler, &measured.compiler);
        lines.push(format!(
            "another compiler may count differently: the numbers are of {then}, this is {now}"
        ));
    }
    for (name, count) in &measured.cases {
        let Some(before) = expected.get(name).filter(|_| compared) else {
            lines.push(format!("{name}: {count} instructions, no number to compare with"));
            if compared {
                comparison.worse.push(name.clone());
            }
            continue;
        };
        let change = (*count as f64 - before as f64) * 100.0 / before as f64;
        let verdict = if change > ALLOWED {
            comparison.worse.push(name.clone());
            format!("TOO MANY, at most {ALLOWED} % more are allowed")
        } else if change < -ALLOWED {
            "fewer: make instructions-accept lowers the number".to_owned()
        } else {
            "ok".to_owned()
        };
        lines.push(format!("{name}: {count} instructions, expected {before}, {change:+.1} %: {verdict}"));
    }
    for (name, _) in expected.cases.iter().filter(|(name, _)| measured.get(name).is_none()) {
        lines.push(format!("{name}: there is no such case any more; make instructions-accept drops it"));
        comparison.worse.push(name.clone());
    }
    comparison
}
