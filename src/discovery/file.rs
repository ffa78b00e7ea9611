//! The format of an endpoints file: text to endpoints, without I/O.
//!
//! ```yaml
//! endpoints:
//! - name: vllm-0
//!   namespace: default        # the default
//!   address: 10.0.0.1         # IPv4 or IPv6, no host name
//!   port: "8000"
//!   labels: {llm-d.ai/role: decode}
//! ```
//!
//! YAML or JSON, as the peer reads it. What is wrong with one entry is reported
//! and costs that entry alone. A field that nobody knows costs nothing: it is
//! reported, because it may be a slip, and the entry counts, because a pod that
//! serves is worth more than a label that is misspelt.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde_json::{Map, Value};

use crate::endpoints::EndpointSpec;

/// The largest file that is read, as the peer's.
pub const MAX_BYTES: usize = 1 << 20;

/// Why a text is no list of endpoints at all.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    /// Neither YAML nor JSON.
    #[error("not valid YAML or JSON: {0}")]
    Syntax(String),
    /// No list under `endpoints`. An empty file lands here too, as writers
    /// that don't rename truncate before they write.
    #[error("`endpoints` is not a list; write `endpoints: []` for an empty pool")]
    NoList,
}

/// Something in a file that somebody should look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Which entry, by position and, if it has one, by name.
    pub entry: String,
    /// What is wrong, and what to write instead.
    pub what: String,
    /// Whether the entry is left out for it.
    pub skipped: bool,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cost = if self.skipped { " (entry skipped)" } else { "" };
        write!(f, "{}: {}{cost}", self.entry, self.what)
    }
}

/// Reads the text of an endpoints file: the endpoints in their order, each name
/// once, and what is wrong with the others.
///
/// # Errors
/// When there is no list of endpoints to read.
pub fn parse(text: &str) -> Result<(Vec<EndpointSpec>, Vec<Problem>), ParseError> {
    let Value::Object(mut file) = read(text)? else { return Err(ParseError::NoList) };
    let entries = match file.remove("endpoints") {
        Some(Value::Array(entries)) => entries,
        // What a template leaves behind that had nothing to list.
        Some(Value::Null) => Vec::new(),
        _ => return Err(ParseError::NoList),
    };
    let mut problems: Vec<Problem> = (file.keys())
        .map(|key| Problem {
            entry: "file".to_owned(),
            what: format!("unknown field `{}`; only `endpoints` is read", shown(key)),
            skipped: false,
        })
        .collect();
    let mut specs = Vec::with_capacity(entries.len());
    for (index, entry) in entries.iter().enumerate() {
        let mut at = Entry { place: place(index, entry), problems: &mut problems };
        if let Some(spec) = at.endpoint(entry) {
            specs.push((spec, at.place));
        }
    }
    Ok((last_of_each_name(specs, &mut problems), problems))
}

fn read(text: &str) -> Result<Value, ParseError> {
    // JSON is nearly YAML: tabs between its tokens are the difference.
    if text.trim_start().starts_with('{')
        && let Ok(value) = serde_json::from_str(text)
    {
        return Ok(value);
    }
    serde_saphyr::from_str(text).map_err(|error| ParseError::Syntax(error.to_string()))
}

fn place(index: usize, entry: &Value) -> String {
    match entry.get("name").and_then(Value::as_str) {
        Some(name) => format!("endpoints[{index}] ({})", shown(name)),
        None => format!("endpoints[{index}]"),
    }
}

/// The start of a text from the file, short enough for a log line.
fn shown(text: &str) -> &str {
    text.char_indices().nth(80).map_or(text, |(end, _)| &text[..end])
}

/// Of two endpoints with the same name the last counts.
fn last_of_each_name(specs: Vec<(EndpointSpec, String)>, problems: &mut Vec<Problem>) -> Vec<EndpointSpec> {
    let last: HashMap<String, usize> = specs.iter().map(|(spec, _)| spec.id()).zip(0..).collect();
    let mut kept = Vec::with_capacity(last.len());
    for (index, (spec, place)) in specs.into_iter().enumerate() {
        let id = spec.id();
        if last.get(&id) == Some(&index) {
            kept.push(spec);
        } else {
            let what = format!(
                "a later entry is called {}, too, and counts; give each a name of its own",
                shown(&id)
            );
            problems.push(Problem { entry: place, what, skipped: true });
        }
    }
    kept
}

/// One entry while it is read.
struct Entry<'p> {
    place: String,
    problems: &'p mut Vec<Problem>,
}

