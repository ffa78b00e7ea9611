//! Checks that the gateway sends the picker what it needs, in the form that it understands.

use crate::doctor::envoy::{BodyMode, Manager, Settings};
use crate::doctor::finding::{Finding, Outcome};
use crate::doctor::rules::{self, Rule};
use crate::doctor::seen::Observations;

pub(super) fn check(seen: &Observations) -> Outcome {
    let envoy = match &seen.envoy {
        Ok(envoy) => envoy,
        Err(reason) => return Outcome::skipped(reason),
    };
    let mut findings = Vec::new();
    let mut places = Vec::new();
    for manager in &envoy.config.managers {
        if manager.processors.is_empty() {
            let unseen = &manager.unseen;
            if !unseen.is_empty() {
                return Outcome::skipped(format!(
                    "the configuration of {} comes from elsewhere and is not in the dump",
                    unseen.join(", ")
                ));
            }
            let what =
                format!("listener {} has the filters {}", manager.listener, manager.filters.join(", "));
            findings.push(Finding::new(&rules::EXT_PROC_MISSING, what));
        }
        findings.extend(around(manager));
    }
    if envoy.config.managers.is_empty() {
        findings
            .push(Finding::new(&rules::EXT_PROC_MISSING, format!("{} shows no HTTP listener", envoy.url)));
    }
    for (_, processor) in envoy.config.pickers() {
        for place in processor.off_at() {
            findings.push(Finding::new(
                &rules::EXT_PROC_DISABLED,
                format!("filter {} is off at {place}", processor.name),
            ));
        }
        if processor.disabled && processor.effective().next().is_none() {
            let what = format!("filter {} is off, and no route turns it on", processor.name);
            findings.push(Finding::new(&rules::EXT_PROC_DISABLED, what));
        }
        for (place, settings) in processor.effective() {
            settings_of(&place, settings, &mut findings);
            places.push(place);
        }
    }
    Outcome::looked(places.join(", "), findings)
}

fn around(manager: &Manager) -> impl Iterator<Item = Finding> {
    let duplex =
        manager.processors.iter().filter(|processor| processor.settings.request_body == BodyMode::FullDuplex);
    let duplex: Vec<&str> = duplex.map(|processor| processor.name.as_str()).collect();
    let two = (duplex.len() > 1).then(|| {
        let what = format!("listener {} has {}", manager.listener, duplex.join(" and "));
        Finding::new(&rules::TWO_FULL_DUPLEX, what)
    });
    let buffers = manager.buffers.iter().map(|limit| {
        let what = format!(
            "listener {} has a buffer filter for bodies of up to {limit} bytes before the picker's",
            manager.listener
        );
        Finding::new(&rules::BUFFER_BEFORE_PICKER, what)
    });
    let found: Vec<Finding> = two.into_iter().chain(buffers).collect();
    found.into_iter()
}

fn settings_of(place: &str, settings: &Settings, findings: &mut Vec<Finding>) {
    let mut say =
        |rule: &'static Rule, what: String| findings.push(Finding::new(rule, format!("{place}: {what}")));
    if settings.observes {
        say(&rules::OBSERVABILITY_MODE, "observability_mode is on".to_owned());
    }
    if !settings.request_headers {
        say(&rules::HEADERS_NOT_SENT, "request_header_mode is SKIP".to_owned());
    }
    if settings.request_body != BodyMode::FullDuplex {
        say(&rules::REQUEST_BODY_MODE, format!("request_body_mode is {}", settings.request_body.name()));
    }
    match settings.response_body {
        BodyMode::FullDuplex => {}
        BodyMode::None => say(&rules::RESPONSE_NOT_SEEN, "response_body_mode is NONE".to_owned()),
        BodyMode::Other(name) => say(&rules::RESPONSE_BODY_MODE, format!("response_body_mode is {name}")),
    }
    if !settings.response_headers {
        say(&rules::RESPONSE_NOT_SEEN, "response_header_mode is SKIP".to_owned());
    }
    let bodies = [settings.request_body, settings.response_body];
    for ((sent, body), name) in settings.trailers.iter().zip(bodies).zip(["request", "response"]) {
        if !sent && body == BodyMode::FullDuplex {
            say(&rules::TRAILERS_NOT_SENT, format!("{name}_trailer_mode is SKIP"));
        }
    }
    if settings.refuses_mutations {
        say(&rules::MUTATIONS_REFUSED, "mutation_rules disallow headers".to_owned());
    }
}
