{{/*
  Envoy's configuration: deploy/envoy/original-dst.yaml, whose comments say why, in a pod.
  What is different: it listens on all interfaces, answers /ready and /stats/prometheus, and
  finds Usher and the model servers by name. The tests start Envoy with what this comes to.
*/}}
{{- define "usher.envoyConfig" -}}
{{- $proxy := .Values.router.proxy -}}
{{- $isSidecar := include "usher.hasSidecar" . -}}
{{- $domain := printf "%s.svc.%s" .Release.Namespace .Values.router.clusterDomain -}}
admin:
  address: { socket_address: { address: 127.0.0.1, port_value: 19000 } }

overload_manager:
  resource_monitors:
  - name: envoy.resource_monitors.global_downstream_max_connections
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig
      max_active_downstream_connections: 50000

static_resources:
  listeners:
  # For the kubelet and for Prometheus: nothing else of the admin interface.
  - name: ready
    address: { socket_address: { address: 0.0.0.0, port_value: {{ $proxy.readyPort }} } }
    ignore_global_conn_limit: true
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: ready
          http_filters:
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
          route_config:
            name: ready
            virtual_hosts:
            - name: ready
              domains: ["*"]
              routes:
              - match: { path: /ready }
                route: { cluster: admin }
              - match: { path: /stats/prometheus }
                route: { cluster: admin }

  - name: inference
    address: { socket_address: { address: 0.0.0.0, port_value: {{ $proxy.port }} } }
    per_connection_buffer_limit_bytes: 32768
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: inference
          codec_type: AUTO
          http_protocol_options:
            enable_trailers: true
          http2_protocol_options:
            initial_stream_window_size: 65536
            initial_connection_window_size: 1048576

          access_log:
          - name: envoy.access_loggers.stdout
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog
              log_format:
                text_format_source:
                  inline_string: "%START_TIME% %REQ(:METHOD)% %PATH(NQ)% status=%RESPONSE_CODE% flags=%RESPONSE_FLAGS% picked=%REQ(X-GATEWAY-DESTINATION-ENDPOINT)% upstream=%UPSTREAM_HOST% attempts=%UPSTREAM_REQUEST_ATTEMPT_COUNT% bytes=%BYTES_RECEIVED%/%BYTES_SENT% ms=%DURATION% id=%REQ(X-REQUEST-ID)%\n"

          # The client must not choose the model server: these are Usher's to set.
          early_header_mutation_extensions:
          - name: envoy.http.early_header_mutation.header_mutation
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation
              mutations:
              - remove: x-gateway-destination-endpoint
              - remove: x-gateway-destination-endpoint-served
              - remove: x-prefiller-host-port
              - remove: x-encoder-hosts-ports
              - remove: x-data-parallel-host-port
              - remove: x-kv-cache-source-host-port
              - remove: x-llm-d-request-dropped-reason
              {{- range $header := include "usher.trustedHeaders" . | fromJsonArray }}
              {{- if not (has $header $proxy.clientHeaders) }}
              - remove: {{ $header }}
              {{- end }}
              {{- end }}

          http_filters:
          - name: envoy.filters.http.ext_proc
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
              grpc_service:
                envoy_grpc: { cluster_name: usher, authority: usher }
              processing_mode:
                request_header_mode: SEND
                response_header_mode: SEND
                request_body_mode: FULL_DUPLEX_STREAMED
                response_body_mode: {{ ternary "FULL_DUPLEX_STREAMED" "NONE" $proxy.responseBodies }}
                request_trailer_mode: SEND
                response_trailer_mode: {{ ternary "SEND" "SKIP" $proxy.responseBodies }}
              message_timeout: 1000s
              failure_mode_allow: {{ $proxy.failOpen }}
              status_on_error: { code: ServiceUnavailable }

          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
              suppress_envoy_headers: true

          route_config:
            name: inference
            virtual_hosts:
            - name: inference
              domains: ["*"]
              routes:
              - match:
                  prefix: /
                  headers:
                  - { name: x-gateway-destination-endpoint, present_match: true }
                route:
                  cluster: chosen_endpoint
                  timeout: 86400s
                  idle_timeout: 86400s
              {{- if $proxy.failOpen }}
              - match: { prefix: / }
                route:
                  cluster: model_servers
                  timeout: 86400s
                  idle_timeout: 86400s
                  retry_policy:
                    retry_on: connect-failure,refused-stream,reset-before-request
                    num_retries: 2
                    retry_back_off: { base_interval: 0.001s, max_interval: 0.010s }
                    retry_host_predicate:
                    - name: envoy.retry_host_predicates.previous_hosts
                      typed_config:
                        "@type": type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate
                    host_selection_retry_max_attempts: 20
              {{- else }}
              # Usher is not there, and failure_mode_allow is false: it has been answered.
              # The route is what requests have before Usher names an endpoint.
              - match: { prefix: / }
                route:
                  cluster: chosen_endpoint
                  timeout: 86400s
                  idle_timeout: 86400s
              {{- end }}

  clusters:
  - name: admin
    type: STATIC
    connect_timeout: 1s
    load_assignment:
      cluster_name: admin
      endpoints:
      - lb_endpoints:
        - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 19000 } } }

  - name: chosen_endpoint
    type: ORIGINAL_DST
    lb_policy: CLUSTER_PROVIDED
    original_dst_lb_config:
      use_http_header: true
      http_header_name: x-gateway-destination-endpoint
    connect_timeout: 1s
    circuit_breakers:
      thresholds:
      - { max_connections: 40000, max_pending_requests: 40000, max_requests: 40000, max_retries: 40000 }
    {{- include "usher.envoyUpstream" . | nindent 4 }}
  {{- if $proxy.failOpen }}

  # The model servers, for the time when Usher is away.
  - name: model_servers
    type: STRICT_DNS
    lb_policy: LEAST_REQUEST
    connect_timeout: 1s
    circuit_breakers:
      thresholds:
      - { max_connections: 40000, max_pending_requests: 40000, max_requests: 40000, max_retries: 40000 }
    {{- include "usher.envoyUpstream" . | nindent 4 }}
    load_assignment:
      cluster_name: model_servers
      endpoints:
      - lb_endpoints:
        {{- range .Values.router.modelServers.targetPorts }}
        - endpoint: { address: { socket_address: { address: {{ include "usher.modelServersName" $ }}.{{ $domain }}, port_value: {{ .number }} } } }
        {{- end }}
  {{- end }}

  - name: usher
    {{- if $isSidecar }}
    # The one in this pod. No health checks: while it drains it says that it is not ready,
    # and still responds, and there is no other to ask.
    type: STATIC
    {{- else }}
    # All replicas, ready or not: their names are looked up, and each is asked whether it is
    # ready. One that starts, drains or waits says no. One that says so still responds, for
    # --drain-timeout (30 s) or as long as it waits; so it is asked eight times, until its
    # successor's name has come round: 5 s for Envoy to look, 5 s in a name server's cache.
    type: STRICT_DNS
    health_checks:
    - timeout: 1s
      interval: 2s
      no_traffic_interval: 2s
      unhealthy_threshold: 8
      healthy_threshold: 1
      grpc_health_check: { service_name: envoy.service.ext_proc.v3.ExternalProcessor }
    {{- end }}
    lb_policy: LEAST_REQUEST
    connect_timeout: 1s
    circuit_breakers:
      thresholds:
      - { max_connections: 40000, max_pending_requests: 40000, max_requests: 40000, max_retries: 40000 }
    {{- if or $proxy.failOpen (not $isSidecar) }}
    # The first that cannot connect takes Usher out, so that the next need not try.
    outlier_detection:
      split_external_local_origin_errors: true
      consecutive_local_origin_failure: 1
      enforcing_consecutive_local_origin_failure: 100
      enforcing_local_origin_success_rate: 0
      enforcing_consecutive_5xx: 0
      enforcing_consecutive_gateway_failure: 0
      enforcing_success_rate: 0
      interval: 1s
      # Without health checks nothing else puts it back.
      base_ejection_time: {{ if $isSidecar }}1s{{ else }}10s{{ end }}
      max_ejection_time: {{ if $isSidecar }}2s{{ else }}300s{{ end }}
      max_ejection_percent: 100
    {{- end }}
    common_lb_config:
      healthy_panic_threshold: { value: 0 }
      update_merge_window: 0s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config:
          http2_protocol_options:
            initial_stream_window_size: 65536
            initial_connection_window_size: 1048576
            connection_keepalive: { interval: 10s, timeout: 5s }
    {{- if include "usher.isSecure" . }}
    # Usher's certificate is of its own making: there is nothing to validate.
    transport_socket:
      name: envoy.transport_sockets.tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        common_tls_context:
          alpn_protocols: [h2]
    {{- end }}
    load_assignment:
      cluster_name: usher
      endpoints:
      - lb_endpoints:
        {{- if $isSidecar }}
        - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: {{ .Values.router.epp.extProcPort }} } } }
        {{- else }}
        - endpoint: { address: { socket_address: { address: {{ include "usher.allName" . }}.{{ $domain }}, port_value: {{ .Values.router.epp.extProcPort }} } } }
        {{- end }}
{{- end }}

{{/* Headers that Usher believes: priority, flow, model and latency targets. */}}
{{- define "usher.trustedHeaders" -}}
["x-llm-d-inference-objective",
 "x-gateway-inference-objective",
 "x-llm-d-inference-fairness-id",
 "x-gateway-inference-fairness-id",
 "x-llm-d-model-name-rewrite",
 "x-gateway-model-name-rewrite",
 "x-llm-d-slo-ttft-ms",
 "x-slo-ttft-ms",
 "x-llm-d-slo-tpot-ms",
 "x-slo-tpot-ms"]
{{- end }}

{{/* How the model servers are spoken to. */}}
{{- define "usher.envoyUpstream" -}}
typed_extension_protocol_options:
  envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
    "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
    explicit_http_config:
      {{- if eq .Values.router.modelServers.protocol "grpc" }}
      http2_protocol_options: {}
      {{- else }}
      http_protocol_options: { enable_trailers: true }
      {{- end }}
{{- end }}
