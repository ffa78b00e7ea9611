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
//! YAML or JSON, as llm-d-router reads it. What is wrong with one entry is reported
//! and costs that entry alone. A field that is not known costs nothing: it is
//! reported, because it may be a slip, and the entry counts, because a pod that
//! serves is worth more than a label that is misspelt.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};

use crate::config::{ConfigError, Entry, FileKind, Node, Position, Value};
use crate::endpoints::EndpointSpec;

/// The largest file that is read, as llm-d-router's.
pub const MAX_BYTES: usize = 1 << 20;

const EMPTY_POOL: &str = "`endpoints: []` is an empty pool, which --allow-empty-endpoints allows";
const FIELDS: [&str; 5] = ["name", "namespace", "address", "port", "labels"];

/// Problem in an endpoints file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Error with its position, and what to write instead.
    pub error: ConfigError,
    /// `true` if the entry is left out for it.
    pub skipped: bool,
}

impl Problem {
    /// One line: `FILE:LINE:COLUMN: entry: what is wrong (what to do)`.
    pub fn in_file(&self, file: &str) -> String {
        let cost = if self.skipped { "; entry skipped" } else { "" };
        format!("{}{cost}", self.error.in_file(file))
    }
}

/// Reads the text of an endpoints file: the endpoints in their order, each name
/// once, and what is wrong with the others.
///
/// # Errors
/// `ConfigError` if the text is neither YAML nor JSON, or has no list under `endpoints`. An empty text is an
/// error, too, as writers that don't rename truncate before they write.
pub fn parse(text: &str) -> Result<(Vec<EndpointSpec>, Vec<Problem>), ConfigError> {
    let root = Node::parse(text).map_err(|error| match (error.position(), error.hint_text()) {
        // Nothing in it.
        (None, None) => error.hint(EMPTY_POOL),
        _ => error,
    })?;
    let no_list = |at, what: &str| ConfigError::at(at, what).hint(EMPTY_POOL);
    let Value::Map(fields) = &root.value else { return Err(no_list(root.at, "not a map with `endpoints`")) };
    let entries = match root.get("endpoints") {
        None => {
            if let Some((kind, at)) = FileKind::of(&root).filter(|(kind, _)| *kind != FileKind::Endpoints) {
                return Err(kind.instead_of(&FileKind::Endpoints, at));
            }
            let mut unknown = fields.iter().map(|field| unknown_field(field, "", &["endpoints"]));
            let slip = unknown.find(|error| error.hint_text().is_some());
            return Err(slip.unwrap_or_else(|| no_list(root.at, "`endpoints` is missing")));
        }
        Some(Node { value: Value::List(entries), .. }) => entries.as_slice(),
        // What a template leaves behind that had nothing to list.
        Some(Node { value: Value::Null, .. }) => &[],
        Some(Node { at, .. }) => return Err(no_list(*at, "`endpoints` is not a list")),
    };
    let mut problems: Vec<Problem> = (fields.iter())
        .filter(|field| field.key != "endpoints")
        .map(|field| {
            let error = unknown_field(field, "", &["endpoints"]);
            Problem { error: or_hint(error, "only `endpoints` is read"), skipped: false }
        })
        .collect();
    let mut specs = Vec::with_capacity(entries.len());
    for (index, entry) in entries.iter().enumerate() {
        let mut reader = Reader { place: place(index, entry), entry, problems: &mut problems };
        if let Some(spec) = reader.endpoint() {
            specs.push((spec, reader.place, entry.at));
        }
    }
    Ok((last_of_each_name(specs, &mut problems), problems))
}

/// The error of a field that is not known, with a similar one that may have been meant as its hint.
fn unknown_field(field: &Entry, place: &str, known: &[&str]) -> ConfigError {
    let key = shown(&field.key);
    ConfigError::at(field.at, format!("{place}unknown field `{key}`"))
        .did_you_mean(key, known.iter().copied())
}

/// The error with this hint, unless it has one.
fn or_hint(error: ConfigError, hint: &str) -> ConfigError {
    if error.hint_text().is_some() { error } else { error.hint(hint) }
}

