//! Arguments of `usher explain`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use usher_terminal::Output;

use crate::cli::timeout::response_timeout;

/// Explains decisions of a running picker: the last one, or that for a request.
#[derive(Args, Clone, Debug)]
pub struct ExplainArgs {
    /// Id of the request, as the x-request-id header and the gateway's access log have it
    #[arg(value_name = "REQUEST_ID")]
    pub request_id: Option<String>,
    /// Number of latest decisions, 1 to 1000. More than one are listed, a line each
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub last: Option<u16>,
    /// Only decisions whose first token took longer than nearly all before it
    #[arg(long)]
    pub slow: bool,
    /// Only requests refused, cut off or failed
    #[arg(long)]
    pub failed: bool,
    /// Only requests for this model
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Only requests that went to this address or name
    #[arg(long, value_name = "ENDPOINT")]
    pub endpoint: Option<String>,
    /// Print decisions, a line each, as their requests end
    #[arg(long, conflicts_with_all = ["request_id", "last"])]
    pub follow: bool,
    /// Explain a request of this file, without a picker: the JSON of its body
    #[arg(long, value_name = "FILE", requires = "endpoints_file", conflicts_with_all = ["request_id", "last", "slow", "failed", "model", "endpoint", "follow"])]
    pub request: Option<PathBuf>,
    /// With --request: its path. By default that of chat completions, or of completions for a body with a prompt
    #[arg(long, value_name = "PATH", requires = "request")]
    pub path: Option<String>,
    /// With --request: a header of it, NAME: VALUE. Can be given several times
    #[arg(long, value_name = "HEADER", requires = "request")]
    pub header: Vec<String>,
    /// With --request: the EndpointPickerConfig. Without it, the built-in one
    #[arg(long, alias = "config", value_name = "FILE", requires = "request")]
    pub config_file: Option<PathBuf>,
    /// With --request: the endpoints. Read as by usher serve; all are taken to be idle
    #[arg(long, alias = "endpoints", value_name = "FILE", requires = "request")]
    pub endpoints_file: Option<PathBuf>,
    /// Admin port of the picker, or its HOST:PORT
    #[arg(long, alias = "admin-address", value_name = "URL", default_value = "http://127.0.0.1:9095")]
    pub admin: String,
    /// Time for a response
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = response_timeout)]
    pub timeout: Duration,
    /// Format of the result. json is the page of the admin port, a line per decision with --follow
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}
