//! From the samples of one page to the load of its endpoint.

use std::sync::Arc;

use crate::endpoints::{Adapters, Endpoint, Load};

use super::engine::{Engine, Feed, Field, Fields, Join};
use super::exposition::Line;
use super::joined::{Joined, Point};
use super::labels::{LabelValue, Labels};

const MAX_ADAPTERS: &str = "max_lora";
const RUNNING_ADAPTERS: &str = "running_lora_adapters";
const WAITING_ADAPTERS: &str = "waiting_lora_adapters";

/// Labels about adapters that are longer than this are refused, so that a
/// server can't make the picker hold megabytes of names.
const MAX_ADAPTER_BYTES: usize = 64 << 10;

/// Fields that could not be read from a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    /// Fields that the engine should have and the page hadn't.
    pub missing: Fields,
    /// Fields with a value that can't be: negative, not a number, infinite.
    pub refused: Fields,
}

impl Problems {
    /// Returns `true` if everything was read.
    pub fn is_empty(self) -> bool {
        self.missing.is_empty() && self.refused.is_empty()
    }
}

/// The series of adapters that was changed last.
#[derive(Debug, Default)]
struct Latest {
    /// The server's time of the change; the first of equals counts.
    at: Option<f64>,
    labels: Vec<u8>,
}

/// Values that have been read of a page. Nothing reaches the endpoint before the page
/// is complete. Buffers are kept from page to page.
#[derive(Debug)]
pub struct Readings {
    engine: Arc<Engine>,
    /// Namespace and pod whose series count, where a page has those of several; `None`: all do.
    pod: Option<(String, String)>,
    values: Joined,
    refused: Fields,
    latest: Latest,
    /// Labels of the adapters that went to the endpoint, and what they said: equal labels
    /// needn't be parsed again while it still has that.
    applied: Option<(Vec<u8>, Arc<Adapters>)>,
}

impl Readings {
    /// Readings of pages of an engine.
    pub fn new(engine: Arc<Engine>) -> Self {
        Self {
            engine,
            pod: None,
            values: Joined::default(),
            refused: Fields::default(),
            latest: Latest::default(),
            applied: None,
        }
    }

    /// Only this endpoint's series count where a page has those of several pods.
    #[must_use]
    pub fn of_endpoint(self, endpoint: &Endpoint) -> Self {
        Self { pod: Some((endpoint.namespace().to_owned(), endpoint.pod().to_owned())), ..self }
    }

    /// Forgets what has been read and not applied.
    pub fn restart(&mut self) {
        self.values.clear();
        self.refused = Fields::default();
        self.latest.at = None;
    }

    /// Takes a line of the engine's metric at position `metric`.
    pub fn take(&mut self, metric: usize, line: Line<'_>) {
        let Some(&feed) = self.engine.feeds.get(metric) else { return };
        let Line::Sample { labels, value, timestamp } = line else {
            self.refused = self.refused.and(feed.fields());
            return;
        };
        let point = timestamp.filter(|at| at.is_finite()).map(|at| Point::new(labels, at));
        match feed {
            Feed::Value(field) => self.value(field, value, field.join(), point),
            Feed::Attribute(id, reading) => {
                if !reading.of_pod || self.is_own(labels) {
                    self.value(Field::Attribute(id), value * reading.factor, reading.join, point);
                }
            }
            Feed::CacheInfo => {
                let engine = Arc::clone(&self.engine);
                let of = |label: &Option<String>| label.as_ref().and_then(|label| labels.get(label));
                self.integer(Field::BlockSize, of(&engine.block_size_label), point);
                self.integer(Field::NumBlocks, of(&engine.num_blocks_label), point);
            }
            Feed::Adapters => self.adapters(labels, value),
        }
    }