fn place(index: usize, entry: &Node) -> String {
    match entry.get("name").and_then(Node::text) {
        Some(name) => format!("endpoints[{index}] ({})", shown(name)),
        None => format!("endpoints[{index}]"),
    }
}

/// The start of a text from the file, short enough for a log line.
fn shown(text: &str) -> &str {
    text.char_indices().nth(80).map_or(text, |(end, _)| &text[..end])
}

/// Keeps the last of several endpoints with the same name, and reports the others.
fn last_of_each_name(
    specs: Vec<(EndpointSpec, String, Position)>,
    problems: &mut Vec<Problem>,
) -> Vec<EndpointSpec> {
    let last: HashMap<String, usize> = specs.iter().map(|(spec, ..)| spec.id()).zip(0..).collect();
    let mut kept = Vec::with_capacity(last.len());
    for (index, (spec, place, at)) in specs.into_iter().enumerate() {
        let id = spec.id();
        if last.get(&id) == Some(&index) {
            kept.push(spec);
        } else {
            let what = format!("{place}: a later entry is called {}, too, and counts", shown(&id));
            let error = ConfigError::at(at, what).hint("give each a name of its own");
            problems.push(Problem { error, skipped: true });
        }
    }
    kept
}

/// One entry while it is read.
struct Reader<'n, 'p> {
    place: String,
    entry: &'n Node,
    problems: &'p mut Vec<Problem>,
}

