//! Rewrites of model names: exact rules before generic ones, those of older objects before
//! those of newer ones, and within an object in their order.

use std::collections::HashMap;
use std::sync::Arc;

use rand::{Rng, RngExt};

/// An object with rules, as an operator wrote it (InferenceModelRewrite).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelRewrite {
    /// Name, for metrics, and to order objects of the same age.
    pub name: String,
    /// Time at which it was created, in a form that sorts by time (RFC 3339 in UTC, whole seconds).
    pub created: String,
    /// Rules. The first that fits a model counts.
    pub rules: Vec<RewriteRule>,
}

/// A rule: for which models, and what is served instead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RewriteRule {
    /// Names that a client may ask for, matched exactly. `None`: any, and also a request
    /// that names no model.
    pub models: Option<Vec<String>>,
    /// Models that are served instead.
    pub targets: Vec<Target>,
}

/// A model that is served instead of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Name of the model.
    pub model: String,
    /// Share, of the sum of all shares of the rule. Where no target has one, all are
    /// the same; where some have, the others get nothing.
    pub weight: Option<u32>,
}

/// Rules of all objects, ready to look up.
#[derive(Clone, Debug, Default)]
pub struct Rewrites {
    exact: HashMap<String, Arc<Choice>>,
    generic: Option<Arc<Choice>>,
}

/// Result of a rewrite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewritten {
    /// Name of the object whose rule it was.
    pub by: Arc<str>,
    /// The model to serve.
    pub model: Arc<str>,
}

/// Models of which one is drawn.
#[derive(Debug)]
struct Choice {
    by: Arc<str>,
    /// The sum of weights up to and including each model; strictly increasing.
    targets: Vec<(u64, Arc<str>)>,
}

impl Choice {
    /// `None` where there is nothing to draw.
    fn new(by: &Arc<str>, targets: &[Target]) -> Option<Arc<Self>> {
        let usable = || targets.iter().filter(|target| !target.model.is_empty());
        let weighted = usable().any(|target| target.weight.is_some_and(|weight| weight > 0));
        let mut sum = 0;
        let targets = usable().filter_map(|target| {
            let weight = if weighted { target.weight.unwrap_or(0) } else { 1 };
            sum += u64::from(weight);
            (weight > 0).then(|| (sum, Arc::from(target.model.as_str())))
        });
        let targets: Vec<_> = targets.collect();
        (!targets.is_empty()).then(|| Arc::new(Self { by: Arc::clone(by), targets }))
    }

    fn draw(&self, rng: &mut dyn Rng) -> Rewritten {
        let model = match &self.targets[..] {
            [(_, only)] => only,
            several => {
                let sum = several.last().map_or(1, |(sum, _)| *sum);
                let drawn = rng.random_range(0..sum);
                &several[several.partition_point(|(upto, _)| *upto <= drawn)].1
            }
        };
        Rewritten { by: Arc::clone(&self.by), model: Arc::clone(model) }
    }
}