impl Entry<'_> {
    fn report(&mut self, what: String, skipped: bool) {
        self.problems.push(Problem { entry: self.place.clone(), what, skipped });
    }

    /// Notes why the entry doesn't count.
    fn skip<T>(&mut self, what: impl Into<String>) -> Option<T> {
        self.report(what.into(), true);
        None
    }

    fn endpoint(&mut self, entry: &Value) -> Option<EndpointSpec> {
        let Value::Object(fields) = entry else {
            return self.skip("not a mapping; write name, address and port");
        };
        let name = self.name(fields)?;
        let namespace = match fields.get("namespace") {
            None | Some(Value::Null) => "default".to_owned(),
            Some(Value::String(text)) if text.is_empty() => "default".to_owned(),
            Some(Value::String(text)) => text.clone(),
            Some(_) => return self.skip("`namespace` is not a string; put it in quotes"),
        };
        let ip = self.address(fields)?;
        let port = self.port(fields)?;
        let labels = self.labels(fields)?;
        for key in fields.keys() {
            if !matches!(key.as_str(), "name" | "namespace" | "address" | "port" | "labels") {
                self.report(
                    format!(
                        "unknown field `{}`; known are name, namespace, address, port, labels",
                        shown(key)
                    ),
                    false,
                );
            }
        }
        let pod = name.clone();
        Some(EndpointSpec { namespace, name, pod, address: SocketAddr::new(ip, port), labels, rank: 0 })
    }

    fn name(&mut self, fields: &Map<String, Value>) -> Option<String> {
        match fields.get("name") {
            Some(Value::String(name)) if !name.is_empty() => Some(name.clone()),
            Some(Value::Number(_) | Value::Bool(_)) => self.skip("`name` is not a string; put it in quotes"),
            _ => self.skip("`name` is missing; every endpoint needs one of its own"),
        }
    }

    fn address(&mut self, fields: &Map<String, Value>) -> Option<IpAddr> {
        let Some(Value::String(text)) = fields.get("address") else {
            return self.skip("`address` is missing or not a string; write an IP address");
        };
        let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
        match bare.parse() {
            Ok(ip) => Some(ip),
            Err(_) => self.skip(format!(
                "`address: {}` is no IP address; write one (10.0.0.1, fd00::1), names are not resolved, and the port has its own field",
                shown(text)
            )),
        }
    }

    fn port(&mut self, fields: &Map<String, Value>) -> Option<u16> {
        let port = match fields.get("port") {
            Some(Value::String(text)) => text.parse().ok(),
            Some(Value::Number(number)) => number.as_u64().and_then(|port| u16::try_from(port).ok()),
            None | Some(Value::Null) => return self.skip("`port` is missing; write port: \"8000\""),
            Some(_) => None,
        };
        match port {
            Some(port) if port != 0 => Some(port),
            _ => self.skip("`port` is not in 1 to 65535; write port: \"8000\""),
        }
    }

    fn labels(&mut self, fields: &Map<String, Value>) -> Option<BTreeMap<String, String>> {
        let labels = match fields.get("labels") {
            None | Some(Value::Null) => return Some(BTreeMap::new()),
            Some(Value::Object(labels)) => labels,
            Some(_) => return self.skip("`labels` is not a mapping; write labels: {key: \"value\"}"),
        };
        let mut read = BTreeMap::new();
        for (key, value) in labels {
            let Value::String(value) = value else {
                return self.skip(format!("label `{}` is not a string; put its value in quotes", shown(key)));
            };
            read.insert(key.clone(), value.clone());
        }
        Some(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_ok(text: &str) -> (Vec<String>, Vec<String>) {
        let (specs, problems) = parse(text).unwrap();
        let specs = specs.iter().map(|spec| format!("{}@{}", spec.id(), spec.address)).collect();
        (specs, problems.iter().map(Problem::to_string).collect())
    }

    #[test]
    fn yaml_and_json_say_the_same() {
        let yaml = r#"
endpoints:
- {name: a, address: 10.0.0.1, port: "8000", labels: {llm-d.ai/role: decode, zone: "1"}}
- name: b
  namespace: prod
  address: fd00::1
  port: 8001
- {name: c, namespace: "", address: "[fd00::2]", port: "65535", labels: null}
"#;
        let json = "\t{\"endpoints\":\t[{\"name\":\"a\",\"address\":\"10.0.0.1\",\"port\":\"8000\",\"labels\":{\"llm-d.ai/role\":\"decode\",\"zone\":\"1\"}},\n\t{\"name\":\"b\",\"namespace\":\"prod\",\"address\":\"fd00::1\",\"port\":8001},{\"name\":\"c\",\"address\":\"fd00::2\",\"port\":\"65535\"}]}";
        let (specs, problems) = parse(yaml).unwrap();
        assert_eq!(parse(json).unwrap(), (specs.clone(), problems.clone()));
        assert_eq!(problems, []);
        let ids: Vec<_> = specs.iter().map(|spec| (spec.id(), spec.address.to_string(), spec.rank)).collect();
        let want =
            [("default/a", "10.0.0.1:8000"), ("prod/b", "[fd00::1]:8001"), ("default/c", "[fd00::2]:65535")];
        assert_eq!(ids, want.map(|(id, address)| (id.to_owned(), address.to_owned(), 0)));
        assert_eq!(specs[0].labels["llm-d.ai/role"], "decode");
        assert_eq!(specs[0].pod, "a");
    }

    #[test]
    fn a_bad_entry_costs_itself_alone() {
        // entry, what the report says
        let table = [
            ("just text", "not a mapping"),
            ("{address: 10.0.0.9, port: '1'}", "`name` is missing"),
            ("{name: '', address: 10.0.0.9, port: '1'}", "`name` is missing"),
            ("{name: 7, address: 10.0.0.9, port: '1'}", "`name` is not a string; put it in quotes"),
            ("{name: x, namespace: 1, address: 10.0.0.9, port: '1'}", "endpoints[1] (x): `namespace` is not"),
            ("{name: x, port: '1'}", "`address` is missing"),
            ("{name: x, address: pod.local, port: '1'}", "names are not resolved"),
            ("{name: x, address: '10.0.0.9:80', port: '1'}", "`address: 10.0.0.9:80` is no IP address"),
            ("{name: x, address: 10.0.0.9}", "`port` is missing"),
            ("{name: x, address: 10.0.0.9, port: '0'}", "`port` is not in 1 to 65535"),
            ("{name: x, address: 10.0.0.9, port: 65536}", "`port` is not in 1 to 65535"),
            ("{name: x, address: 10.0.0.9, port: http}", "`port` is not in 1 to 65535"),
            ("{name: x, address: 10.0.0.9, port: 80.5}", "`port` is not in 1 to 65535"),
            ("{name: x, address: 10.0.0.9, port: '1', labels: [a]}", "`labels` is not a mapping"),
            ("{name: x, address: 10.0.0.9, port: '1', labels: {a: 1}}", "label `a` is not a string"),
        ];
        for (entry, says) in table {
            let good = |name: &str| format!("{{name: {name}, address: 10.0.0.1, port: '80'}}");
            let (specs, problems) = read_ok(&format!("endpoints: [{}, {entry}, {}]", good("a"), good("b")));
            assert_eq!(specs, ["default/a@10.0.0.1:80", "default/b@10.0.0.1:80"], "{entry}");
            assert_eq!(problems.len(), 1, "{entry}");
            assert!(problems[0].starts_with("endpoints[1]"), "{problems:?}");
            assert!(problems[0].contains(says) && problems[0].ends_with("(entry skipped)"), "{problems:?}");
        }
    }

    #[test]
    fn what_nobody_knows_is_reported_and_costs_nothing() {
        let (specs, problems) =
            read_ok("endpoints: [{name: a, address: 10.0.0.1, port: '80', lables: {}}]\nversion: 2\n");
        assert_eq!(specs, ["default/a@10.0.0.1:80"]);
        let known = "known are name, namespace, address, port, labels";
        let want = [
            "file: unknown field `version`; only `endpoints` is read".to_owned(),
            format!("endpoints[0] (a): unknown field `lables`; {known}"),
        ];
        assert_eq!(problems, want);
    }

    #[test]
    fn the_last_of_a_duplicated_name_counts() {
        let entry =
            |name: &str, last: u8| format!("- {{name: {name}, address: 10.0.0.{last}, port: '80'}}\n");
        let text = format!("endpoints:\n{}{}{}", entry("a", 1), entry("b", 2), entry("a", 3));
        let (specs, problems) = read_ok(&text);
        assert_eq!(specs, ["default/b@10.0.0.2:80", "default/a@10.0.0.3:80"]);
        assert_eq!(problems.len(), 1);
        assert!(
            problems[0].starts_with("endpoints[0] (a): a later entry is called default/a"),
            "{problems:?}"
        );
    }

    #[test]
    fn what_is_no_list_of_endpoints_is_an_error() {
        for empty in ["endpoints: []", "endpoints:\n", "{\"endpoints\": []}"] {
            assert_eq!(parse(empty).unwrap(), (vec![], vec![]), "{empty}");
        }
        for text in
            ["", "  \n", "# nothing\n", "[]", "text", "{}", "endpoints: {}", "endpoints: x", "pods: []"]
        {
            assert!(matches!(parse(text), Err(ParseError::NoList)), "{text:?} {:?}", parse(text));
        }
        for text in ["endpoints: [", "a: b: c", "{\"endpoints\": [}", "endpoints: []\nendpoints: []\n"] {
            assert!(matches!(parse(text), Err(ParseError::Syntax(_))), "{text:?} {:?}", parse(text));
        }
    }
}
