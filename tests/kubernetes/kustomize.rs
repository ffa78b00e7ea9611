//! `deploy/kustomize` and the chart make the same objects. Its resources and patches are
//! written from the chart: `make chart-accept`.

use std::path::PathBuf;

use serde_json::{Map, Value, json};

use crate::tools::{Helm, Kustomize, root};

/// An overlay, by its folder's name.
#[derive(Clone, Copy)]
pub(crate) struct Overlay(&'static str);

pub(crate) const OVERLAYS: [Overlay; 2] = [Overlay("gateway"), Overlay("standalone")];
const BASE: &str = "deploy/kustomize/base";
/// Set: the files are written instead of compared.
const ACCEPT: &str = "USHER_ACCEPT";
const HEADER: &str = "# Written by `make chart-accept` from deploy/chart and values.yaml.\n";

impl std::fmt::Display for Overlay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl Overlay {
    pub(crate) fn folder(self) -> String {
        format!("deploy/kustomize/overlays/{self}")
    }
}

/// Objects that the chart renders with the values of a folder, without the labels that only Helm needs.
fn rendered(helm: &Helm, folder: &str) -> Vec<Value> {
    let mut objects = helm.template("models", &["--values", &format!("{folder}/values.yaml")]).unwrap();
    for object in &mut objects {
        let labels = object["metadata"]["labels"].as_object_mut().unwrap();
        labels.remove("helm.sh/chart");
        labels.remove("app.kubernetes.io/managed-by");
    }
    objects
}

/// Kind and name of an object.
fn name(object: &Value) -> (String, String) {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (text(&object["kind"]), text(&object["metadata"]["name"]))
}

/// Patch that has to be merged into `old` to make it `new`; `None`: they are equal. Lists of things
/// with a name are merged by it, others replaced.
fn patch(old: &Value, new: &Value) -> Option<Value> {
    if old == new {
        return None;
    }
    let is_named = |list: &[Value]| list.iter().all(|item| item["name"].is_string());
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let mut changes = Map::new();
            for (key, new) in new {
                let change = old.get(key).map_or_else(|| Some(new.clone()), |old| patch(old, new));
                changes.extend(change.map(|change| (key.clone(), change)));
            }
            changes.extend(
                old.keys().filter(|key| !new.contains_key(*key)).map(|key| (key.clone(), Value::Null)),
            );
            Some(Value::Object(changes))
        }
        (Value::Array(old), Value::Array(new)) if is_named(old) && is_named(new) => {
            let mut changes = Vec::new();
            for item in new {
                let before = old.iter().find(|before| before["name"] == item["name"]);
                let Some(mut change) =
                    before.map_or_else(|| Some(item.clone()), |before| patch(before, item))
                else {
                    continue;
                };
                change["name"] = item["name"].clone();
                changes.push(change);
            }
            Some(Value::Array(changes))
        }
        _ => Some(new.clone()),
    }
}

/// With every list of things with a name in the order of the names: kustomize puts what it
/// merges first.
fn in_order(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(in_order),
        Value::Array(items) => {
            items.iter_mut().for_each(in_order);
            if items.iter().all(|item| item["name"].is_string()) {
                items.sort_by_key(|item| item["name"].to_string());
            }
        }
        _ => {}
    }
}

/// The files that an overlay is made of: their names, and the objects in them.
fn files(base: &[Value], overlay: &[Value]) -> [(&'static str, Vec<Value>); 2] {
    let (mut added, mut changed) = (Vec::new(), Vec::new());
    for object in overlay {
        match base.iter().find(|before| name(before) == name(object)) {
            None => added.push(object.clone()),
            Some(before) => {
                if let Some(mut change) = patch(before, object) {
                    change["apiVersion"] = object["apiVersion"].clone();
                    change["kind"] = object["kind"].clone();
                    change["metadata"]["name"] = object["metadata"]["name"].clone();
                    changed.push(change);
                }
            }
        }
    }
    [("resources.yaml", added), ("patch.yaml", changed)]
}

/// Objects as kustomize writes them.
fn written(kustomize: &Kustomize, objects: &[Value]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut names = Vec::new();
    for (index, object) in objects.iter().enumerate() {
        let file = format!("{index}.yaml");
        std::fs::write(folder.path().join(&file), object.to_string()).unwrap();
        names.push(file);
    }
    let kustomization = json!({"resources": names});
    std::fs::write(folder.path().join("kustomization.yaml"), kustomization.to_string()).unwrap();
    HEADER.to_owned() + &kustomize.print(folder.path().to_str().unwrap())
}

/// Compares a file, or writes it.
fn check(folder: &str, file: &str, text: &str) {
    let path: PathBuf = root().join(folder).join(file);
    if std::env::var_os(ACCEPT).is_some() {
        std::fs::write(path, text).unwrap();
        return;
    }
    let now = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(now == text, "{folder}/{file} is not what the chart says; `make chart-accept` writes it anew");
}

#[test]
fn kustomize_and_the_chart_make_the_same_objects() {
    let (Some(helm), Some(kustomize)) = (Helm::find(), Kustomize::find()) else { return };
    let base = rendered(&helm, BASE);
    check(BASE, "resources.yaml", &written(&kustomize, &base));
    for overlay in OVERLAYS {
        let folder = overlay.folder();
        let wanted = rendered(&helm, &folder);
        let [added, changed] = files(&base, &wanted);
        for (file, objects) in [added, changed] {
            if !objects.is_empty() {
                check(&folder, file, &written(&kustomize, &objects));
            }
        }
        let mut built = kustomize.build(&folder);
        for object in &mut built {
            // Kustomize says of all what the chart leaves to `--namespace`.
            if let Some(metadata) = object["metadata"].as_object_mut() {
                metadata.remove("namespace");
            }
        }
        let sorted = |mut objects: Vec<Value>| {
            objects.sort_by_key(name);
            objects.iter_mut().for_each(in_order);
            objects
        };
        let (built, wanted) = (sorted(built), sorted(wanted));
        let names = |objects: &[Value]| objects.iter().map(name).collect::<Vec<_>>();
        assert_eq!(names(&built), names(&wanted), "{overlay}");
        for (built, wanted) in built.iter().zip(&wanted) {
            assert_eq!(built, wanted, "{overlay}");
        }
    }
}
