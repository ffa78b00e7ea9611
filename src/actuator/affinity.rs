//! Node affinity of pods: matching nodes, and the topology domain that a pod was sent to.

use std::collections::BTreeMap;

use serde_json::Value;

const REQUIRED: &str = "/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
const PREFERRED: &str = "/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution";

/// Returns `true` if a node matches a pod's required node affinity. Pod affinity and preferences are ignored.
pub(super) fn takes(affinity: Option<&Value>, name: &str, labels: &BTreeMap<String, String>) -> bool {
    let terms = affinity.and_then(|affinity| affinity.pointer(REQUIRED)).and_then(Value::as_array);
    terms.is_none_or(|terms| terms.iter().any(|term| fits(term, name, labels)))
}

fn list<'a>(of: &'a Value, key: &str) -> &'a [Value] {
    of.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn fits(term: &Value, name: &str, labels: &BTreeMap<String, String>) -> bool {
    let (expressions, fields) = (list(term, "matchExpressions"), list(term, "matchFields"));
    // An empty term matches no node.
    let is_empty = expressions.is_empty() && fields.is_empty();
    let label = |key: &str| labels.get(key).map(String::as_str);
    let field = |key: &str| (key == "metadata.name").then_some(name);
    !is_empty
        && expressions.iter().all(|expression| holds(expression, label))
        && fields.iter().all(|expression| holds(expression, field))
}

fn holds<'n>(expression: &Value, of: impl Fn(&str) -> Option<&'n str>) -> bool {
    let text = |key: &str| expression.get(key).and_then(Value::as_str).unwrap_or_default();
    let found = of(text("key"));
    let values: Vec<&str> = list(expression, "values").iter().filter_map(Value::as_str).collect();
    let number = |text: &str| text.parse::<i64>().ok();
    let compared = || Some((number(found?)?, number(values.first()?)?));
    match text("operator") {
        "In" => found.is_some_and(|found| values.contains(&found)),
        "NotIn" => found.is_none_or(|found| !values.contains(&found)),
        "Exists" => found.is_some(),
        "DoesNotExist" => found.is_none(),
        "Gt" => compared().is_some_and(|(found, than)| found > than),
        "Lt" => compared().is_some_and(|(found, than)| found < than),
        _ => false,
    }
}

/// Domain, of one of these layers, that a pod was sent to: the last one that its affinity names, required
/// terms before preferred ones.
pub(super) fn sent_to<'a>(affinity: Option<&'a Value>, layers: &[String]) -> Option<(&'a str, &'a str)> {
    let affinity = affinity?;
    let terms = |pointer: &str| affinity.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
    let required = terms(REQUIRED).take(1);
    let preferred = terms(PREFERRED).filter_map(|wish| wish.get("preference"));
    let in_domain = |expression: &'a Value| {
        let key = expression.get("key")?.as_str().filter(|key| layers.iter().any(|layer| layer == key))?;
        match (expression.get("operator")?.as_str()?, list(expression, "values")) {
            ("In", [one]) => Some((key, one.as_str()?)),
            _ => None,
        }
    };
    preferred.chain(required).flat_map(|term| list(term, "matchExpressions")).filter_map(in_domain).last()
}

