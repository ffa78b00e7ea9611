//! A human-readable report: checks by the part that they are about, findings with the cause first, and a verdict.

use std::fmt::Write;

use usher_terminal::{Mark, Terminal};

use super::plain::plain;
use crate::doctor::{Finding, GROUPS, Outcome, Report, Root, Severity, Status};

/// Servers that are named; of more only how many there are.
const NAMED: usize = 3;

/// Columns before a finding's text.
const INDENT: usize = 4;

/// The report as text.
pub(super) fn text(report: &Report, terminal: Terminal) -> String {
    let roots = report.roots();
    let mut page = Page { terminal, text: String::new() };
    for (group, names) in GROUPS {
        let of = |name: &&str| report.checks.iter().find(|(check, _)| check == name);
        let checks = names.iter().filter_map(of).filter(|(name, outcome)| !is_folded(report, name, outcome));
        let checks: Vec<&(&str, Outcome)> = checks.collect();
        if checks.is_empty() {
            continue;
        }
        page.heading(group);
        page.checks(&checks, &roots);
    }
    for root in &roots {
        page.finding(root);
    }
    page.verdict(report, &roots);
    page.text
}

/// Returns `true` for a check that says nothing but what follows from a finding elsewhere.
fn is_folded(report: &Report, name: &str, outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Skipped { .. } => report.obstacle(name).is_some(),
        Outcome::Looked { findings, .. } => {
            !findings.is_empty() && findings.iter().all(|finding| report.cause(finding.rule).is_some())
        }
    }
}

/// Text that is being written.
struct Page {
    terminal: Terminal,
    text: String,
}

impl Page {
    fn heading(&mut self, title: &str) {
        let gap = if self.text.is_empty() { "" } else { "\n" };
        // Writing to a string can't fail, here and below.
        let _ = writeln!(self.text, "{gap}{}", self.terminal.bold(title));
    }

    /// Words behind a beginning of so many columns, and below themselves where they need more than a line.
    fn words(&mut self, beginning: &str, columns: usize, words: &str) {
        for (number, line) in self.terminal.wrapped(&plain(words), columns).iter().enumerate() {
            let whole =
                if number == 0 { format!("{beginning}{line}") } else { format!("{:columns$}{line}", "") };
            let _ = writeln!(self.text, "{}", whole.trim_end());
        }
    }

