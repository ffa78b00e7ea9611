//! Checks that capacity policies can be carried out, and that no pod waits at a gate without an opener.

use std::collections::{BTreeMap, BTreeSet};

use crate::actuator::held_back::HeldBack;
use crate::actuator::pods::PodObject;
use crate::actuator::pools::may_have;
use crate::doctor::finding::{Finding, Outcome, count};
use crate::doctor::rules;
use crate::doctor::seen::{Capacity, CapacityPolicy, CapacityRight, CapacityRole, Observations};

use super::preconditions::responded;

pub(super) fn check(seen: &Observations) -> Outcome {
    let cluster = match responded(&seen.cluster) {
        Ok(cluster) => cluster,
        Err(outcome) => return outcome,
    };
    let capacity = match &cluster.capacity {
        Ok(capacity) => capacity,
        Err(reason) => return Outcome::skipped(format!("capacity policies can't be read: {reason}")),
    };
    if capacity.policies.is_empty() && capacity.gated.is_empty() && capacity.held.is_empty() {
        return Outcome::skipped(
            "no CapacityPolicy in the namespace; with one in a file give --capacity-policy",
        );
    }
    let mut findings = Vec::new();
    let mut unknown = Vec::new();
    let mut unseen: Vec<String> = Vec::new();
    for policy in &capacity.policies {
        if let Some(problem) = &policy.problem {
            let what = format!("policy {} is not in force as it is written: {problem}", policy.name);
            findings.push(Finding::new(&rules::CAPACITY_POLICY_REFUSED, what));
        }
        match &policy.rights {
            Ok(rights) => findings.extend(of_rights(policy, rights, &cluster.account)),
            Err(reason) => unknown.push(reason.as_str()),
        }
        findings.extend(policy.roles.iter().filter_map(|role| of_target(policy, role)));
        unseen.extend(policy.roles.iter().filter_map(|role| {
            let (target, reason) = (role.target.as_ref()?, role.is_there.as_ref()?.as_ref().err()?);
            Some(format!("{} {}: {reason}", target.kind, target.name))
        }));
    }
    findings.extend(shared(&capacity.policies));
    findings.extend(overlapping(capacity));
    findings.extend(orphaned(capacity));
    findings.extend(held_for_nobody(capacity));
    let mut at = format!(
        "{}, {} at a gate",
        count(capacity.policies.len(), "policy", "policies"),
        count(capacity.gated.len(), "pod", "pods")
    );
    if let Some(reason) = unknown.first() {
        at.push_str(&format!("; rights are not known: {reason}"));
    }
    if let Some(reason) = capacity.unlisted.first() {
        at.push_str(&format!("; updates that are held back can't be looked for: {reason}"));
    }
    if !unseen.is_empty() {
        at.push_str(&format!("; targets can't be looked for: {}", unseen.join("; ")));
    }
    Outcome::looked(at, findings)
}

fn of_rights(policy: &CapacityPolicy, rights: &[(CapacityRight, bool)], account: &str) -> Vec<Finding> {
    let mut missing: BTreeMap<(bool, bool, &str, &str), Vec<&str>> = BTreeMap::new();
    for (right, _) in rights.iter().filter(|(_, allowed)| !allowed) {
        let CapacityRight { group, resource, verb, is_needed, everywhere } = right;
        let verbs = missing.entry((!is_needed, *everywhere, group, resource)).or_default();
        if !verbs.contains(verb) {
            verbs.push(verb);
        }
    }
    let finding =
        |((optional, everywhere, group, resource), verbs): (&(bool, bool, &str, &str), &Vec<&str>)| {
            let of = if group.is_empty() { (*resource).to_owned() } else { format!("{resource} of {group}") };
            let what = format!("policy {}: {account} may not {} {of}", policy.name, verbs.join(", "));
            let quoted: Vec<String> = verbs.iter().map(|verb| format!("\"{verb}\"")).collect();
            let rule = format!(
                "{{apiGroups: [\"{group}\"], resources: [\"{resource}\"], verbs: [{}]}}",
                quoted.join(", ")
            );
            let role = if *everywhere { "a ClusterRole of the picker" } else { "the picker's Role" };
            let kind =
                if *optional { &rules::CAPACITY_RIGHT_OPTIONAL } else { &rules::CAPACITY_RIGHT_MISSING };
            Finding::new(kind, what).fix(format!("Add to the rules of {role}: {rule}."))
        };
    missing.iter().map(finding).collect()
}

