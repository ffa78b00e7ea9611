//! Envoy: where its binary comes from, and the configuration of the repository with the
//! demo's ports in it.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::ports::Ports;

/// Prints the path of an Envoy binary, after installing it if need be.
const GET: &str = include_str!("../../../deploy/envoy/get.sh");

/// The configuration that the demo uses, with ports of its own.
const CONFIG: &str = include_str!("../../../deploy/envoy/original-dst.yaml");

/// Finds Envoy or installs it into `dir`. What runs for that is in the process group
/// `group`.
///
/// # Errors
/// The last line that the script wrote, which says what to do.
pub(super) async fn install(dir: &Path, group: i32) -> anyhow::Result<PathBuf> {
    let mut command = Command::new("sh");
    command.arg("-s").arg("--").arg(dir).process_group(group).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut script = command.spawn().context("cannot run sh to install Envoy")?;
    if let Some(mut stdin) = script.stdin.take() {
        // A script that ends before it has been read says why in its own words.
        let _ = stdin.write_all(GET.as_bytes()).await;
    }
    let output = script.wait_with_output().await.context("cannot install Envoy")?;
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().map(str::trim).rfind(|line| !line.is_empty());
    if !output.status.success() {
        bail!("cannot install Envoy: {}", last.unwrap_or("the script did not say why"));
    }
    match String::from_utf8_lossy(&output.stdout).trim() {
        "" => bail!("cannot install Envoy: the script named no binary"),
        path => Ok(path.into()),
    }
}

/// The configuration for `ports`, as JSON, which is YAML too.
///
/// # Errors
/// Names the part of the configuration that is not as expected.
pub(super) fn config(ports: &Ports) -> anyhow::Result<String> {
    let mut config: Value = serde_saphyr::from_str(CONFIG).context("the built-in Envoy configuration")?;
    // Nobody asks it here, and it would be one more port.
    part(&mut config, "")?.as_object_mut().and_then(|config| config.remove("admin"));
    *part(&mut config, "/static_resources/listeners/0/address")? = address(ports.envoy);
    let filters = part(
        &mut config,
        "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/http_filters",
    )?;
    // Requests that go on without Usher would hide that it doesn't answer.
    *part(named(filters, "envoy.filters.http.ext_proc")?, "/typed_config/failure_mode_allow")? = false.into();
    let clusters = part(&mut config, "/static_resources/clusters")?;
    set_endpoints(named(clusters, "usher")?, &[ports.extproc])?;
    set_endpoints(named(clusters, "model_servers")?, &ports.servers)?;
    Ok(config.to_string())
}

fn part<'a>(config: &'a mut Value, pointer: &str) -> anyhow::Result<&'a mut Value> {
    config
        .pointer_mut(pointer)
        .with_context(|| format!("the built-in Envoy configuration has no {pointer} where it should be"))
}

/// The item of a list that has this name.
fn named<'a>(list: &'a mut Value, name: &str) -> anyhow::Result<&'a mut Value> {
    let mut items = list.as_array_mut().into_iter().flatten();
    items
        .find(|item| item.get("name").is_some_and(|found| found == name))
        .with_context(|| format!("the built-in Envoy configuration has no {name}"))
}

fn set_endpoints(cluster: &mut Value, ports: &[u16]) -> anyhow::Result<()> {
    let endpoints = ports.iter().map(|port| json!({"endpoint": {"address": address(*port)}}));
    *part(cluster, "/load_assignment/endpoints/0/lb_endpoints")? = endpoints.collect();
    Ok(())
}

fn address(port: u16) -> Value {
    json!({"socket_address": {"address": "127.0.0.1", "port_value": port}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_has_the_demos_ports_and_no_other() {
        let ports = Ports::from_first(20_000, 2).unwrap();
        let config: Value = serde_json::from_str(&config(&ports).unwrap()).unwrap();
        let mut found = Vec::new();
        collect(&config, &mut found);
        found.sort_unstable();
        assert_eq!(found, [ports.envoy, ports.extproc, ports.servers[0], ports.servers[1]]);
    }

    fn collect(value: &Value, found: &mut Vec<u16>) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| collect(item, found)),
            Value::Object(fields) => {
                if let Some(port) = fields.get("port_value") {
                    assert_eq!(fields["address"], "127.0.0.1");
                    found.push(port.as_u64().unwrap().try_into().unwrap());
                }
                fields.values().for_each(|field| collect(field, found));
            }
            _ => {}
        }
    }
}
