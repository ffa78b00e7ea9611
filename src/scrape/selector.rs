//! The notation in which a configuration names a metric.

/// Names a metric and some of its labels, as a PromQL instant selector does:
/// `name{label=value,other="value"}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selector {
    /// Name of the metric.
    pub(super) metric: String,
    /// Labels that a series must have, with their values.
    pub(super) labels: Vec<(String, String)>,
}

impl Selector {
    /// Reads a selector. Quotes around values are optional.
    ///
    /// # Errors
    /// A sentence that quotes what is wrong.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (metric, labels) = match text.split_once('{') {
            None => (text, ""),
            Some((metric, rest)) => {
                let labels =
                    rest.strip_suffix('}').ok_or_else(|| format!("{text:?} has no closing brace"))?;
                (metric.trim(), labels.trim())
            }
        };
        if !is_name(metric, true) {
            return Err(format!("{metric:?} is not a metric's name"));
        }
        let labels = labels.strip_suffix(',').unwrap_or(labels);
        let pairs = labels.split(',').filter(|_| !labels.is_empty()).map(pair).collect::<Result<_, _>>()?;
        Ok(Self { metric: metric.to_owned(), labels: pairs })
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("{text:?} is not label=value"))?;
    let (name, value) = (name.trim(), value.trim());
    if !is_name(name, false) {
        return Err(format!("{name:?} is not a label's name"));
    }
    let unquoted = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value);
    if unquoted.contains('"') || unquoted.starts_with('~') {
        return Err(format!("{value:?} is not a label's value; only = is known"));
    }
    Ok((name.to_owned(), unquoted.to_owned()))
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
        let table: [(&str, &str, &[(&str, &str)]); 4] = [
            ("vllm:num_requests_waiting", "vllm:num_requests_waiting", &[]),
            (" up {} ", "up", &[]),
            ("m{request_type=waiting}", "m", &[("request_type", "waiting")]),
            ("m{ a=\"x y\" , b = z, }", "m", &[("a", "x y"), ("b", "z")]),
        ];
        for (text, metric, labels) in table {
            let selector = Selector::parse(text).unwrap();
            let got: Vec<_> = selector.labels.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
            assert_eq!((selector.metric.as_str(), got.as_slice()), (metric, labels), "{text}");
        }
    }

    #[test]
    fn what_is_no_selector_is_quoted() {
        for text in ["", "1up", "a-b", "m{a=b", "m{a}", "m{1=b}", "m{a:b=c}", "m{a=~b}", "m{a=\"b\"c\"}", "é"]
        {
            assert!(Selector::parse(text).unwrap_err().contains('"'), "{text}");
        }
    }
}