impl<'n> Reader<'n, '_> {
    /// Notes why the entry doesn't count.
    fn skip<T>(&mut self, at: Position, what: &str, hint: &str) -> Option<T> {
        let error = ConfigError::at(at, format!("{}: {what}", self.place)).hint(hint);
        self.problems.push(Problem { error, skipped: true });
        None
    }

    /// The value of a field and where it is; without one, the place of the entry.
    fn field(&self, key: &str) -> (Position, Option<&'n Value>) {
        match self.entry.get(key) {
            None | Some(Node { value: Value::Null, .. }) => (self.entry.at, None),
            Some(Node { at, value }) => (*at, Some(value)),
        }
    }

    fn endpoint(&mut self) -> Option<EndpointSpec> {
        let Value::Map(fields) = &self.entry.value else {
            return self.skip(self.entry.at, "not a map", "write name, address and port");
        };
        // First of all: a field that is misspelt is why another one is missing.
        for field in fields.iter().filter(|field| !FIELDS.contains(&field.key.as_str())) {
            let known = format!("known are {}", FIELDS.join(", "));
            let error = unknown_field(field, &format!("{}: ", self.place), &FIELDS);
            self.problems.push(Problem { error: or_hint(error, &known), skipped: false });
        }
        let name = self.name()?;
        let namespace = match self.field("namespace") {
            (_, None) => "default".to_owned(),
            (_, Some(Value::Text(text))) if text.is_empty() => "default".to_owned(),
            (_, Some(Value::Text(text))) => text.clone(),
            (at, Some(_)) => return self.skip(at, "`namespace` is not text", "put it in quotes"),
        };
        let ip = self.address()?;
        let port = self.port()?;
        let labels = self.labels()?;
        let pod = name.clone();
        Some(EndpointSpec {
            namespace,
            name,
            pod,
            address: SocketAddr::new(ip, port),
            labels,
            rank: 0,
            node: None,
            uid: None,
        })
    }

    fn name(&mut self) -> Option<String> {
        match self.field("name") {
            (_, Some(Value::Text(name))) if !name.is_empty() => Some(name.clone()),
            (at, None | Some(Value::Text(_))) => {
                self.skip(at, "`name` is missing", "every endpoint needs one of its own")
            }
            (at, Some(_)) => self.skip(at, "`name` is not text", "put it in quotes"),
        }
    }

    fn address(&mut self) -> Option<IpAddr> {
        let hint = "write an IP address, such as 10.0.0.1 or fd00::1";
        let (at, text) = match self.field("address") {
            (at, Some(Value::Text(text))) => (at, text),
            (at, None) => return self.skip(at, "`address` is missing", hint),
            (at, Some(_)) => return self.skip(at, "`address` is not text", hint),
        };
        let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
        match bare.parse() {
            Ok(ip) => Some(ip),
            Err(_) => {
                let hint = format!("{hint}; names are not resolved, and the port has its own field");
                self.skip(at, &format!("`address: {}` is no IP address", shown(text)), &hint)
            }
        }
    }

    fn port(&mut self) -> Option<u16> {
        let hint = "write port: \"8000\"";
        let (at, port) = match self.field("port") {
            (at, None) => return self.skip(at, "`port` is missing", hint),
            (at, Some(Value::Text(text))) => (at, text.parse().ok()),
            (at, Some(Value::Int(number))) => (at, u16::try_from(*number).ok()),
            (at, Some(_)) => (at, None),
        };
        match port {
            Some(port) if port != 0 => Some(port),
            _ => self.skip(at, "`port` is not in 1 to 65535", hint),
        }
    }

    fn labels(&mut self) -> Option<BTreeMap<String, String>> {
        let labels = match self.field("labels") {
            (_, None) => return Some(BTreeMap::new()),
            (_, Some(Value::Map(labels))) => labels,
            (at, Some(_)) => return self.skip(at, "`labels` is not a map", "write labels: {key: \"value\"}"),
        };
        let mut read = BTreeMap::new();
        for Entry { key, value, .. } in labels {
            let Some(text) = value.text() else {
                let what = format!("label `{}` is not text", shown(key));
                return self.skip(value.at, &what, "put its value in quotes");
            };
            read.insert(key.clone(), text.to_owned());
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
        (specs, problems.iter().map(|problem| problem.in_file("f")).collect())
    }

    #[test]
    fn yaml_and_json_give_equal_endpoints() {
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
    fn invalid_entry_is_skipped_alone() {
        // entry, what the report says
        let table = [
            ("just text", "not a map (write name, address and port)"),
            ("{address: 10.0.0.9, port: '1'}", "`name` is missing"),
            ("{name: '', address: 10.0.0.9, port: '1'}", "`name` is missing"),
            ("{name: 7, address: 10.0.0.9, port: '1'}", "`name` is not text (put it in quotes)"),
            ("{name: x, namespace: 1, address: 10.0.0.9, port: '1'}", "endpoints[1] (x): `namespace` is not"),
            ("{name: x, port: '1'}", "`address` is missing"),
            ("{name: x, address: pod.local, port: '1'}", "names are not resolved"),
            ("{name: x, address: '10.0.0.9:80', port: '1'}", "`address: 10.0.0.9:80` is no IP address"),
            ("{name: x, address: 10.0.0.9}", "`port` is missing"),
            ("{name: x, address: 10.0.0.9, port: '0'}", "`port` is not in 1 to 65535"),
            ("{name: x, address: 10.0.0.9, port: 65536}", "`port` is not in 1 to 65535"),
            ("{name: x, address: 10.0.0.9, port: http}", "`port` is not in 1 to 65535"),
            ("{name: x, address: 10.0.0.9, port: 80.5}", "`port` is not in 1 to 65535"),
            ("{name: x, address: 10.0.0.9, port: '1', labels: [a]}", "`labels` is not a map"),
            ("{name: x, address: 10.0.0.9, port: '1', labels: {a: 1}}", "label `a` is not text"),
        ];
        for (entry, says) in table {
            let good = |name: &str| format!("{{name: {name}, address: 10.0.0.1, port: '80'}}");
            let text = format!("endpoints:\n- {}\n- {entry}\n- {}\n", good("a"), good("b"));
            let (specs, problems) = read_ok(&text);
            assert_eq!(specs, ["default/a@10.0.0.1:80", "default/b@10.0.0.1:80"], "{entry}");
            assert_eq!(problems.len(), 1, "{entry}");
            assert!(problems[0].starts_with("f:3:"), "{problems:?}");
            assert!(problems[0].contains(": endpoints[1]"), "{problems:?}");
            assert!(problems[0].contains(says) && problems[0].ends_with("); entry skipped"), "{problems:?}");
        }
    }

    #[test]
    fn unknown_fields_are_reported_and_ignored() {
        let (specs, problems) = read_ok(
            "endpoints: [{name: a, address: 10.0.0.1, port: '80', lables: {}, weight: 2}]\nversion: 2\n",
        );
        assert_eq!(specs, ["default/a@10.0.0.1:80"]);
        let want = [
            "f:2:1: unknown field `version` (only `endpoints` is read)",
            "f:1:54: endpoints[0] (a): unknown field `lables` (did you mean `labels`?)",
            "f:1:66: endpoints[0] (a): unknown field `weight` (known are name, namespace, address, port, labels)",
        ];
        assert_eq!(problems, want);
    }

    #[test]
    fn misspelt_field_is_reported_before_the_missing_one() {
        let (specs, problems) = read_ok("endpoints:\n- name: a\n  adress: 10.0.0.1\n  port: '80'\n");
        assert_eq!(specs, [""; 0]);
        let want = [
            "f:3:3: endpoints[0] (a): unknown field `adress` (did you mean `address`?)",
            "f:2:3: endpoints[0] (a): `address` is missing (write an IP address, such as 10.0.0.1 or fd00::1); entry skipped",
        ];
        assert_eq!(problems, want);
        let error = parse("plugins: []\n").unwrap_err().in_file("f");
        assert_eq!(
            error,
            "f:1:1: this is an EndpointPickerConfig, not an endpoints file (serve takes it as --config-file)"
        );
        let error = parse("endpoint:\n- {name: a, address: 10.0.0.1, port: '80'}\n").unwrap_err();
        assert_eq!(error.in_file("f"), "f:1:1: unknown field `endpoint` (did you mean `endpoints`?)");
    }

    #[test]
    fn last_entry_of_a_duplicate_name_wins() {
        let entry =
            |name: &str, last: u8| format!("- {{name: {name}, address: 10.0.0.{last}, port: '80'}}\n");
        let text = format!("endpoints:\n{}{}{}", entry("a", 1), entry("b", 2), entry("a", 3));
        let (specs, problems) = read_ok(&text);
        assert_eq!(specs, ["default/b@10.0.0.2:80", "default/a@10.0.0.3:80"]);
        assert_eq!(problems.len(), 1);
        let says = "f:2:3: endpoints[0] (a): a later entry is called default/a";
        assert!(problems[0].starts_with(says), "{problems:?}");
    }

    #[test]
    fn file_without_an_endpoints_list_is_an_error() {
        for empty in ["endpoints: []", "endpoints:\n", "{\"endpoints\": []}"] {
            assert_eq!(parse(empty).unwrap(), (vec![], vec![]), "{empty}");
        }
        // text, where, what
        let table = [
            ("", "", "the document is empty"),
            ("  \n", "", "the document is empty"),
            ("# nothing\n", "", "the document is empty"),
            ("[]", "1:1:", "not a map with `endpoints`"),
            ("text", "1:1:", "not a map with `endpoints`"),
            ("{}", "1:1:", "`endpoints` is missing"),
            ("pods: []", "1:1:", "`endpoints` is missing"),
            ("endpoints: {}", "1:12:", "`endpoints` is not a list"),
            ("endpoints: x", "1:12:", "`endpoints` is not a list"),
        ];
        for (text, place, what) in table {
            let want = format!(
                "f:{place} {what} (`endpoints: []` is an empty pool, which --allow-empty-endpoints allows)"
            );
            assert_eq!(parse(text).unwrap_err().in_file("f"), want, "{text:?}");
        }
    }

    #[test]
    fn broken_syntax_is_one_line_with_place_and_hint() {
        // text, the line
        let table = [
            ("endpoints: [", "f:1:12: not valid YAML: unclosed bracket '[' (add the closing ']')"),
            ("a: b: c", "f:1:5: not valid YAML: mapping values are not allowed in this context ("),
            ("{\"endpoints\": [}", "f:1:15: not valid YAML: mismatched bracket '[' closed by '}' ("),
            ("endpoints: []\nendpoints: []\n", "f:2:1: 'endpoints' appears twice here (keep one of them)"),
        ];
        for (text, line) in table {
            let error = parse(text).unwrap_err().in_file("f");
            assert!(error.starts_with(line) && error.ends_with(')'), "{text:?}: {error}");
            assert!(!error.contains('\n') && !error.contains("empty pool"), "{text:?}: {error}");
        }
    }
}
