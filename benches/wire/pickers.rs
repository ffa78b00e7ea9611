//! Pickers to compare, and the command lines of everything that runs.

use usher_lab::cli::demo::ports::{PortError, Ports, local};

use super::processes::picker_flags;

/// The limit among the pickers.
pub const LIMIT: &str = "limit";

/// Servers behind the pickers.
pub const SERVERS: u16 = 10;

/// Usher among the pickers.
pub const USHER: &str = "usher";

/// A picker to measure.
#[derive(Debug, Clone)]
pub struct Picker {
    /// Name in the report.
    pub name: String,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    /// Receives, sends back and names a constant.
    Limit,
    Usher,
    /// A shell command that takes the flags of `usher serve`.
    Other(String),
}

/// Locations of programs and files. The commands of the report have shorter names than
/// those that run.
#[derive(Debug, Clone)]
pub struct Place {
    /// The program `usher`.
    pub usher: String,
    /// The benchmark target `limit`.
    pub limit: String,
    /// Envoy.
    pub envoy: String,
    /// Configuration of the pickers.
    pub config: String,
    /// Endpoints file, which the configuration names.
    pub endpoints: String,
    /// Configuration of Envoy.
    pub envoy_config: String,
    /// Ports that everything listens on.
    pub ports: Ports,
}

impl Place {
    /// For the commands of the report: programs and files by their bare names, and Envoy's
    /// port the usual one, which the others follow.
    ///
    /// # Errors
    /// Never fails with this port.
    pub fn shown() -> Result<Self, PortError> {
        Ok(Self {
            usher: "usher".to_owned(),
            limit: "limit".to_owned(),
            envoy: "envoy".to_owned(),
            config: "config.yaml".to_owned(),
            endpoints: "endpoints.yaml".to_owned(),
            envoy_config: "envoy.json".to_owned(),
            ports: Ports::from_first(8081, SERVERS)?,
        })
    }
}

impl Picker {
    /// The limit, with which the others are compared.
    pub fn limit() -> Self {
        Self { name: LIMIT.to_owned(), kind: Kind::Limit }
    }

    /// Usher as it is built.
    pub fn usher() -> Self {
        Self { name: USHER.to_owned(), kind: Kind::Usher }
    }

    /// Another one, given as `name=COMMAND`.
    ///
    /// # Errors
    /// One line: the mistake, and the correct form.
    pub fn parse(text: &str) -> Result<Self, String> {
        let example = "write name=COMMAND, for example llm-d-router='/opt/epp --v=1'";
        let (name, command) = text.split_once('=').ok_or_else(|| format!("there is no '='; {example}"))?;
        let (name, command) = (name.trim(), command.trim());
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || command.is_empty() || !name.chars().all(plain) {
            return Err(format!(
                "the name must be letters, digits, '-', '_' or '.', and a command must follow; {example}"
            ));
        }
        if [LIMIT, USHER, super::metric::ENVOY].contains(&name) {
            return Err(format!("{name:?} is taken; choose another name"));
        }
        Ok(Self { name: name.to_owned(), kind: Kind::Other(command.to_owned()) })
    }

    /// Program and arguments.
    pub fn words(&self, place: &Place) -> Vec<String> {
        match &self.kind {
            Kind::Limit => limit(place),
            Kind::Usher => {
                let own = [&place.usher, "serve", "--bind-address=127.0.0.1", "--admin-address=off"];
                own.map(str::to_owned).into_iter().chain(flags(place)).collect()
            }
            // The shell makes way for the command, so that its process is the one to measure.
            Kind::Other(command) => {
                let script = format!("exec {command} \"$@\"");
                ["sh", "-c", &script, &self.name].map(str::to_owned).into_iter().chain(flags(place)).collect()
            }
        }
    }

    /// The command for people.
    pub fn shown(&self, place: &Place) -> String {
        match &self.kind {
            // Where it is on this machine is of no use to others.
            Kind::Other(command) => {
                let bare = |word: &'_ str| match word.strip_prefix('/') {
                    Some(path) => path.rsplit('/').next().unwrap_or(path).to_owned(),
                    None => word.to_owned(),
                };
                let words = command.split(' ').map(bare).chain(flags(place));
                words.collect::<Vec<_>>().join(" ")
            }
            Kind::Limit | Kind::Usher => self.words(place).join(" "),
        }
    }
}

fn limit(place: &Place) -> Vec<String> {
    let ports = &place.ports;
    let destination = ports.servers.first().map_or_else(String::new, |port| local(*port).to_string());
    vec![
        place.limit.clone(),
        format!("--grpc-port={}", ports.extproc),
        format!("--grpc-health-port={}", ports.health),
        format!("--destination={destination}"),
    ]
}

/// Flags with which Usher and any other picker are started.
fn flags(place: &Place) -> Vec<String> {
    let mut flags = picker_flags(&place.ports);
    flags.push(format!("--config-file={}", place.config));
    flags
}

/// The simulated servers.
pub fn servers(place: &Place) -> Vec<String> {
    vec![
        place.usher.clone(),
        "sim".to_owned(),
        "--instant".to_owned(),
        format!("--count={}", place.ports.servers.len()),
        format!("--port={}", place.ports.servers.first().copied().unwrap_or_default()),
        format!("--write-endpoints={}", place.endpoints),
    ]
}
