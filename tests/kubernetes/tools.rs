//! Programs that the tests of the manifests start: helm, kustomize, and the script that collects
//! other projects' definitions.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

use crate::server::assets;

/// The folder of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A program of `deploy/ci/kube.sh`. `None`, and a word about it, where it is not there; CI
/// has to have it.
fn program(name: &str) -> Option<PathBuf> {
    let path = assets()?.join(name);
    if path.is_file() {
        return Some(path);
    }
    not_tested(&format!("the folder of KUBEBUILDER_ASSETS has no {name}; deploy/ci/kube.sh builds it"));
    None
}

/// Says why nothing is tested. In CI that is a failure.
fn not_tested(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "{why}");
    println!("NOT TESTED: {why}");
}

/// Standard output of a program, or its errors.
fn output(program: &Path, arguments: &[&OsStr]) -> Result<String, String> {
    let ran = Command::new(program).args(arguments).current_dir(root()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if ran.status.success() { Ok(text(ran.stdout)) } else { Err(text(ran.stderr)) }
}

/// The chart with these values files, as `helm template` prints it.
///
/// # Errors
/// Error output of helm.
pub(crate) struct Helm(PathBuf);

impl Helm {
    pub(crate) fn find() -> Option<Self> {
        program("helm").map(Self)
    }

    /// The objects of a release `usher` in a namespace.
    pub(crate) fn template(&self, namespace: &str, more: &[&str]) -> Result<Vec<Value>, String> {
        self.release("usher", namespace, more)
    }

    /// The objects of a release of this name.
    pub(crate) fn release(&self, name: &str, namespace: &str, more: &[&str]) -> Result<Vec<Value>, String> {
        // Without a version helm takes one that is older than the chart asks for.
        let chart = ["template", name, "deploy/chart", "--kube-version=1.36.3", "--namespace", namespace];
        let arguments: Vec<&OsStr> = chart.iter().chain(more).map(OsStr::new).collect();
        Ok(documents(&output(&self.0, &arguments)?).collect())
    }

    /// The objects with one of the chart's values files.
    pub(crate) fn rendered(&self, values: &str) -> Vec<Value> {
        let file = format!("deploy/chart/ci/{values}-values.yaml");
        self.template("models", &["--values", &file]).unwrap_or_else(|error| panic!("{values}: {error}"))
    }
}

/// Names of the chart's values files.
pub(crate) fn values_files() -> Vec<String> {
    let entries = std::fs::read_dir(root().join("deploy/chart/ci")).unwrap();
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        let name = entry.unwrap().file_name().into_string().unwrap();
        name.strip_suffix("-values.yaml").unwrap_or_else(|| panic!("{name}: not *-values.yaml")).to_owned()
    };
    let mut names: Vec<String> = entries.map(name).collect();
    names.sort();
    assert!(!names.is_empty());
    names
}

/// `kustomize build`.
pub(crate) struct Kustomize(PathBuf);

impl Kustomize {
    pub(crate) fn find() -> Option<Self> {
        program("kustomize").map(Self)
    }

    /// Output of `kustomize build` for a folder.
    pub(crate) fn print(&self, folder: &str) -> String {
        let text = output(&self.0, &["build".as_ref(), folder.as_ref()]);
        text.unwrap_or_else(|error| panic!("{folder}: {error}"))
    }

    /// The objects of a folder.
    pub(crate) fn build(&self, folder: &str) -> Vec<Value> {
        documents(&self.print(folder)).collect()
    }
}

/// Result of giving a configuration to a real Envoy: what it says, good or bad.
pub(crate) fn envoy_accepts(text: &str) -> Result<String, String> {
    let envoy = output(&root().join("deploy/envoy/get.sh"), &[]).unwrap();
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), text).unwrap();
    let arguments = ["--mode", "validate", "--log-level", "warn", "--config-path"].map(OsStr::new);
    let arguments: Vec<&OsStr> = arguments.into_iter().chain([file.path().as_os_str()]).collect();
    let ran = Command::new(envoy.trim()).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned();
    if ran.status.success() { Ok(said) } else { Err(said) }
}

/// The YAML documents of a text that has nothing else in it.
pub(crate) fn documents(text: &str) -> impl Iterator<Item = Value> {
    let parsed = parts(text)
        .map(|part| serde_saphyr::from_str(&part).unwrap_or_else(|error| panic!("{error} in {part}")));
    parsed.filter(|value: &Value| !value.is_null())
}

/// The documents of a text that may be YAML, and may be something else.
pub(crate) fn possible_documents(text: &str) -> impl Iterator<Item = Value> {
    parts(text).filter_map(|part| serde_saphyr::from_str(&part).ok())
}

fn parts(text: &str) -> impl Iterator<Item = String> {
    let mut parts = vec![String::new()];
    for line in text.lines() {
        if line.trim_end() == "---" {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push_str(line);
            part.push('\n');
        }
    }
    parts.into_iter()
}

/// Definitions of custom resources, our own and those of other projects.
pub(crate) fn definitions() -> Option<Vec<Value>> {
    static CRDS: OnceLock<Result<String, String>> = OnceLock::new();
    // As with Envoy: a folder that git ignores, unless somebody keeps them elsewhere.
    let cache = std::env::var("USHER_KUBERNETES").unwrap_or_else(|_| ".demo".to_owned());
    let script = root().join("deploy/ci/crds.sh");
    let found = CRDS.get_or_init(|| output(&script, &[cache.as_ref()]));
    let folder = match found {
        Ok(folder) => folder.trim(),
        Err(error) => {
            not_tested(error.trim());
            return None;
        }
    };
    let mut found = Vec::new();
    let own = ["tests/kubernetes/crds", "deploy/chart/crds"].map(|folder| root().join(folder));
    for folder in [Path::new(folder), &own[0], &own[1]] {
        for entry in std::fs::read_dir(folder).unwrap() {
            let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            let groups: &[&str] =
                if text.contains("GROUP") { &["llm-d.ai", "inference.networking.x-k8s.io"] } else { &[""] };
            found.extend(
                groups.iter().flat_map(|group| documents(&text.replace("GROUP", group)).collect::<Vec<_>>()),
            );
        }
    }
    found.retain(|object| object["kind"] == "CustomResourceDefinition");
    Some(found)
}
