//! Filters by labels: roles, selectors, single labels.

use proptest::prelude::*;
use usher::endpoints::{ROLE_LABEL, Store};
use usher::schedule::{
    ByLabelFilter, ByLabelParams, LabelExpression, LabelOperator, LabelSelector, LabelSelectorFilter,
    RoleFilter,
};

use crate::pool::{Pool, all, asking, filtered, labelled, profile_of};

#[test]
fn role_labels_match_llm_d_router() {
    // label, encodes, prefills, decodes
    let table = [
        (None, [false, false, true]),
        (Some("encode"), [true, false, false]),
        (Some("prefill"), [false, true, false]),
        (Some("decode"), [false, false, true]),
        (Some("encode-prefill"), [true, true, false]),
        (Some("prefill-decode"), [false, true, true]),
        (Some("both"), [false, true, true]),
        (Some("encode-prefill-decode"), [true, true, true]),
        (Some("encode-decode"), [false, false, false]),
        (Some("Decode"), [false, false, false]),
        (Some(""), [false, false, false]),
    ];
    let labels: Vec<Vec<(&str, &str)>> =
        table.iter().map(|(role, _)| role.iter().map(|role| (ROLE_LABEL, *role)).collect()).collect();
    let labels: Vec<&[(&str, &str)]> = labels.iter().map(Vec::as_slice).collect();
    let endpoints = all(labelled(&labels));
    for (stage, filter) in [RoleFilter::Encode, RoleFilter::Prefill, RoleFilter::Decode].iter().enumerate() {
        let expected: Vec<u32> =
            (0u32..).zip(&table).filter(|(_, (_, does))| does[stage]).map(|(position, _)| position).collect();
        assert_eq!(filtered(filter, &endpoints), expected, "{filter:?}");
    }
}

#[test]
fn filters_of_a_profile_narrow_one_after_the_other() {
    let role = |role| (ROLE_LABEL, role);
    let gold = ("tier", "gold");
    let endpoints =
        || labelled(&[&[role("prefill"), gold], &[role("decode"), gold], &[role("decode")], &[gold], &[]]);
    let table: [(&[&str], &[u32]); 7] = [
        (&["type: decode-filter"], &[1, 2, 3, 4]),
        (&["type: prefill-filter"], &[0]),
        (&["type: encode-filter"], &[]),
        (
            &["type: decode-filter", "type: label-selector-filter, parameters: {matchLabels: {tier: gold}}"],
            &[1, 3],
        ),
        (&["type: by-label-selector, parameters: {matchLabels: {tier: gold}}", "type: prefill-filter"], &[0]),
        (&["type: by-label, parameters: {label: tier, validValues: [gold, silver]}"], &[0, 1, 3]),
        (&["type: label-selector-filter"], &[0, 1, 2, 3, 4]),
    ];
    for (plugins, expected) in table {
        let pool = Pool::new(&profile_of(plugins), endpoints());
        assert_eq!(pool.kept(&asking(&[])), expected, "{plugins:?}");
    }
}

#[test]
fn all_selector_requirements_must_match() {
    let endpoints = || {
        labelled(&[
            &[],
            &[("tier", "gold")],
            &[("tier", "iron")],
            &[("tier", "")],
            &[("tier", "gold"), ("zone", "a")],
            &[("zone", "b")],
        ])
    };
    let table: [(&str, &[u32]); 13] = [
        ("{}", &[0, 1, 2, 3, 4, 5]),
        ("{matchLabels: {}, matchExpressions: []}", &[0, 1, 2, 3, 4, 5]),
        ("{matchLabels: {tier: gold}}", &[1, 4]),
        ("{matchLabels: {tier: ''}}", &[3]),
        ("{matchLabels: {tier: gold, zone: a}}", &[4]),
        ("{matchExpressions: [{key: tier, operator: In, values: [gold, iron]}]}", &[1, 2, 4]),
        ("{matchExpressions: [{key: tier, operator: NotIn, values: [gold]}]}", &[0, 2, 3, 5]),
        ("{matchExpressions: [{key: tier, operator: Exists}]}", &[1, 2, 3, 4]),
        ("{matchExpressions: [{key: tier, operator: DoesNotExist, values: []}]}", &[0, 5]),
        ("{matchLabels: {zone: a}, matchExpressions: [{key: tier, operator: Exists}]}", &[4]),
        (
            "{matchExpressions: [{key: tier, operator: Exists}, {key: tier, operator: NotIn, values: [iron]}]}",
            &[1, 3, 4],
        ),
        ("{matchExpressions: [{key: tier, operator: Exists}, {key: tier, operator: DoesNotExist}]}", &[]),
        ("{matchLabels: {example.com/none: x}}", &[]),
    ];
    for (selector, expected) in table {
        let plugin = format!("type: label-selector-filter, parameters: {selector}");
        let pool = Pool::new(&profile_of(&[&plugin]), endpoints());
        assert_eq!(pool.kept(&asking(&[])), expected, "{selector}");
    }
}