    /// Writes the fields that were read. The others keep their value and get
    /// older. `now_ms` is from the [`Clock`](crate::endpoints::Clock).
    pub fn apply(&mut self, load: &Load, now_ms: u64) -> Problems {
        let mut read = Fields::default();
        for (field, _) in self.engine.fields() {
            let Some(value) = self.values.get(field) else { continue };
            if !value.is_finite() {
                // A value that counts can't be, or each could and their sum can't.
                self.refused = self.refused.with(field);
            }
            if let Some(gauge) = field.gauge(load).filter(|_| !self.refused.has(field)) {
                gauge.set(value, now_ms);
                read = read.with(field);
            }
        }
        if self.latest.at.is_some() {
            self.apply_adapters(load);
            let running = load.adapters.load().as_ref().map_or(0, |adapters| adapters.running.len());
            load.adapters_read.set(running as f64, now_ms);
            read = read.with(Field::Adapters);
        }
        if !read.is_empty() {
            load.scraped(now_ms);
        }
        let missing = self.engine.expected().without(read).without(self.refused);
        let problems = Problems { missing, refused: self.refused };
        self.restart();
        problems
    }

    fn value(&mut self, field: Field, value: f64, join: Join, point: Option<Point>) {
        // Of the points of a series only the newest has to be possible, and this may not be it.
        let value = match field {
            _ if !field.allows(value) => f64::NAN,
            Field::KvUsage => value.min(1.0),
            _ => value,
        };
        self.values.add(field, value, join, point);
    }

