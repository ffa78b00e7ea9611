//! `header-based-testing-filter`: lets a test say which endpoints may be picked.

use std::net::IpAddr;
use std::sync::Arc;

use rand::Rng;
use usher_core::config::ConfigError;
use usher_core::endpoints::{Snapshot, parse_address};
use usher_plugin::{Build, BuildContext, Context, Filter, Kind, PluginParts, PluginType, beta};

/// `header-based-testing-filter` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("header-based-testing-filter", &[Kind::Filter],
    "For conformance tests: keeps the endpoints that the header test-epp-endpoint-selection lists.",
    Build::Reading(build))
    .when("Conformance tests only.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    cx.takes_nothing()?;
    Ok(PluginParts { filter: Some(Arc::new(HeaderTestingFilter)), ..PluginParts::bare() })
}

/// The header that lists them.
const HEADER: &str = "test-epp-endpoint-selection";

/// Entries of the header that are read: more than a pool under test has endpoints, and
/// few enough that a client can't make a decision slow.
const MAX_ENTRIES: usize = 1024;

/// Keeps the endpoints that the request's header `test-epp-endpoint-selection` lists, in
/// the order of the list, each once. An entry is an address (all ports there) or an
/// address and a port; IPv6 addresses may stand in brackets. Without the header there is
/// no endpoint.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeaderTestingFilter;

impl Filter for HeaderTestingFilter {
    fn filter(&self, cx: &Context<'_>, snapshot: &Snapshot, kept: &mut Vec<u32>, _rng: &mut dyn Rng) {
        let list = cx.request.headers.text(HEADER).unwrap_or_default();
        let mut listed = 0;
        for entry in list.split(',').take(MAX_ENTRIES) {
            let Some((ip, port)) = parse_address(entry.trim()) else { continue };
            let mut next = listed;
            while next < kept.len() {
                if is_at(snapshot, kept[next], ip, port) {
                    kept[listed..=next].rotate_right(1);
                    listed += 1;
                }
                next += 1;
            }
        }
        kept.truncate(listed);
    }
}

fn is_at(snapshot: &Snapshot, position: u32, ip: IpAddr, port: Option<u16>) -> bool {
    snapshot.endpoints().get(position as usize).is_some_and(|endpoint| {
        endpoint.ip() == ip && port.is_none_or(|port| endpoint.address().port() == port)
    })
}
