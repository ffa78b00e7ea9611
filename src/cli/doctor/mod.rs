//! `usher doctor`: what is wrong with a gateway, its picker and the cluster around them?

mod json;
mod plain;
mod text;

#[cfg(feature = "lab")]
use std::io::IsTerminal;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use http::{HeaderName, HeaderValue};

use crate::cli::timeout::response_timeout;
use crate::config::source;
use crate::discovery::file;
use crate::doctor::{
    HttpClient, LocalPorts, Plan, Pods, PoolPlan, Report, examine, gather, policies_of_file,
};
use crate::scrape::ENGINE_LABEL;
#[cfg(feature = "lab")]
use usher_terminal::Progress;
use usher_terminal::{CliError, Output, Terminal, split_header};

/// Arguments of `usher doctor`.
#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {
    /// URL of the gateway, with any path prefix. By default the listener of --envoy-admin that uses a
    /// picker.
    #[arg(long, value_name = "URL")]
    pub gateway: Option<String>,
    /// Header of requests through the gateway, "NAME: VALUE"; several times for several. A
    /// value that begins with @ names a file that holds it.
    #[arg(long, value_name = "HEADER")]
    pub header: Vec<String>,
    /// Envoy's admin interface, or its HOST:PORT. By default 127.0.0.1:19000, if it belongs to the gateway, or
    /// without any address.
    #[arg(long, value_name = "URL")]
    pub envoy_admin: Option<String>,
    /// The picker's ext_proc port. By default as Envoy's configuration says, or 127.0.0.1:9002 without any address.
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    pub picker: Option<String>,
    /// The picker's metrics port, or its HOST:PORT. By default 127.0.0.1:9090, beside a gateway or picker of this
    /// machine.
    #[arg(long, value_name = "URL")]
    pub metrics: Option<String>,
    /// Header of requests for the picker's metrics, as --header.
    #[arg(long, value_name = "HEADER")]
    pub metrics_header: Vec<String>,
    /// Usher's admin port, or its HOST:PORT. By default 127.0.0.1:9095, beside a gateway or picker of this
    /// machine.
    #[arg(long, value_name = "URL")]
    pub admin: Option<String>,
    /// A model that is served: one token of it is generated a few times. By default probes ask
    /// for a model that no server has.
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// The endpoints file of the picker.
    #[arg(long = "endpoints-file", alias = "endpoints", value_name = "FILE")]
    pub endpoints: Option<PathBuf>,
    /// Engine of model servers that have no label llm-d.ai/engine-type.
    #[arg(long, value_name = "NAME", default_value = "vllm")]
    pub engine: String,
    /// Name of the InferencePool; the API server is that of KUBECONFIG, of the pod, or of
    /// ~/.kube/config.
    #[arg(long, value_name = "NAME", conflicts_with = "endpoint_selector")]
    pub pool_name: Option<String>,
    /// Namespace of the pool. By default that of the environment variable NAMESPACE, else
    /// "default".
    #[arg(long, value_name = "NAME")]
    pub pool_namespace: Option<String>,
    /// Pods with these labels, instead of --pool-name: as of `kubectl -l`.
    #[arg(long, value_name = "SELECTOR", requires = "endpoint_target_ports")]
    pub endpoint_selector: Option<String>,
    /// Serving ports of the pods that --endpoint-selector matches, separated by commas.
    #[arg(long, value_name = "PORTS", value_delimiter = ',', requires = "endpoint_selector")]
    pub endpoint_target_ports: Vec<u16>,
    /// Also check the RBAC rights for leader election.
    #[arg(long)]
    pub ha_enable_leader_election: bool,
    /// The picker authorizes readers of its metrics, which takes more rights. `=false`: it doesn't.
    #[arg(
        long,
        num_args = 0..=1,
        require_equals = true,
        default_value_t = true,
        default_missing_value = "true",
        action = clap::ArgAction::Set
    )]
    pub metrics_endpoint_auth: bool,
    /// Service account of the picker, in the pool's namespace, whose rights are looked at. By
    /// default the rights of whoever runs the doctor.
    #[arg(long, value_name = "NAME")]
    pub service_account: Option<String>,
    /// The picker's file of capacity policies. Those of the cluster are looked at without it.
    #[arg(long, value_name = "FILE")]
    pub capacity_policy: Option<PathBuf>,
    /// Time for each response.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = response_timeout)]
    pub timeout: Duration,
    /// Format of the result.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

type Header = (HeaderName, HeaderValue);

/// Reads a header. What is wrong is said without repeating it: it may be a credential.
fn header(text: &str) -> Result<Header, String> {
    let (name, value) = split_header(text).ok_or("it has no colon; write \"NAME: VALUE\"")?;
    let name = name.parse().map_err(|_| "its name is no name of a header".to_owned())?;
    let value = match value.trim().strip_prefix('@') {
        None => value.trim().to_owned(),
        Some(path) => {
            let read = std::fs::read_to_string(path);
            read.map_err(|error| format!("its file can't be read: {error}"))?.trim().to_owned()
        }
    };
    let mut value =
        HeaderValue::from_str(&value).map_err(|_| "its value can't be sent in a header".to_owned())?;
    value.set_sensitive(true);
    Ok((name, value))
}