fn of_target(policy: &CapacityPolicy, role: &CapacityRole) -> Option<Finding> {
    let target = role.target.as_ref()?;
    (role.is_there == Some(Ok(false))).then(|| {
        let what = format!(
            "policy {}, role {}: there is no {} {} ({})",
            policy.name, role.name, target.kind, target.name, target.api_version
        );
        Finding::new(&rules::CAPACITY_TARGET_MISSING, what)
    })
}

/// All roles, with their policies.
fn roles(policies: &[CapacityPolicy]) -> Vec<(&CapacityPolicy, &CapacityRole)> {
    policies.iter().flat_map(|policy| policy.roles.iter().map(move |role| (policy, role))).collect()
}

/// Targets that several roles scale.
fn shared(policies: &[CapacityPolicy]) -> Vec<Finding> {
    let mut by_target: BTreeMap<(&str, &str, &str), Vec<String>> = BTreeMap::new();
    for (policy, role) in roles(policies) {
        let Some(target) = &role.target else { continue };
        // Versions of one group are one object.
        let group = target.api_version.split_once('/').map_or("", |(group, _)| group);
        let of = by_target.entry((group, &target.kind, &target.name)).or_default();
        of.push(format!("{}/{}", policy.name, role.name));
    }
    let several = by_target.iter().filter(|(_, roles)| roles.len() > 1);
    let finding = |((_, kind, name), roles): (&(&str, &str, &str), &Vec<String>)| {
        let what = format!("{kind} {name} is scaled by {}", roles.join(" and "));
        Finding::new(&rules::CAPACITY_TARGET_SHARED, what)
    };
    several.map(finding).collect()
}

/// Roles that the same pods may belong to.
fn overlapping(capacity: &Capacity) -> Vec<Finding> {
    let roles = roles(&capacity.policies);
    let mut findings = Vec::new();
    for (place, (policy, role)) in roles.iter().enumerate() {
        for (other_policy, other) in roles.iter().skip(place + 1) {
            let apart =
                policy.pool.is_some() && other_policy.pool.is_some() && policy.pool != other_policy.pool;
            if apart {
                continue;
            }
            let within = |a: &CapacityRole, b: &CapacityRole| {
                a.selector.iter().all(|(key, value)| b.selector.get(key) == Some(value))
            };
            let both = capacity.pods.iter().find(|pod| pod.has(&role.selector) && pod.has(&other.selector));
            if within(role, other) || within(other, role) || both.is_some() {
                let example = both.map(|pod| format!(", such as {}", pod.name)).unwrap_or_default();
                let what = format!(
                    "{}/{} and {}/{} select the same pods{example}",
                    policy.name, role.name, other_policy.name, other.name
                );
                findings.push(Finding::new(&rules::CAPACITY_SELECTORS_OVERLAP, what));
            }
        }
    }
    findings
}

/// Pods at Usher's gate that no policy lets through.
fn orphaned(capacity: &Capacity) -> Option<Finding> {
    let mut roles = roles(&capacity.policies);
    roles.retain(|(policy, _)| policy.opens_gates);
    let is_for = |pod: &PodObject, policy: &CapacityPolicy, role: &CapacityRole| {
        may_have(&role.selector, role.target.as_ref(), &policy.pools, pod)
    };
    let is_orphan = |pod: &&PodObject| !roles.iter().any(|(policy, role)| is_for(pod, policy, role));
    let names: BTreeSet<&str> = capacity.gated.iter().filter(is_orphan).map(PodObject::name).collect();
    (!names.is_empty()).then(|| {
        let some: Vec<&str> = names.iter().take(5).copied().collect();
        let more = if names.len() > some.len() { ", …" } else { "" };
        let pods = count(names.len(), "pod waits", "pods wait");
        let what = format!(
            "{pods} at the gate usher.dev/rollout, and no policy with mode Apply is for them, by its roles' labels, its pool and its targets: {}{more}",
            some.join(", ")
        );
        Finding::new(&rules::GATE_ORPHANED, what)
    })
}

/// Workloads whose updates were held back by a policy, and by none of those that are there.
fn held_for_nobody(capacity: &Capacity) -> Option<Finding> {
    let mut roles = roles(&capacity.policies);
    roles.retain(|(policy, _)| policy.updates);
    let is_for = |held: &HeldBack| {
        roles.iter().filter_map(|(_, role)| role.target.as_ref()).any(|of| held.target.is_same(of))
    };
    let held = capacity.held.iter().filter(|held| !is_for(held));
    let names: Vec<String> = held.map(|held| format!("{} {}", held.target.kind, held.target.name)).collect();
    (!names.is_empty()).then(|| {
        let what = format!("no policy with mode Apply and updates is for {}", names.join(", "));
        Finding::new(&rules::UPDATE_HELD, what)
    })
}