    /// Returns `true` if the labels are the endpoint's, or don't say whose they are.
    fn is_own(&self, labels: Labels<'_>) -> bool {
        let Some((namespace, pod)) = &self.pod else { return true };
        let allows = |label, name: &str| {
            labels.get(label).is_none_or(|value: LabelValue<'_>| value.is(name) || value.is(""))
        };
        allows("namespace", namespace) && allows("pod", pod)
    }

    fn integer(&mut self, field: Field, label: Option<LabelValue<'_>>, point: Option<Point>) {
        let Some(label) = label else { return };
        match label.text().trim().parse::<u32>() {
            Ok(number) => self.value(field, f64::from(number), field.join(), point),
            Err(_) => self.refused = self.refused.with(field),
        }
    }

    /// Every combination of adapters that the server has had is a series of
    /// its own; the one with the largest value is the present.
    fn adapters(&mut self, labels: Labels<'_>, value: f64) {
        if !(0.0..f64::INFINITY).contains(&value) || labels.raw().len() > MAX_ADAPTER_BYTES {
            self.refused = self.refused.with(Field::Adapters);
        } else if self.latest.at.is_none_or(|at| value > at) {
            self.latest.at = Some(value);
            self.latest.labels.clear();
            self.latest.labels.extend_from_slice(labels.raw());
        }
    }

    fn apply_adapters(&mut self, load: &Load) {
        let old = load.adapters.load();
        // Another extractor may have written since.
        let has = |adapters: &Arc<Adapters>| old.as_ref().is_some_and(|old| Arc::ptr_eq(old, adapters));
        if self.applied.as_ref().is_some_and(|(labels, known)| *labels == self.latest.labels && has(known)) {
            return;
        }
        let labels = Labels::from_raw(&self.latest.labels);
        let list = |name| labels.get(name).map_or_else(Vec::new, |value| names(&value.text()));
        let max = match labels.get(MAX_ADAPTERS).map(|value| value.text().trim().parse()) {
            Some(Ok(max)) => max,
            other => {
                if other.is_some() {
                    self.refused = self.refused.with(Field::Adapters);
                }
                old.as_ref().map_or(0, |adapters| adapters.max)
            }
        };
        let new = Adapters { running: list(RUNNING_ADAPTERS), waiting: list(WAITING_ADAPTERS), max };
        let new = match old.as_ref().filter(|old| ***old == new) {
            Some(same) => Arc::clone(same),
            None => {
                let new = Arc::new(new);
                load.adapters.store(Some(Arc::clone(&new)));
                new
            }
        };
        // A refused maximum is reported with every page, not only with the first.
        self.applied = (!self.refused.has(Field::Adapters)).then(|| (self.latest.labels.clone(), new));
    }
}

/// Reads a list of names separated by commas.
fn names(list: &str) -> Vec<String> {
    list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoints::AttributeId;
    use crate::scrape::engine::{AttributeReading, AttributeSpec, EngineSpec};
    use crate::scrape::exposition::MetricSpec;

    fn read(load: &Load, now_ms: u64, page: &str) -> Problems {
        read_as(EngineSpec::vllm(), load, now_ms, page)
    }

    fn read_as(spec: EngineSpec, load: &Load, now_ms: u64, page: &str) -> Problems {
        let engine = Arc::new(Engine::new(spec));
        let mut readings = Readings::new(Arc::clone(&engine));
        engine.wanted().scan(page.as_bytes(), |metric, line| readings.take(metric, line));
        readings.apply(load, now_ms)
    }

    fn numbers(load: &Load) -> [f64; 5] {
        [&load.waiting, &load.running, &load.kv_usage, &load.block_size, &load.num_blocks].map(|g| g.last())
    }

    const PAGE: &str = r#"
vllm:num_requests_waiting{engine="0"} 3
vllm:num_requests_waiting{engine="1"} 4
vllm:num_requests_running{engine="0"} 10
vllm:num_requests_running{engine="1"} 20
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1
vllm:cache_config_info{engine="1",num_gpu_blocks="500",block_size="16"} 1
"#;

    #[test]
    fn several_series_are_joined_as_the_metric_means() {
        let load = Load::default();
        assert!(read(&load, 5, PAGE).is_empty());
        assert_eq!(numbers(&load), [7.0, 30.0, 0.75, 16.0, 1500.0]);
        assert_eq!((load.scraped_at_ms(), load.waiting.read_at_ms()), (Some(5), Some(5)));
        assert!(load.adapters.load().is_none());
    }

    #[test]
    fn newest_point_of_a_series_counts() {
        let load = Load::default();
        let page = r#"
vllm:num_requests_waiting{engine="0"} 3 1000
vllm:num_requests_waiting{engine="0"} 5 2000
vllm:num_requests_waiting{engine="1"} 1 2000
vllm:num_requests_running{engine="0"} 10 2000
vllm:num_requests_running{engine="0"} 20 1000
vllm:kv_cache_usage_perc 0.75 1700000000.25
vllm:kv_cache_usage_perc 0.25 1700000000.5
vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1 1000
vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1 2000
"#;
        assert!(read(&load, 5, page).is_empty());
        assert_eq!(numbers(&load), [6.0, 10.0, 0.25, 16.0, 1000.0]);
    }

    #[test]
    fn an_impossible_value_keeps_the_old_one_and_its_age() {
        for bad in ["NaN", "-1", "+Inf", "-Inf", "many", ""] {
            let load = Load::default();
            read(&load, 5, PAGE);
            let problems =
                read(&load, 9, &format!("{PAGE}vllm:num_requests_waiting{{engine=\"2\"}} {bad}\n"));
            assert_eq!(problems.refused, Fields::of(Field::Waiting), "{bad}");
            assert!(problems.missing.is_empty());
            assert_eq!((load.waiting.last(), load.waiting.read_at_ms()), (7.0, Some(5)), "{bad}");
            assert_eq!((load.running.read_at_ms(), load.scraped_at_ms()), (Some(9), Some(9)));
        }
        let load = Load::default();
        let huge = "vllm:num_requests_waiting 1e308\nvllm:num_requests_waiting 1e308\n";
        assert_eq!(read(&load, 5, huge).refused, Fields::of(Field::Waiting), "the sum overflows");
        assert_eq!((load.waiting.read_at_ms(), load.scraped_at_ms()), (None, None));
    }

    #[test]
    fn only_the_newest_point_of_a_series_is_validated() {
        let (waiting, kv) = ("vllm:num_requests_waiting", "vllm:kv_cache_usage_perc");
        // The points of a series that counts up and of one whose largest counts; what is read.
        let table: [(&[(&str, u32)], Option<f64>); 6] = [
            (&[("NaN", 1000), ("1", 2000)], Some(1.0)),
            (&[("1", 2000), ("-1", 1000)], Some(1.0)),
            (&[("NaN", 1000), ("-1", 2000), ("1", 3000)], Some(1.0)),
            (&[("1", 1000), ("NaN", 2000)], None),
            (&[("NaN", 2000), ("1", 1000)], None),
            (&[("1", 1000), ("+Inf", 2000)], None),
        ];
        for (points, want) in table {
            let load = Load::default();
            read(&load, 5, PAGE);
            let line = |name: &str, (value, at): &(&str, u32)| format!("{name} {value} {at}\n");
            let page: String =
                [waiting, kv].iter().flat_map(|name| points.iter().map(|p| line(name, p))).collect();
            let problems = read(&load, 9, &page);
            let refused = Fields::of(Field::Waiting).with(Field::KvUsage);
            assert_eq!(
                problems.refused,
                if want.is_some() { Fields::default() } else { refused },
                "{points:?}"
            );
            let read = [&load.waiting, &load.kv_usage].map(|gauge| (gauge.last(), gauge.read_at_ms()));
            let was = [(7.0, Some(5)), (0.75, Some(5))];
            assert_eq!(read, want.map_or(was, |value| [(value, Some(9)); 2]), "{points:?}");
        }
        // Another series doesn't make an impossible one good, nor does what comes later.
        for page in [
            "vllm:num_requests_waiting{e=\"0\"} NaN 2000\nvllm:num_requests_waiting{e=\"1\"} 1 3000\n",
            "vllm:num_requests_waiting{e=\"0\"} 1\nvllm:num_requests_waiting{e=\"0\"} NaN\n",
        ] {
            assert_eq!(read(&Load::default(), 5, page).refused, Fields::of(Field::Waiting), "{page}");
        }
    }

    #[test]
    fn reading_of_a_missing_family_ages_alone() {
        let load = Load::default();
        read(&load, 5, PAGE);
        let problems =
            read(&load, 9, "vllm:num_requests_running 1\nvllm:cache_config_info{block_size=\"32\"} 1");
        let missing = Fields::of(Field::Waiting).with(Field::KvUsage).with(Field::NumBlocks);
        assert_eq!(problems.missing, missing);
        assert_eq!(load.waiting.read_at_ms(), Some(5));
        assert_eq!(numbers(&load), [7.0, 1.0, 0.75, 32.0, 1500.0]);
        assert_eq!(load.scraped_at_ms(), Some(9));
        read(&load, 12, "nothing 1\n");
        assert_eq!(load.scraped_at_ms(), Some(9), "nothing was read");
    }

    #[test]
    fn out_of_range_values_are_clamped_or_refused() {
        let load = Load::default();
        let page = "vllm:kv_cache_usage_perc 1.5\nvllm:cache_config_info{block_size=\"None\",num_gpu_blocks=\"-1\"} 1";
        let problems = read(&load, 5, page);
        assert_eq!(load.kv_usage.last(), 1.0);
        assert_eq!(problems.refused, Fields::of(Field::BlockSize).with(Field::NumBlocks));
    }

    #[test]
    fn metric_value_replaces_the_info_label() {
        let load = Load::default();
        let spec = EngineSpec { num_blocks: Some(MetricSpec::named("blocks")), ..EngineSpec::vllm() };
        let page = format!("blocks 70\n{PAGE}");
        assert!(read_as(spec.clone(), &load, 5, &page).is_empty());
        assert_eq!(numbers(&load), [7.0, 30.0, 0.75, 16.0, 70.0]);
        let problems = read_as(spec, &load, 9, PAGE);
        assert_eq!((problems.missing, load.num_blocks.read_at_ms()), (Fields::of(Field::NumBlocks), Some(5)));
    }

    #[test]
    fn an_attribute_is_any_finite_number_of_the_first_series() {
        let id = AttributeId::new(3).unwrap();
        let metric = MetricSpec { name: "t".to_owned(), labels: vec![("unit".to_owned(), "c".to_owned())] };
        let reading = AttributeReading::default();
        let attributes =
            vec![AttributeSpec { id: id.into(), name: "temperature".to_owned(), metric, reading }];
        let spec = EngineSpec { attributes, ..EngineSpec::default() };
        let read = |load: &Load, now_ms, page: &str| read_as(spec.clone(), load, now_ms, page);
        let load = Load::default();
        let page = "t{unit=\"f\"} 1\nt{unit=\"c\",gpu=\"0\"} -40.5\nt{unit=\"c\",gpu=\"1\"} 7\n";
        assert!(read(&load, 5, page).is_empty());
        let gauge = load.attribute(id);
        assert_eq!((gauge.last(), gauge.read_at_ms(), load.scraped_at_ms()), (-40.5, Some(5), Some(5)));
        for bad in ["NaN", "+Inf", "-Inf", "cold"] {
            let problems = read(&load, 9, &format!("t{{unit=\"c\"}} {bad}\n"));
            assert_eq!(problems.refused, Fields::of(Field::Attribute(id)), "{bad}");
        }
        assert_eq!(read(&load, 9, "t 1\n").missing, Fields::of(Field::Attribute(id)));
        assert_eq!((gauge.last(), gauge.read_at_ms()), (-40.5, Some(5)));
        let other = load.attribute(AttributeId::new(2).unwrap());
        assert_eq!(other.read_at_ms(), None);
    }

    #[test]
    fn the_last_of_several_readers_of_adapters_counts() {
        let of = |adapter: &str, at: f64| {
            let labels = format!("running_lora_adapters=\"{adapter}\",max_lora=\"4\"");
            format!("vllm:lora_requests_info{{{labels}}} {at}\n")
        };
        let load = Load::default();
        let engine = Arc::new(Engine::new(EngineSpec::vllm()));
        let mut readers = [(); 2].map(|()| Readings::new(Arc::clone(&engine)));
        for (first, second) in [("a", "b"), ("a", "b"), ("c", "b")] {
            for (readings, adapter) in readers.iter_mut().zip([first, second]) {
                engine.wanted().scan(of(adapter, 1.0).as_bytes(), |metric, line| readings.take(metric, line));
                readings.apply(&load, 1);
                assert_eq!(load.adapters.load_full().unwrap().running, [adapter], "{first} {second}");
            }
        }
    }

    #[test]
    fn the_latest_series_of_adapters_counts() {
        let series = |max: &str, running: &str, waiting: &str, at: f64| {
            let lists = format!("running_lora_adapters=\"{running}\",waiting_lora_adapters=\"{waiting}\"");
            format!("vllm:lora_requests_info{{max_lora=\"{max}\",{lists}}} {at}\n")
        };
        let load = Load::default();
        let page =
            series("4", "a, b,,", "", 10.0) + &series("4", "c", " d ,e", 30.5) + &series("4", "f", "", 20.0);
        assert!(read(&load, 5, &(page + PAGE)).is_empty());
        let adapters = load.adapters.load_full().unwrap();
        let want = Adapters { running: vec!["c".into()], waiting: vec!["d".into(), "e".into()], max: 4 };
        assert_eq!(*adapters, want);

        read(&load, 6, PAGE);
        assert!(Arc::ptr_eq(&adapters, &load.adapters.load_full().unwrap()), "unchanged, nothing replaced");
        assert_eq!(load.adapters_read.read_at_ms(), Some(5), "and what isn't there grows old");

        let problems = read(&load, 7, &(series("?", "x", "", 40.0) + PAGE));
        assert_eq!(problems.refused, Fields::of(Field::Adapters));
        let want = Adapters { running: vec!["x".into()], waiting: vec![], max: 4 };
        assert_eq!(*load.adapters.load_full().unwrap(), want, "the lists count, the maximum stays");

        let long = series("4", &"y".repeat(MAX_ADAPTER_BYTES), "", 50.0) + &series("4", "z", "", f64::NAN);
        let problems = read(&load, 8, &(long + PAGE));
        assert_eq!(problems.refused, Fields::of(Field::Adapters));
        assert_eq!(*load.adapters.load_full().unwrap(), want);
    }

    #[test]
    fn restart_discards_unapplied_readings() {
        let engine = Arc::new(Engine::new(EngineSpec::vllm()));
        let mut readings = Readings::new(Arc::clone(&engine));
        let load = Load::default();
        engine.wanted().scan(b"vllm:num_requests_waiting 5", |metric, line| readings.take(metric, line));
        readings.restart();
        engine.wanted().scan(b"vllm:num_requests_running 6", |metric, line| readings.take(metric, line));
        let problems = readings.apply(&load, 5);
        assert!(problems.missing.has(Field::Waiting));
        assert_eq!(numbers(&load), [0.0, 6.0, 0.0, 0.0, 0.0]);
    }
}