fn address(text: &str) -> Result<String, String> {
    let port = text
        .rsplit_once(':')
        .filter(|(host, _)| !host.is_empty())
        .and_then(|(_, port)| port.parse::<u16>().ok());
    port.filter(|port| *port > 0).map(|_| text.to_owned()).ok_or_else(|| "write HOST:PORT".to_owned())
}

/// Runs all checks, and prints the findings.
///
/// # Errors
/// [`CliError::Usage`] if an address or a file can't be used; [`CliError::Failed`] if there is nothing at the usual ports,
/// or the result can't be printed.
pub fn run(args: &DoctorArgs) -> Result<ExitCode, CliError> {
    let plan = plan(args)?;
    let failed = |error: io::Error| CliError::Failed(format!("cannot print the result: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    // Only a terminal gets it: elsewhere nobody would read it.
    #[cfg(feature = "lab")]
    let progress = io::stderr().is_terminal().then(|| {
        let mut progress = Progress::default();
        progress.step("asking the gateway, its picker and the cluster");
        progress
    });
    let seen = runtime.block_on(gather(&plan));
    #[cfg(feature = "lab")]
    drop(progress);
    if plan.is_bare {
        let ports = plan.ports;
        if seen.is_empty() {
            return Err(CliError::Failed(format!(
                "nothing to look at on {ports}; give --gateway, for example --gateway http://127.0.0.1:8081, --picker or --pool-name"
            )));
        }
        eprintln!("usher: no address given, looked at {ports}");
    }
    let report = examine(&seen);
    let text = match args.output {
        Output::Text => text::text(&report, Terminal::of_stdout()),
        Output::Json => json::json(&report),
    };
    let mut out = io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(failed)?;
    Ok(code(&report))
}

fn code(report: &Report) -> ExitCode {
    if report.is_wrong() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn plan(args: &DoctorArgs) -> Result<Plan, CliError> {
    let wants_pool = args.pool_name.is_some() || args.endpoint_selector.is_some();
    let sites = [&args.gateway, &args.envoy_admin, &args.metrics, &args.admin];
    let has_site = sites.iter().any(|client| client.is_some()) || args.picker.is_some();
    let headers = |flag: &str, texts: &[String]| -> Result<Vec<Header>, CliError> {
        let wrong = |reason| CliError::Usage(format!("{flag}: {reason}"));
        texts.iter().map(|text| header(text).map_err(wrong)).collect()
    };
    // Not clap's to parse: its errors repeat what was given, which may hold a password.
    let client = |flag: &str, url: &Option<String>, headers: &[Header]| match url {
        None => Ok(None),
        // A gateway's URL says whether it speaks TLS.
        Some(url) => {
            match if flag == "--gateway" { HttpClient::parse(url) } else { HttpClient::parse_server(url) } {
                Ok(client) => Ok(Some(client.within(args.timeout).with_headers(headers))),
                Err(reason) => Err(CliError::Usage(format!("{flag}: {reason}"))),
            }
        }
    };
    let namespace = args.pool_namespace.clone().or_else(|| std::env::var("NAMESPACE").ok());
    let policies = match &args.capacity_policy {
        None => Vec::new(),
        Some(path) => {
            let text = source::read_file(path).map_err(|error| error.in_file(&path.display().to_string()));
            text.and_then(|text| policies_of_file(path, &text)).map_err(CliError::Usage)?
        }
    };
    let pool = wants_pool.then(|| PoolPlan {
        namespace: namespace.filter(|name| !name.is_empty()).unwrap_or_else(|| "default".to_owned()),
        name: args.pool_name.clone(),
        selector: args.endpoint_selector.clone(),
        ports: args.endpoint_target_ports.clone(),
        election: args.ha_enable_leader_election,
        metrics_auth: args.metrics_endpoint_auth,
        account: args.service_account.clone(),
        policies,
    });
    Ok(Plan {
        gateway: client("--gateway", &args.gateway, &headers("--header", &args.header)?)?,
        envoy: client("--envoy-admin", &args.envoy_admin, &[])?,
        picker: args.picker.clone(),
        metrics: client("--metrics", &args.metrics, &headers("--metrics-header", &args.metrics_header)?)?,
        admin: client("--admin", &args.admin, &[])?,
        model: args.model.clone(),
        endpoints: endpoints(args)?,
        engine: args.engine.clone(),
        pool,
        is_bare: !has_site && !wants_pool && args.endpoints.is_none(),
        ports: LocalPorts::default(),
        limit: args.timeout,
    })
}

fn endpoints(args: &DoctorArgs) -> Result<Option<Vec<Pods>>, CliError> {
    let Some(path) = &args.endpoints else { return Ok(None) };
    let name = path.display().to_string();
    let parsed = source::read_file(path).and_then(|text| file::parse(&text));
    let (specs, problems) = parsed.map_err(|error| CliError::Usage(error.in_file(&name)))?;
    for problem in problems {
        eprintln!("usher: {}", problem.in_file(&name));
    }
    let of = |spec: crate::endpoints::EndpointSpec| Pods {
        engine: spec.labels.get(ENGINE_LABEL).unwrap_or(&args.engine).clone(),
        name: spec.name,
        address: spec.address,
    };
    Ok(Some(specs.into_iter().map(of).collect()))
}