/// Removes the term that sends a pod to this domain (`layer=domain`).
pub(super) fn without(affinity: &Value, sent: &str) -> Value {
    let Some((layer, domain)) = sent.split_once('=') else { return affinity.clone() };
    let is_ours = |expression: &Value| {
        expression.get("key").is_some_and(|key| key == layer)
            && list(expression, "values") == [Value::from(domain)]
    };
    let mut affinity = affinity.clone();
    // Ours is the last of each, and the pod may have had the same before.
    if let Some(Value::Array(terms)) = affinity.pointer_mut(REQUIRED) {
        for term in &mut *terms {
            if let Some(Value::Array(all)) = term.get_mut("matchExpressions")
                && all.last().is_some_and(is_ours)
            {
                all.pop();
            }
        }
        // An empty term was made by Usher, and matches no node.
        terms.retain(|term| {
            !list(term, "matchExpressions").is_empty() || !list(term, "matchFields").is_empty()
        });
        if terms.is_empty()
            && let Some(Value::Object(node)) = affinity.get_mut("nodeAffinity")
        {
            node.remove("requiredDuringSchedulingIgnoredDuringExecution");
        }
    }
    affinity
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn required(terms: &Value) -> Value {
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}})
    }

    #[test]
    fn pod_node_affinity_terms_choose_nodes() {
        let labels: BTreeMap<String, String> = [("gpu", "h100"), ("generation", "9")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let takes = |affinity: Option<&Value>| takes(affinity, "n", &labels);
        let expression = |key: &str, operator: &str, values: &[&str]| json!({"key": key, "operator": operator, "values": values});
        for (key, operator, values, expected) in [
            ("gpu", "In", &["a100", "h100"][..], true),
            ("gpu", "In", &["a100"], false),
            ("other", "In", &["h100"], false),
            ("gpu", "NotIn", &["h100"], false),
            ("other", "NotIn", &["h100"], true),
            ("gpu", "Exists", &[], true),
            ("gpu", "DoesNotExist", &[], false),
            ("generation", "Gt", &["8"], true),
            ("generation", "Gt", &["9"], false),
            ("generation", "Lt", &["10"], true),
            ("gpu", "Lt", &["10"], false),
            ("gpu", "Like", &["h100"], false),
        ] {
            let term = json!({"matchExpressions": [expression(key, operator, values)]});
            let affinity = required(&json!([term]));
            assert_eq!(takes(Some(&affinity)), expected, "{term}");
        }
        let no = json!({"matchExpressions": [expression("gpu", "DoesNotExist", &[])]});
        let name = json!({"matchFields": [expression("metadata.name", "In", &["n"])]});
        assert!(takes(Some(&required(&json!([no, name])))), "one of them is enough");
        let mut both = name.clone();
        both["matchExpressions"] = no["matchExpressions"].clone();
        assert!(!takes(Some(&required(&json!([both, {}])))));
        assert!(takes(None) && takes(Some(&json!({"podAntiAffinity": {}}))));
    }

    #[test]
    fn placement_affinity_is_removed_from_own_terms() {
        let ours = json!({"key": "rack", "operator": "In", "values": ["r1"]});
        let own = json!({"key": "gpu", "operator": "In", "values": ["h100"]});
        let both = required(
            &json!([{"matchExpressions": [own, ours]}, {"matchFields": [own], "matchExpressions": [ours]}]),
        );
        let left =
            required(&json!([{"matchExpressions": [own]}, {"matchFields": [own], "matchExpressions": []}]));
        assert_eq!(without(&both, "rack=r1"), left);
        let only = required(&json!([{"matchExpressions": [ours]}]));
        assert_eq!(without(&only, "rack=r1"), json!({"nodeAffinity": {}}));
        assert_eq!(without(&only, "rack=r2"), only, "it was sent somewhere else");
        // The pod's own terms stay, equal ones included.
        let twice = required(&json!([{"matchExpressions": [ours, ours]}]));
        assert_eq!(without(&twice, "rack=r1"), only);
    }

    #[test]
    fn placement_is_read_from_the_affinity() {
        let layers = ["host", "rack"].map(str::to_owned);
        let own = json!({"key": "rack", "operator": "In", "values": ["r1"]});
        let others = json!({"key": "gpu", "operator": "In", "values": ["h100"]});
        let several = json!({"key": "rack", "operator": "In", "values": ["r1", "r2"]});
        let hard = required(&json!([{"matchExpressions": [others, several, own]}]));
        assert_eq!(sent_to(Some(&hard), &layers), Some(("rack", "r1")));
        let soft = json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "preference": {"matchExpressions": [others]}},
            {"weight": 100, "preference": {"matchExpressions": [own]}},
        ]}});
        assert_eq!(sent_to(Some(&soft), &layers), Some(("rack", "r1")));
        assert_eq!(sent_to(Some(&soft), &layers[..1]), None);
        assert_eq!(sent_to(None, &layers), None);
    }
}
