//! Routes: where they lead, for how long, and what they change of the filters.

use serde_json::Value;

use super::cluster::DESTINATION;
use crate::doctor::json::{list, seconds, text};

/// Envoy's time for a whole response where none is set, seconds.
const DEFAULT_TIMEOUT: f64 = 15.0;

/// A route table.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    /// Routes that lead to clusters, in their order.
    pub routes: Vec<Route>,
    /// Configurations for filters: where, of which filter, what.
    overrides: Vec<(String, String, Value)>,
}

/// A route.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Route {
    /// Name, or what it matches.
    pub name: String,
    /// Clusters that it leads to.
    pub clusters: Vec<String>,
    /// `true` if it takes only requests for which a picker has chosen.
    pub needs_destination: bool,
    /// Time for a whole response, seconds; 0 is without an end.
    pub timeout: f64,
    /// Conditions under which a request is tried again.
    pub retry_on: Vec<String>,
}

impl Routes {
    pub(super) fn read(table: &Value) -> Self {
        let mut found = Self::default();
        found.keep(&format!("route table {}", text(table, "name")), table);
        for host in list(table, "virtual_hosts") {
            let place = format!("virtual host {}", text(host, "name"));
            found.keep(&place, host);
            for route in list(host, "routes") {
                let name = name(route);
                found.keep(&format!("route {name}"), route);
                let Some(action) = route.get("route") else { continue };
                let weighted = action.pointer("/weighted_clusters/clusters").and_then(Value::as_array);
                let weighted = weighted.into_iter().flatten();
                weighted.clone().for_each(|cluster| found.keep(&format!("route {name}"), cluster));
                let clusters = weighted.map(|cluster| text(cluster, "name")).chain([text(action, "cluster")]);
                let retry = action.get("retry_policy").or_else(|| host.get("retry_policy"));
                let retry_on = retry.map_or("", |policy| text(policy, "retry_on"));
                found.routes.push(Route {
                    clusters: clusters.filter(|name| !name.is_empty()).map(str::to_owned).collect(),
                    needs_destination: needs_destination(route),
                    timeout: seconds(action, "timeout").unwrap_or(DEFAULT_TIMEOUT),
                    retry_on: retry_on.split(',').map(|word| word.trim().to_owned()).collect(),
                    name,
                });
            }
        }
        found
    }

    fn keep(&mut self, place: &str, part: &Value) {
        let configs = part.get("typed_per_filter_config").and_then(Value::as_object);
        for (filter, config) in configs.into_iter().flatten() {
            self.overrides.push((place.to_owned(), filter.clone(), config.clone()));
        }
    }

    /// Configurations for a filter, and where they hold.
    pub(super) fn overrides(&self, filter: &str) -> impl Iterator<Item = (&str, &Value)> {
        let of = move |(place, name, config): &'_ (String, String, Value)| {
            name == filter && !place.is_empty() && !config.is_null()
        };
        self.overrides.iter().filter(move |each| of(each)).map(|(place, _, config)| (place.as_str(), config))
    }
}

fn name(route: &Value) -> String {
    let name = text(route, "name");
    if !name.is_empty() {
        return name.to_owned();
    }
    let of = route.get("match").unwrap_or(&Value::Null);
    let places = ["prefix", "path", "path_separated_prefix"].map(|kind| text(of, kind));
    let place = places.into_iter().find(|place| !place.is_empty()).unwrap_or("(by expression)");
    place.to_owned()
}

fn needs_destination(route: &Value) -> bool {
    let headers = route.pointer("/match/headers").and_then(Value::as_array);
    let mut headers = headers.into_iter().flatten();
    headers.any(|header| text(header, "name").eq_ignore_ascii_case(DESTINATION))
}
