//! Envoy: where its binary comes from, and the configuration of the repository with
//! other ports in it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader};
use tokio::process::Command;
use tokio::time::sleep;

use super::ports::Ports;

/// Prints the path of an Envoy binary, after installing it if need be.
const GET: &str = include_str!("../../../../../deploy/envoy/get.sh");

/// The configuration that is used, with other ports.
const CONFIG: &str = include_str!("../../../../../deploy/envoy/original-dst.yaml");

/// Pointer to the HTTP connection manager in it.
const MANAGER: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";

/// Line of the script before it fetches Envoy.
const FETCHING: &str = "get.sh: fetching ";

/// Between two calls of `fetching`. Longer than the pause between two lines of a progress, which drops what comes sooner.
const STILL: Duration = Duration::from_millis(1600);

/// Finds Envoy or installs it into `dir`, with calls of `fetching` again and again meanwhile. What runs for
/// that is in the process group `group`.
///
/// # Errors
/// Returns an error with the script's last line, which says what to do.
pub async fn install(dir: &Path, group: i32, mut fetching: impl FnMut()) -> anyhow::Result<PathBuf> {
    let mut command = Command::new("sh");
    command.arg("-s").arg("--").arg(dir).process_group(group).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut script = command.spawn().context("cannot run sh to install Envoy")?;
    if let Some(mut stdin) = script.stdin.take() {
        // A script that ends before it has been read says why in its own words.
        let _ = stdin.write_all(GET.as_bytes()).await;
    }
    let last = match script.stderr.take() {
        Some(stderr) => follow(stderr, &mut fetching).await,
        None => None,
    };
    let output = script.wait_with_output().await.context("cannot install Envoy")?;
    if !output.status.success() {
        bail!("cannot install Envoy: {}", last.as_deref().unwrap_or("the script did not say why"));
    }
    match String::from_utf8_lossy(&output.stdout).trim() {
        "" => bail!("cannot install Envoy: the script named no binary"),
        path => Ok(path.into()),
    }
}

/// Reads the lines of the script to their end, with calls of `fetching` from the one that says so. Returns the
/// last of the others.
async fn follow(stderr: impl AsyncRead + Unpin, fetching: &mut impl FnMut()) -> Option<String> {
    let mut lines = BufReader::new(stderr).lines();
    let (mut last, mut is_fetching) = (None, false);
    loop {
        let line = tokio::select! {
            line = lines.next_line() => line,
            () = sleep(STILL), if is_fetching => {
                fetching();
                continue;
            }
        };
        let Ok(Some(line)) = line else { return last };
        if line.starts_with(FETCHING) {
            is_fetching = true;
            fetching();
        } else if !line.trim().is_empty() {
            last = Some(line.trim().to_owned());
        }
    }
}

/// Work of Envoy for a request besides serving it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extras {
    /// As in the repository's file: TLS to Usher, a line per request in the log, and the
    /// admin interface.
    AsShipped,
    /// Plain text, no log and no admin interface, for measurements of a picker that has no TLS.
    None,
}

/// The configuration for `ports`, as JSON, which is YAML too.
///
/// # Errors
/// Returns an error that names the part of the configuration that is not as expected.
pub fn config(ports: &Ports, extras: Extras) -> anyhow::Result<String> {
    let mut config: Value = serde_saphyr::from_str(CONFIG).context("the built-in Envoy configuration")?;
    match extras {
        // `usher doctor` asks it.
        Extras::AsShipped => *part(&mut config, "/admin/address")? = address(ports.envoy_admin),
        Extras::None => remove(&mut config, "admin")?,
    }
    *part(&mut config, "/static_resources/listeners/0/address")? = address(ports.envoy);
    let manager = part(&mut config, MANAGER)?;
    if extras == Extras::None {
        remove(manager, "access_log")?;
    }
    let filters = part(manager, "/http_filters")?;
    // Requests that go on without Usher would hide that it doesn't respond.
    *part(named(filters, "envoy.filters.http.ext_proc")?, "/typed_config/failure_mode_allow")? = false.into();
    let clusters = part(&mut config, "/static_resources/clusters")?;
    let usher = named(clusters, "usher")?;
    let pickers: Vec<u16> = ports.ushers().iter().map(|usher| usher.extproc).collect();
    set_endpoints(usher, &pickers)?;
    if pickers.len() > 1 {
        // An equal share for each, whatever it has under way.
        *part(usher, "/lb_policy")? = "ROUND_ROBIN".into();
    }
    if extras == Extras::None {
        remove(usher, "transport_socket")?;
    }
    set_endpoints(named(clusters, "model_servers")?, &ports.servers)?;
    Ok(config.to_string())
}

/// Takes a field away, which must be there.
fn remove(object: &mut Value, name: &str) -> anyhow::Result<()> {
    let removed = object.as_object_mut().and_then(|object| object.remove(name));
    removed.map(drop).with_context(|| format!("the built-in Envoy configuration has no {name}"))
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

    #[tokio::test(start_paused = true)]
    async fn fetching_is_shown_until_the_script_ends() {
        let (mut script, stderr) = tokio::io::duplex(1024);
        let mut calls = 0;
        let mut fetching = || calls += 1;
        let writes = async move {
            sleep(10 * STILL).await;
            script.write_all(format!("{FETCHING}Envoy\n").as_bytes()).await.unwrap();
            sleep(10 * STILL).await;
            script.write_all(b"get.sh: no network\n\n").await.unwrap();
        };
        let (last, ()) = tokio::join!(follow(stderr, &mut fetching), writes);
        assert_eq!(last.as_deref(), Some("get.sh: no network"));
        assert!((10..=11).contains(&calls), "{calls}");
    }

    #[test]
    fn the_configuration_has_the_demos_ports_and_no_other() {
        let ports = Ports::from_first(20_000, 2).unwrap();
        let config: Value = serde_json::from_str(&config(&ports, Extras::AsShipped).unwrap()).unwrap();
        let mut found = Vec::new();
        collect(&config, &mut found);
        found.sort_unstable();
        let [first, second] = ports.servers[..] else { panic!("{ports:?}") };
        assert_eq!(found, [ports.envoy, ports.extproc, ports.envoy_admin, first, second]);
    }

    #[test]
    fn requests_go_round_all_replicas() {
        let mut ports = Ports::from_first(20_000, 9).unwrap();
        let policy = |ports: &Ports| {
            let config: Value = serde_json::from_str(&config(ports, Extras::AsShipped).unwrap()).unwrap();
            let clusters = config["static_resources"]["clusters"].as_array().unwrap();
            let usher = clusters.iter().find(|cluster| cluster["name"] == "usher").unwrap();
            let mut found = Vec::new();
            collect(usher, &mut found);
            (usher["lb_policy"].as_str().unwrap().to_owned(), found)
        };
        assert_eq!(policy(&ports), ("LEAST_REQUEST".to_owned(), vec![ports.extproc]));
        ports.add_replica().unwrap();
        ports.add_replica().unwrap();
        let [second, third] = ports.replicas[..] else { panic!("{ports:?}") };
        let all = vec![ports.extproc, second.extproc, third.extproc];
        assert_eq!(policy(&ports), ("ROUND_ROBIN".to_owned(), all));
    }

    #[test]
    fn tls_and_the_log_can_be_left_out() {
        let ports = Ports::from_first(20_000, 2).unwrap();
        let has = |extras| {
            let config = config(&ports, extras).unwrap();
            ["access_log", "transport_socket"].map(|part| config.contains(part))
        };
        assert_eq!(has(Extras::AsShipped), [true, true]);
        assert_eq!(has(Extras::None), [false, false]);
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