    /// A line per check, and one for all that were skipped for the same reason.
    fn checks(&mut self, checks: &[&(&str, Outcome)], roots: &[Root<'_>]) {
        let reason = |outcome: &Outcome| match outcome {
            Outcome::Skipped { reason } => Some(reason.clone()),
            Outcome::Looked { .. } => None,
        };
        let width = GROUPS.iter().flat_map(|(_, names)| *names).map(|name| name.len()).max().unwrap_or(0);
        for (name, outcome) in checks {
            let mark = self.terminal.mark(mark(outcome.status()));
            match outcome {
                Outcome::Looked { at, .. } => self.words(&format!("  {mark} {name:width$}  "), width + 6, at),
                Outcome::Skipped { reason: why } => {
                    let same = checks.iter().filter(|(_, other)| reason(other).as_ref() == Some(why));
                    let names: Vec<&str> = same.map(|(name, _)| *name).collect();
                    match &names[..] {
                        [_] => self.words(&format!("  {mark} {name:width$}  "), width + 6, why),
                        [first, ..] if first == name => {
                            self.words(
                                &format!("  {mark} "),
                                INDENT,
                                &format!("{}: {why}", names.join(", ")),
                            );
                        }
                        _ => {}
                    }
                }
            }
            let of = |root: &&Root<'_>| root.findings.first().is_some_and(|(check, _)| check == name);
            for root in roots.iter().filter(of) {
                self.folded(root);
            }
        }
    }

    /// Checks that need a root fixed.
    fn folded(&mut self, root: &Root<'_>) {
        let is_own = |name: &str| root.findings.iter().any(|(check, _)| *check == name);
        let others = root.needed_by.iter().filter(|(name, _)| !is_own(name)).map(|(name, found)| {
            let codes: Vec<&str> = found.iter().map(|rule| rule.code).collect();
            if codes.is_empty() { (*name).to_owned() } else { format!("{name} ({})", codes.join(", ")) }
        });
        let others: Vec<String> = others.collect();
        let (checks, need) = if others.len() == 1 { ("check", "needs") } else { ("checks", "need") };
        if !others.is_empty() {
            let line = format!("and {} {checks} that {need} it: {}", others.len(), others.join(", "));
            self.words("      ", INDENT + 2, &line);
        }
    }

    /// A finding that follows from no other: what was seen, why it matters, and how to fix it.
    fn finding(&mut self, root: &Root<'_>) {
        let mark = match root.rule.severity {
            Severity::Warning => Mark::Warning,
            Severity::Wrong => Mark::Wrong,
        };
        let mut checks: Vec<&str> = root.findings.iter().map(|(check, _)| *check).collect();
        checks.dedup();
        let code = self.terminal.painted(mark, root.rule.code);
        let _ = writeln!(self.text, "\n{} {code} ({})", self.terminal.mark(mark), checks.join(", "));
        let mut fixes: Vec<&str> = root.findings.iter().map(|(_, finding)| finding.remedy()).collect();
        fixes.dedup();
        let whats = whats(&root.findings);
        let whats = whats.iter().map(|what| ("what", what.as_str()));
        for (title, words) in
            whats.chain([("why", root.rule.why)]).chain(fixes.into_iter().map(|fix| ("fix", fix)))
        {
            self.words(&format!("{:INDENT$}{title:<4}  ", ""), INDENT + 6, words);
        }
        let is_own = |name: &str| root.findings.iter().any(|(check, _)| *check == name);
        let own = root.needed_by.iter().filter(|(name, _)| is_own(name)).flat_map(|(_, found)| found);
        let own: Vec<&str> = own.map(|rule| rule.code).collect();
        if !own.is_empty() {
            let line = format!("{}, which follows from it", own.join(", "));
            self.words(&format!("{:INDENT$}also  ", ""), INDENT + 6, &line);
        }
    }

    /// One sentence: is it well, and what to do first.
    fn verdict(&mut self, report: &Report, roots: &[Root<'_>]) {
        let [ok, warning, wrong, skipped] = report.counts();
        let first = roots.first().map_or("", |root| root.rule.code);
        let (mark, said) = if wrong > 0 {
            (Mark::Wrong, format!("Something is wrong: fix {first} first"))
        } else if warning > 0 {
            (Mark::Warning, format!("Nothing is wrong, but look at {first}"))
        } else if ok == 0 {
            (Mark::Skipped, "Nothing could be looked at".to_owned())
        } else if skipped > 0 {
            (Mark::Ok, "Nothing is wrong in what was looked at".to_owned())
        } else {
            (Mark::Ok, "Nothing is wrong".to_owned())
        };
        let counts = [(ok, "ok"), (warning, "with warnings"), (wrong, "wrong"), (skipped, "skipped")];
        let counts: Vec<String> = counts
            .iter()
            .filter(|(number, _)| *number > 0)
            .map(|(number, of)| format!("{number} {of}"))
            .collect();
        self.text.push('\n');
        let beginning = format!("{} ", self.terminal.mark(mark));
        self.words(&beginning, 2, &format!("{said} (checks: {}).", counts.join(", ")));
    }
}

fn mark(status: Status) -> Mark {
    match status {
        Status::Ok => Mark::Ok,
        Status::Warning => Mark::Warning,
        Status::Wrong => Mark::Wrong,
        Status::Skipped => Mark::Skipped,
    }
}

/// Observations of the findings of one kind, each once, with the number of servers that share it.
fn whats(findings: &[(&str, &Finding)]) -> Vec<String> {
    let mut whats = Vec::new();
    for (_, finding) in findings {
        let what = match &finding.server {
            None => finding.what.clone(),
            Some(server) => {
                let same = findings.iter().filter_map(|(_, finding)| finding.server.as_ref());
                let names: Vec<&str> = same
                    .filter(|other| other.problem == server.problem)
                    .map(|other| other.name.as_str())
                    .collect();
                if names.len() == 1 { finding.what.clone() } else { several(&names, &server.problem) }
            }
        };
        if !whats.contains(&what) {
            whats.push(what);
        }
    }
    whats
}

fn several(names: &[&str], problem: &str) -> String {
    let mut each = names.to_vec();
    each.dedup();
    let more = each.len().saturating_sub(NAMED);
    each.truncate(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{} model servers ({}{more}): {problem}", names.len(), each.join(", "))
}

#[cfg(test)]
mod tests;
