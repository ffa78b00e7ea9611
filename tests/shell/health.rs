use std::collections::HashMap;
use std::time::Duration;

use http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use usher::settings::TlsSettings;

use crate::server::{Running, plain, secure};

pub(crate) async fn check(channel: &Channel, service: &str) -> ServingStatus {
    let request = HealthCheckRequest { service: service.to_owned() };
    HealthClient::new(channel.clone()).check(request).await.unwrap().into_inner().status()
}

#[derive(Clone, PartialEq, prost::Message)]
struct Empty {}

#[derive(Clone, PartialEq, prost::Message)]
struct ListResponse {
    #[prost(map = "string, message", tag = "1")]
    statuses: HashMap<String, HealthCheckResponse>,
}

/// A unary call without a message. The stock client doesn't know `List`.
async fn call(channel: &Channel, path: &'static str) -> Result<Response<ListResponse>, Status> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::default();
    grpc.unary(Request::new(Empty {}), PathAndQuery::from_static(path), codec).await
}

#[tokio::test]
async fn both_ports_respond_over_tls_and_in_plain_text() {
    let server = Running::start(Some(TlsSettings::default()), Duration::ZERO);
    let channels = [plain(server.health_port).await, secure(server.extproc).await];
    for channel in &channels {
        for name in ["", "inference-extension", "envoy.service.ext_proc.v3.ExternalProcessor", "no such"] {
            assert_eq!(check(channel, name).await, ServingStatus::Serving, "{name:?}");
        }
    }
    server.health.set_plugins_ready(false);
    for channel in &channels {
        assert_eq!(check(channel, "").await, ServingStatus::NotServing);
    }
    server.health.set_plugins_ready(true);
    for channel in &channels {
        assert_eq!(check(channel, "").await, ServingStatus::Serving);
    }
}

#[tokio::test]
async fn health_list_names_the_service_and_watch_streams_changes() {
    let server = Running::plain();
    for port in [server.health_port, server.extproc] {
        let channel = plain(port).await;
        let list = call(&channel, "/grpc.health.v1.Health/List").await.unwrap().into_inner();
        let statuses: Vec<_> = list.statuses.iter().map(|(name, it)| (name.as_str(), it.status())).collect();
        assert_eq!(statuses, [("envoy.service.ext_proc.v3.ExternalProcessor", ServingStatus::Serving)]);
        let watch = HealthClient::new(channel).watch(HealthCheckRequest::default()).await;
        let mut watch = watch.unwrap().into_inner();
        let mut next = async || watch.message().await.unwrap().map(|it| it.status());
        assert_eq!(next().await, Some(ServingStatus::Serving));
        server.health.set_synced(false);
        assert_eq!(next().await, Some(ServingStatus::NotServing));
        server.health.set_synced(true);
        assert_eq!(next().await, Some(ServingStatus::Serving));
    }
}

/// Open watches don't keep a server from stopping.
#[tokio::test]
async fn a_watch_ends_with_the_server() {
    let server = Running::plain();
    let mut watches = Vec::new();
    for port in [server.health_port, server.extproc] {
        let watch = HealthClient::new(plain(port).await).watch(HealthCheckRequest::default()).await;
        let mut watch = watch.unwrap().into_inner();
        assert!(watch.message().await.unwrap().is_some());
        watches.push(watch);
    }
    server.health.set_draining();
    for mut watch in watches {
        assert_eq!(watch.message().await.unwrap().map(|it| it.status()), Some(ServingStatus::NotServing));
        assert_eq!(watch.message().await.unwrap(), None);
    }
}

#[tokio::test]
async fn other_services_are_unimplemented() {
    let server = Running::plain();
    for port in [server.health_port, server.extproc] {
        let channel = plain(port).await;
        for path in ["/usher.None/Call", "/grpc.health.v1.Health/Guess", "/grpc.health.v1.Healthy/Check"] {
            assert_eq!(call(&channel, path).await.unwrap_err().code(), Code::Unimplemented, "{path}");
        }
    }
    let channel = plain(server.extproc).await;
    let status = call(&channel, "/envoy.service.ext_proc.v3.ExternalProcessor/Guess").await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
}