#[test]
fn changed_labels_are_seen() {
    let store = Store::default();
    let selector =
        LabelSelector { match_labels: [("tier".to_owned(), "gold".to_owned())].into(), ..Default::default() };
    let params = ByLabelParams {
        label: "tier".to_owned(),
        valid_values: vec!["gold".to_owned()],
        allows_no_label: false,
    };
    let (by_selector, by_label) = (LabelSelectorFilter::new(selector), ByLabelFilter::new(params));
    let tables: [(&[&str], &[u32]); 4] = [
        (&["gold", "iron"], &[0]),
        (&["iron", "gold"], &[1]),
        (&["iron", "iron", "gold"], &[2]),
        (&["gold"], &[0]),
    ];
    for (tiers, expected) in tables {
        let labels: Vec<[(&str, &str); 1]> = tiers.iter().map(|tier| [("tier", *tier)]).collect();
        store.replace(labelled(&labels.iter().map(<[_; 1]>::as_slice).collect::<Vec<_>>()));
        let candidates = store.snapshot().all();
        assert_eq!(filtered(&by_selector, &candidates), expected, "{tiers:?}");
        assert_eq!(filtered(&by_label, &candidates), expected, "{tiers:?}");
    }
}

#[test]
fn a_missing_label_is_an_empty_one() {
    let endpoints = all(labelled(&[&[], &[("zone", "a")], &[("zone", "c")], &[("zone", "")]]));
    let table: [(&[&str], bool, &[u32]); 6] = [
        (&["a", "b"], false, &[1]),
        (&["a", "b"], true, &[0, 1]),
        (&["a", ""], false, &[0, 1, 3]),
        (&[""], true, &[0, 3]),
        (&[], true, &[0]),
        (&[], false, &[]),
    ];
    for (values, allows_no_label, expected) in table {
        let valid_values = values.iter().map(|value| (*value).to_owned()).collect();
        let params = ByLabelParams { label: "zone".to_owned(), valid_values, allows_no_label };
        assert_eq!(
            filtered(&ByLabelFilter::new(params), &endpoints),
            expected,
            "{values:?} {allows_no_label}"
        );
    }
}

/// The rules once more, over plain lists of labels.
mod reference {
    use usher::schedule::{LabelOperator, LabelSelector};

    pub(super) fn matches(selector: &LabelSelector, labels: &[(&str, &str)]) -> bool {
        let mut matches = true;
        for (key, value) in &selector.match_labels {
            let mut found = false;
            for (has, of) in labels {
                found |= has == key && of == value;
            }
            matches &= found;
        }
        for expression in &selector.match_expressions {
            let (mut there, mut listed) = (false, false);
            for (has, of) in labels {
                if *has == expression.key {
                    there = true;
                    for value in &expression.values {
                        listed |= value == of;
                    }
                }
            }
            matches &= match expression.operator {
                LabelOperator::In => there && listed,
                LabelOperator::NotIn => !there || !listed,
                LabelOperator::Exists => there,
                LabelOperator::DoesNotExist => !there,
            };
        }
        matches
    }
}

const KEYS: [&str; 3] = ["a", "b", "c"];
const VALUES: [&str; 3] = ["", "x", "y"];

fn expression() -> impl Strategy<Value = LabelExpression> {
    let operators =
        [LabelOperator::In, LabelOperator::NotIn, LabelOperator::Exists, LabelOperator::DoesNotExist];
    let values = proptest::collection::vec(prop::sample::select(&VALUES[..]), 0..3);
    (prop::sample::select(&KEYS[..]), prop::sample::select(operators.to_vec()), values).prop_map(
        |(key, operator, values)| LabelExpression {
            key: key.to_owned(),
            operator,
            values: values.into_iter().map(str::to_owned).collect(),
        },
    )
}

fn labels() -> impl Strategy<Value = Vec<(&'static str, &'static str)>> {
    let value = proptest::option::of(prop::sample::select(&VALUES[..]));
    [value.clone(), value.clone(), value].prop_map(|values| {
        KEYS.into_iter().zip(values).filter_map(|(key, value)| Some((key, value?))).collect()
    })
}

proptest! {
    #[test]
    fn selectors_equal_their_reference(
        fixed in labels(),
        match_expressions in proptest::collection::vec(expression(), 0..3),
        endpoints in proptest::collection::vec(labels(), 1..12),
    ) {
        let match_labels = fixed.into_iter().take(2).map(|(key, value)| (key.into(), value.into())).collect();
        let selector = LabelSelector { match_labels, match_expressions };
        let lists: Vec<&[(&str, &str)]> = endpoints.iter().map(Vec::as_slice).collect();
        let expected: Vec<u32> =
            (0u32..).zip(&lists).filter(|(_, labels)| reference::matches(&selector, labels)).map(|(p, _)| p).collect();
        prop_assert_eq!(filtered(&LabelSelectorFilter::new(selector), &all(labelled(&lists))), expected);
    }
}
