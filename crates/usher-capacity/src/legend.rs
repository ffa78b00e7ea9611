//! Meanings of the codes in plans, for users.

use std::collections::BTreeMap;

use schemars::{JsonSchema, schema_for};
use serde_json::Value;

/// Meanings of an enum's variants, from their documentation.
pub fn meanings<T: JsonSchema>() -> BTreeMap<String, String> {
    let schema = schema_for!(T);
    let variants = schema.get("oneOf").and_then(Value::as_array);
    let meaning = |variant: &Value| {
        let text = |key: &str| variant.get(key).and_then(Value::as_str).map(|text| text.replace('\n', " "));
        Some((text("const")?, text("description")?))
    };
    variants.into_iter().flatten().filter_map(meaning).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Condition, Reason};

    #[test]
    fn every_code_has_a_meaning() {
        let reasons = meanings::<Reason>();
        let expected = "Raised to the minimum of the role or the group.";
        assert_eq!(reasons.get("Min").map(String::as_str), Some(expected));
        let conditions = meanings::<Condition>();
        for condition in Condition::ALL {
            assert!(conditions.contains_key(&format!("{condition:?}")), "{condition:?}");
        }
        assert!(reasons.len() > 30, "{reasons:?}");
    }
}
