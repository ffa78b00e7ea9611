//! Simulated servers that publish KV events.

use usher::sim::{Form, KvEventsConfig, Target};

use crate::support::servers::{SERVERS, Servers, configs, quick};

/// Starts servers, of which all but the last publish to this `host:port`.
pub(crate) async fn start_publishing(to: &str) -> Servers {
    let mut configs = configs(vec![quick(); SERVERS]);
    let (_, publishing) = configs.split_last_mut().unwrap();
    for config in publishing {
        let target = Target::Connect(to.to_owned());
        config.kv_events = Some(KvEventsConfig { form: Form::Array, target });
    }
    Servers::start_all(configs).await
}
