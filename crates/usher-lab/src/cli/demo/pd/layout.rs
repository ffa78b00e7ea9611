//! The servers of the scenario: where they stand, and how fast the links between them are.

/// Bytes per second between the servers. Racks are joined by less than what their
/// servers could send, as in most clusters. The joint configuration says the same.
pub(super) const LINKS: [(&str, &str, u64); 3] = [
    ("host", "on a host", 200_000_000_000),
    ("rack", "in a rack", 50_000_000_000),
    ("zone", "between racks", 5_000_000_000),
];

/// Flags of `servers` simulated servers: on each host one that computes prompts and one
/// that decodes, half of the hosts in a rack.
pub(super) fn layout(servers: usize) -> Vec<String> {
    let hosts = (servers / 2).max(1);
    let list = |name: &dyn Fn(usize) -> String| (0..servers).map(name).collect::<Vec<_>>().join(",");
    let links: Vec<String> = LINKS.iter().map(|(layer, _, speed)| format!("{layer}={speed}")).collect();
    let flags = [
        ("--roles", "prefill,decode".to_owned()),
        ("--hosts", list(&|server| format!("host-{}", server / 2 + 1))),
        ("--racks", list(&|server| format!("rack-{}", 1 + server / 2 / hosts.div_ceil(2)))),
        ("--zones", "zone-1".to_owned()),
        ("--regions", "region-1".to_owned()),
        ("--links", links.join(",")),
    ];
    flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::sim::SimArgs;
    use crate::sim::{Layer, Role};

    #[derive(Parser)]
    struct Sim {
        #[command(flatten)]
        args: SimArgs,
    }

    #[test]
    fn each_host_has_a_prefill_and_a_decode_server() {
        // servers, racks of the hosts
        let table = [(2, "1"), (4, "12"), (8, "1122"), (10, "11122")];
        for (servers, racks) in table {
            let flags = ["sim".to_owned()].into_iter().chain(layout(servers));
            let disagg = Sim::try_parse_from(flags).unwrap().args.config().disagg;
            disagg.validate().unwrap();
            for server in 0..servers {
                let role = if server % 2 == 0 { Role::Prefill } else { Role::Decode };
                assert_eq!(disagg.role(server), Some(role));
                let (host, place) = (server / 2, disagg.place(server));
                let rack = format!("rack-{}", &racks[host..=host]);
                assert_eq!(place.names(), [&format!("host-{}", host + 1), &*rack, "zone-1", "region-1"]);
            }
            assert_eq!(disagg.links.bytes_per_second(Layer::Zone), 5_000_000_000);
        }
    }
}