impl Rewrites {
    /// The rules of these objects, in whatever order they are given.
    pub fn new<'a>(objects: impl IntoIterator<Item = &'a ModelRewrite>) -> Self {
        let mut objects: Vec<&ModelRewrite> = objects.into_iter().collect();
        objects.sort_by_key(|object| (&object.created, &object.name));
        let mut rewrites = Self::default();
        for object in objects {
            let by: Arc<str> = Arc::from(object.name.as_str());
            for rule in &object.rules {
                let Some(choice) = Choice::new(&by, &rule.targets) else { continue };
                match &rule.models {
                    None => rewrites.generic = rewrites.generic.or(Some(choice)),
                    Some(models) => {
                        for model in models {
                            rewrites.exact.entry(model.clone()).or_insert_with(|| Arc::clone(&choice));
                        }
                    }
                }
            }
        }
        rewrites
    }

    /// Returns `true` if there is no rule at all.
    pub fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.generic.is_none()
    }

    /// Draws the model to serve where a client asked for `model`, which is empty where it named none.
    /// `None`: no rule fits.
    pub fn draw(&self, model: &str, rng: &mut dyn Rng) -> Option<Rewritten> {
        if self.is_empty() {
            return None;
        }
        self.exact.get(model).or(self.generic.as_ref()).map(|choice| choice.draw(rng))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    fn object(name: &str, created: &str, rules: Vec<RewriteRule>) -> ModelRewrite {
        ModelRewrite { name: name.to_owned(), created: created.to_owned(), rules }
    }

    fn rule(models: &[&str], to: &[(&str, Option<u32>)]) -> RewriteRule {
        let models: Vec<String> = models.iter().map(|model| (*model).to_owned()).collect();
        let targets = to.iter().map(|(model, weight)| Target { model: (*model).to_owned(), weight: *weight });
        RewriteRule { models: (!models.is_empty()).then_some(models), targets: targets.collect() }
    }

    fn served(rewrites: &Rewrites, model: &str) -> Option<String> {
        let drawn = rewrites.draw(model, &mut StdRng::seed_from_u64(1));
        drawn.map(|drawn| format!("{} by {}", drawn.model, drawn.by))
    }

    #[test]
    fn exact_and_older_rewrite_rules_come_first() {
        let (old, new) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z");
        let objects = [
            object("b", new, vec![rule(&["gold"], &[("newer", None)]), rule(&["tin"], &[("tin-b", None)])]),
            object("z", old, vec![rule(&[], &[("catch", None)]), rule(&[], &[("never", None)])]),
            object("c", new, vec![rule(&["tin", "iron"], &[("tin-c", None)])]),
            object(
                "a",
                new,
                vec![rule(&["gold", "x"], &[("first", None)]), rule(&["x"], &[("second", None)])],
            ),
            object("0", old, vec![rule(&["gold"], &[])]),
        ];
        // In every order, as the API server gives none.
        for turn in 0..objects.len() {
            let mut turned = objects.to_vec();
            turned.rotate_left(turn);
            let rewrites = Rewrites::new(&turned);
            // model, what is served
            let table = [
                ("gold", "first by a"),
                ("x", "first by a"),
                ("tin", "tin-b by b"),
                ("iron", "tin-c by c"),
                ("Gold", "catch by z"),
                ("", "catch by z"),
            ];
            for (model, expected) in table {
                assert_eq!(served(&rewrites, model).as_deref(), Some(expected), "{model} {turn}");
            }
        }
        let exact = Rewrites::new(&objects[..1]);
        assert_eq!(served(&exact, "silver"), None);
        assert_eq!(served(&exact, ""), None);
    }

    #[test]
    fn rule_without_a_usable_target_is_ignored() {
        let objects = [
            object("a", "", vec![rule(&["gold"], &[("", Some(3))]), rule(&["tin"], &[])]),
            object("b", "", vec![rule(&["gold"], &[("v2", None)])]),
        ];
        let rewrites = Rewrites::new(&objects);
        assert_eq!(served(&rewrites, "gold").as_deref(), Some("v2 by b"));
        assert_eq!(served(&rewrites, "tin"), None);
        assert!(Rewrites::new(&objects[..1]).is_empty());
    }

    /// The share of each target of a rule over 10,000 draws.
    fn shares(to: &[(&str, Option<u32>)]) -> Vec<f64> {
        let rewrites = Rewrites::new(&[object("r", "", vec![rule(&["m"], to)])]);
        let mut rng = StdRng::seed_from_u64(7);
        let drawn: Vec<_> = (0..10_000).filter_map(|_| rewrites.draw("m", &mut rng)).collect();
        assert_eq!(drawn.len(), 10_000);
        let of = |name: &str| drawn.iter().filter(|drawn| drawn.model.as_ref() == name).count() as f64 / 1e4;
        to.iter().map(|(name, _)| of(name)).collect()
    }

    #[test]
    fn a_split_follows_its_weights_within_one_percent() {
        // targets, shares
        let table: [(&[(&str, Option<u32>)], &[f64]); 7] = [
            (&[("stable", Some(90)), ("canary", Some(10))], &[0.9, 0.1]),
            (&[("a", Some(1)), ("b", Some(1)), ("c", Some(2))], &[0.25, 0.25, 0.5]),
            (&[("stable", Some(1_000_000)), ("canary", Some(1))], &[1.0, 0.0]),
            (&[("a", None), ("b", None), ("c", None), ("d", None)], &[0.25; 4]),
            (&[("a", Some(0)), ("b", Some(0))], &[0.5, 0.5]),
            (&[("weighted", Some(5)), ("not", None)], &[1.0, 0.0]),
            (&[("only", Some(3))], &[1.0]),
        ];
        for (targets, expected) in table {
            for (share, expected) in shares(targets).iter().zip(expected) {
                assert!((share - expected).abs() < 0.01, "{targets:?}: {share} for {expected}");
            }
        }
    }

    proptest! {
        #[test]
        fn only_a_target_with_a_share_is_served(
            targets in proptest::collection::vec(("[a-d]{0,2}", proptest::option::of(0u32..4)), 0..6),
            seed: u64,
        ) {
            let targets: Vec<(&str, Option<u32>)> = targets.iter().map(|(m, w)| (m.as_str(), *w)).collect();
            let rewrites = Rewrites::new(&[object("r", "", vec![rule(&[], &targets)])]);
            let any_weight = targets.iter().any(|(m, w)| !m.is_empty() && w.is_some_and(|w| w > 0));
            let fits = |m: &str| targets.iter().any(|(t, w)| {
                *t == m && !m.is_empty() && (!any_weight || w.is_some_and(|w| w > 0))
            });
            match rewrites.draw("model", &mut StdRng::seed_from_u64(seed)) {
                Some(drawn) => prop_assert!(fits(&drawn.model)),
                None => prop_assert!(!targets.iter().any(|(m, _)| fits(m))),
            }
        }
    }
}
