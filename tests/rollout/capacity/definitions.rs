//! The definitions in the chart are what the types say.

use std::path::Path;

use serde_json::Value;
use usher::capacity::resource::definitions;

use crate::capacity::program::usher;

/// Set: the files are written instead of compared.
const ACCEPT: &str = "USHER_ACCEPT";

#[test]
fn crds_of_the_chart_match_the_types() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/chart/crds");
    let mut names = Vec::new();
    for definition in definitions() {
        let file = format!("{}.yaml", definition.plural);
        let (path, text) = (folder.join(&file), definition.yaml());
        if std::env::var_os(ACCEPT).is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(written == text, "{file} is not what the types say; `make crds-accept` writes it anew");
        // What is written is read as the same.
        let read: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(read, definition.object, "{file}");
        let (mut times, mut others) = (0, Vec::new());
        walk(&read, &mut |name, property| {
            if property["type"] == "string" && name.to_lowercase().ends_with("time") {
                times += 1;
                others.extend((property["format"] != "date-time").then(|| name.to_owned()));
            }
        });
        assert!(times > 0 && others.is_empty(), "{file}: times that aren't date-time: {others:?}");
        names.push(file);
    }
    let mut there: Vec<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    there.sort();
    assert_eq!(there, names);
    let printed = usher(&["crds"], "");
    let files = names.iter().map(|name| std::fs::read_to_string(folder.join(name)).unwrap());
    assert_eq!(String::from_utf8(printed.stdout).unwrap(), files.collect::<Vec<_>>().join("---\n"));
}

/// Visits all properties of a schema, each with its name.
fn walk(schema: &Value, visit: &mut impl FnMut(&str, &Value)) {
    let nested: Vec<&Value> = match schema {
        Value::Array(all) => all.iter().collect(),
        Value::Object(all) => all.values().collect(),
        _ => Vec::new(),
    };
    if let Some(properties) = schema["properties"].as_object() {
        properties.iter().for_each(|(name, property)| visit(name, property));
    }
    nested.into_iter().for_each(|part| walk(part, visit));
}
