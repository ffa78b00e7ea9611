//! The notation in which a configuration names a metric.

use super::exposition::MetricSpec;

/// Reads a metric and labels of its series, written as a PromQL instant selector:
/// `name{label=value,other="value"}`. Quotes around values are optional, unless the
/// value has a comma; within quotes a backslash makes the next character an ordinary one.
///
/// # Errors
/// A sentence that quotes what is wrong.
pub fn parse(text: &str) -> Result<MetricSpec, String> {
    let text = text.trim();
    let (metric, labels) = match text.split_once('{') {
        None => (text, ""),
        Some((metric, rest)) => {
            let labels = rest.strip_suffix('}').ok_or_else(|| format!("{text:?} has no closing brace"))?;
            (metric.trim(), labels)
        }
    };
    if !is_name(metric, true) {
        return Err(format!("{metric:?} is not a metric's name"));
    }
    let mut rest = labels.trim();
    let mut pairs = Vec::new();
    while !rest.is_empty() {
        let (name, value) = rest.split_once('=').ok_or_else(|| format!("{rest:?} is not label=value"))?;
        let name = name.trim();
        if !is_name(name, false) {
            return Err(format!("{name:?} is not a label's name"));
        }
        let (value, behind) = value_of(value.trim_start())?;
        pairs.push((name.to_owned(), value));
        rest = behind.trim_start();
    }
    Ok(MetricSpec { name: metric.to_owned(), labels: pairs })
}

/// A value, and what is behind its comma.
fn value_of(text: &str) -> Result<(String, &str), String> {
    let wrong = |value: &str| format!("{value:?} is not a label's value; only = is known");
    let Some(quoted) = text.strip_prefix('"') else {
        let (value, behind) = text.split_once(',').unwrap_or((text, ""));
        let value = value.trim();
        let is_plain = !value.contains('"') && !value.starts_with('~');
        return if is_plain { Ok((value.to_owned(), behind)) } else { Err(wrong(value)) };
    };
    let mut value = String::new();
    let mut rest = quoted.chars();
    loop {
        match rest.next() {
            Some('"') => break,
            Some('\\') => value.extend(rest.next()),
            Some(c) => value.push(c),
            None => return Err(format!("{text:?} has no closing quote")),
        }
    }
    let behind = rest.as_str().trim_start();
    match behind.strip_prefix(',') {
        Some(behind) => Ok((value, behind)),
        None if behind.is_empty() => Ok((value, "")),
        None => Err(wrong(text)),
    }
}

fn is_name(text: &str, colons: bool) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || (colons && c == ':');
    !text.is_empty() && !text.starts_with(|c: char| c.is_ascii_digit()) && text.chars().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_read() {
        let table: [(&str, &str, &[(&str, &str)]); 7] = [
            ("vllm:num_requests_waiting", "vllm:num_requests_waiting", &[]),
            (" up {} ", "up", &[]),
            ("m{request_type=waiting}", "m", &[("request_type", "waiting")]),
            ("m{ a=\"x y\" , b = z, }", "m", &[("a", "x y"), ("b", "z")]),
            ("m{a=\"x,y=}\",b=\"\"}", "m", &[("a", "x,y=}"), ("b", "")]),
            ("m{a=\"1\\\"2\\\\\"}", "m", &[("a", "1\"2\\")]),
            ("m{a=b{c}", "m", &[("a", "b{c")]),
        ];
        for (text, metric, labels) in table {
            let selector = parse(text).unwrap();
            let got: Vec<_> = selector.labels.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
            assert_eq!((selector.name.as_str(), got.as_slice()), (metric, labels), "{text}");
        }
    }

    #[test]
    fn invalid_selector_is_quoted_in_the_error() {
        let table = [
            "",
            "1up",
            "a-b",
            "m{a=b",
            "m{a}",
            "m{1=b}",
            "m{a:b=c}",
            "m{a=~b}",
            "m{a=\"b\"c\"}",
            "é",
            "m{a=~\"b\"}",
            "m{a!=b}",
            "m{a=\"b}",
            "m{a=\"b\" c}",
            "m{,}",
            "m{a=b,,c=d}",
            "{a=b}",
        ];
        for text in table {
            assert!(parse(text).unwrap_err().contains('"'), "{text}");
        }
    }
}
