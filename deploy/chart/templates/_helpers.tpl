{{/* Name of Usher's objects, as in the peer's charts. */}}
{{- define "usher.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}-epp
{{- end }}

{{/* Name of the Envoy that is not a sidecar. */}}
{{- define "usher.proxyName" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}-proxy
{{- end }}

{{/* Name of the Valkey for trying out. */}}
{{- define "usher.valkeyName" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}-valkey
{{- end }}

{{/* Name of the Service of all replicas, ready or not. */}}
{{- define "usher.allName" -}}
{{ include "usher.name" . }}-all
{{- end }}

{{/* Name of the Service of the model servers, for the time when Usher is away. */}}
{{- define "usher.modelServersName" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}-model-servers
{{- end }}

{{- define "usher.poolName" -}}
{{ .Values.router.inferencePool.name | default .Release.Name }}
{{- end }}

{{- define "usher.serviceAccount" -}}
{{ .Values.router.epp.serviceAccount.name | default (include "usher.name" .) }}
{{- end }}

{{- define "usher.readerName" -}}
{{ include "usher.name" . }}-metrics-reader
{{- end }}

{{/* Name of what has no namespace. */}}
{{- define "usher.clusterName" -}}
{{- /* No namespace has a colon: team and a-llama are not team-a and llama. */ -}}
{{ .Release.Namespace }}:{{ include "usher.name" . }}
{{- end }}

{{- define "usher.eppLabels" -}}
app.kubernetes.io/name: usher
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: epp
{{- end }}

{{- define "usher.envoyLabels" -}}
app.kubernetes.io/name: usher
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: proxy
{{- end }}

{{- define "usher.valkeySelectorLabels" -}}
app.kubernetes.io/name: usher
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: valkey
{{- end }}

{{/* By what Services, Deployments and the rest find pods: another chart's labels, so that its
     pods are found, too, while ours take their place. */}}
{{- define "usher.selectorLabels" -}}
{{- with .Values.router.epp.selectorLabels }}{{ toYaml . }}{{ else }}{{ include "usher.eppLabels" . }}{{ end }}
{{- end }}

{{- define "usher.proxySelectorLabels" -}}
{{- with .Values.router.proxy.selectorLabels }}{{ toYaml . }}{{ else }}{{ include "usher.envoyLabels" . }}{{ end }}
{{- end }}

{{/* What pods bear: our labels, and those by which they are found. */}}
{{- define "usher.podLabels" -}}
{{ merge (include "usher.selectorLabels" . | fromYaml) (include "usher.eppLabels" . | fromYaml) | toYaml }}
{{- end }}

{{- define "usher.proxyPodLabels" -}}
{{ merge (include "usher.proxySelectorLabels" . | fromYaml) (include "usher.envoyLabels" . | fromYaml) | toYaml }}
{{- end }}

{{- define "usher.commonLabels" -}}
app.kubernetes.io/name: usher
app.kubernetes.io/instance: {{ .Release.Name }}
{{ include "usher.releaseLabels" . }}
{{- end }}

{{- define "usher.labels" -}}
{{ include "usher.eppLabels" . }}
{{ include "usher.releaseLabels" . }}
{{- end }}

{{- define "usher.proxyLabels" -}}
{{ include "usher.envoyLabels" . }}
{{ include "usher.releaseLabels" . }}
{{- end }}

{{- define "usher.releaseLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* An image: {registry, repository, tag}, and the tag for when there is none; or all of it
     in one text. */}}
{{- define "usher.image" -}}
{{- if kindIs "string" .image }}{{ .image }}{{ else }}{{ with .image.registry }}{{ . }}/{{ end }}{{ .image.repository }}:{{ .image.tag | default .tag }}{{ end }}
{{- end }}

{{/* "true" in these modes, empty otherwise. */}}
{{- define "usher.createsPool" -}}
{{- $create := .Values.router.inferencePool.create -}}
{{- if or (eq (toString $create) "true") (and (kindIs "invalid" $create) (not .Values.router.proxy.enabled)) -}}true{{- end -}}
{{- end }}

{{- define "usher.hasPool" -}}
{{- if or (include "usher.createsPool" .) .Values.router.inferencePool.name -}}true{{- end -}}
{{- end }}

{{/* Type of the plugin through which the configuration has replicas share their state; empty: it names none. */}}
{{- define "usher.syncer" -}}
{{- $config := index (include "usher.files" . | fromYaml) .Values.router.epp.pluginsConfigFile | default "" | fromYaml -}}
{{- $layer := index $config "dataLayer" | default dict -}}
{{- /* The newer key wins. */ -}}
{{- $ref := ($layer.crossReplica | default dict).syncerPluginRef | default $layer.crossReplicaSyncerPluginRef -}}
{{- range (index $config "plugins" | default list) -}}
{{- if and $ref (eq (.name | default .type) $ref) (has .type (list "redis-syncer" "redis-state-store" "local-syncer")) -}}{{ .type }}{{- end -}}
{{- end -}}
{{- end }}

{{/* "true" where replicas share their load: by these values, a flag or the configuration. */}}
{{- define "usher.shares" -}}
{{- $syncer := include "usher.syncer" . -}}
{{- if or (include "usher.stateStore" .) (index .Values.router.epp.flags "state-store") (and $syncer (ne $syncer "local-syncer")) -}}true{{- end -}}
{{- end }}

{{/* URL of the store, without a password; empty: there is none by these values. */}}
{{- define "usher.stateStore" -}}
{{- $store := .Values.router.stateStore -}}
{{- $address := ternary (printf "redis://%s.%s.svc.%s:6379" (include "usher.valkeyName" .) .Release.Namespace .Values.router.clusterDomain) $store.address $store.valkey.enabled -}}
{{- with $store.user -}}
{{- $address = replace "://" (printf "://%s@" .) $address -}}
{{- end -}}
{{ $address }}
{{- end }}

{{- define "usher.elects" -}}
{{- $epp := .Values.router.epp -}}
{{- $said := index $epp.flags "ha-enable-leader-election" -}}
{{- if kindIs "invalid" $said -}}
{{- $plans := or $epp.capacityPolicies.enabled (index $epp.flags "capacity-policy") (eq (toString (index $epp.flags "capacity-policies")) "true") -}}
{{- /* A rollout has two of one replica for a while. */ -}}
{{- if or $epp.capacityPolicies.apply.enabled (and (gt (int $epp.replicas) 1) (or $plans (not (include "usher.shares" .)))) -}}true{{- end -}}
{{- else if eq (toString $said) "true" -}}true{{- end -}}
{{- end }}

{{/* "true" where one is ready and the others wait. */}}
{{- define "usher.waits" -}}
{{- if and (include "usher.elects" .) (not (include "usher.shares" .)) -}}true{{- end -}}
{{- end }}

{{- define "usher.isSecure" -}}
{{- if ne (toString (index .Values.router.epp.flags "secure-serving")) "false" -}}true{{- end -}}
{{- end }}

{{/* prometheusoperator or gmp. GKE has the latter, as in the peer's charts. */}}
{{- define "usher.monitoringProvider" -}}
{{- .Values.router.monitoring.provider.name | default (ternary "gmp" "prometheusoperator" (eq .Values.provider.name "gke")) -}}
{{- end }}

{{/* "true" where metrics are served over TLS. */}}
{{- define "usher.metricsOverTls" -}}
{{- if index .Values.router.epp.flags "metrics-cert-dir" -}}true{{- end -}}
{{- end }}

{{- define "usher.hasSidecar" -}}
{{- if and .Values.router.proxy.enabled (eq .Values.router.proxy.mode "sidecar") -}}true{{- end -}}
{{- end }}

{{- define "usher.hasProxy" -}}
{{- if and .Values.router.proxy.enabled (eq .Values.router.proxy.mode "service") -}}true{{- end -}}
{{- end }}

{{/* Labels as a selector of `kubectl -l`. */}}
{{- define "usher.selector" -}}
{{- $pairs := list -}}
{{- range $key, $value := .Values.router.modelServers.matchLabels -}}
{{- $pairs = append $pairs (printf "%s=%s" $key $value) -}}
{{- end -}}
{{- join "," $pairs -}}
{{- end }}

{{- define "usher.ports" -}}
{{- $ports := list -}}
{{- range .Values.router.modelServers.targetPorts -}}
{{- $ports = append $ports (toString (int .number)) -}}
{{- end -}}
{{- join "," $ports -}}
{{- end }}

{{/* A value as a flag has it. Helm's numbers are floating-point: without int64 a million is 1e+06. */}}
{{- define "usher.flagValue" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) -}}{{ int64 . }}{{- else if kindIs "slice" . -}}{{ join "," . }}{{- else -}}{{ . }}{{- end -}}
{{- end }}

{{/* All flags of Usher, one per line. */}}
{{- define "usher.args" -}}
{{- $epp := .Values.router.epp -}}
{{- $flags := dict -}}
{{- if include "usher.hasPool" . -}}
{{- $_ := set $flags "pool-name" (include "usher.poolName" .) -}}
{{- $_ := set $flags "pool-group" "inference.networking.k8s.io" -}}
{{- else -}}
{{- $_ := set $flags "endpoint-selector" (include "usher.selector" .) -}}
{{- $_ := set $flags "endpoint-target-ports" (include "usher.ports" .) -}}
{{- end -}}
{{- $_ := set $flags "config-file" (printf "/config/%s" $epp.pluginsConfigFile) -}}
{{- $_ := set $flags "grpc-port" $epp.extProcPort -}}
{{- $_ := set $flags "grpc-health-port" $epp.grpcHealthPort -}}
{{- $_ := set $flags "metrics-port" $epp.metricsPort -}}
{{- $_ := set $flags "zap-encoder" "json" -}}
{{- $_ := set $flags "tracing" .Values.router.tracing.enabled -}}
{{- if not .Values.router.monitoring.prometheus.auth.enabled -}}
{{- $_ := set $flags "metrics-endpoint-auth" false -}}
{{- end -}}
{{- if $epp.capacityPolicies.enabled -}}
{{- $_ := set $flags "capacity-policies" true -}}
{{- end -}}
{{- if $epp.capacityPolicies.keda.enabled -}}
{{- $_ := set $flags "keda-address" (printf "0.0.0.0:%d" (int $epp.capacityPolicies.keda.port)) -}}
{{- end -}}
{{- if include "usher.elects" . -}}
{{- $_ := set $flags "ha-enable-leader-election" true -}}
{{- end -}}
{{- with include "usher.stateStore" . -}}
{{- $_ := set $flags "state-store" . -}}
{{- end -}}
{{- $store := .Values.router.stateStore -}}
{{- if $store.passwordSecret.name -}}
{{- $_ := set $flags "state-store-password-file" (printf "/state-store/password/%s" $store.passwordSecret.key) -}}
{{- end -}}
{{- if or $store.ca.secretName $store.ca.configMapName -}}
{{- $_ := set $flags "state-store-ca-file" (printf "/state-store/ca/%s" $store.ca.key) -}}
{{- end -}}
{{- if $store.clientCertSecret.name -}}
{{- $_ := set $flags "state-store-client-cert-file" "/state-store/client/tls.crt" -}}
{{- $_ := set $flags "state-store-client-key-file" "/state-store/client/tls.key" -}}
{{- end -}}
{{- range $name, $value := $epp.flags -}}
{{- $_ := set $flags $name $value -}}
{{- end -}}
{{- range $name, $value := $flags }}
- --{{ $name }}={{ include "usher.flagValue" $value }}
{{- end -}}
{{- end }}

{{/* Files of the configuration: name and text. */}}
{{- define "usher.files" -}}
{{- $epp := .Values.router.epp -}}
{{- $files := dict -}}
{{- if $epp.pluginsConfig -}}
{{- $_ := set $files $epp.pluginsConfigFile (toYaml $epp.pluginsConfig) -}}
{{- else -}}
{{- $default := list (dict "type" "queue-scorer" "weight" 2) (dict "type" "kv-cache-utilization-scorer" "weight" 2) (dict "type" "prefix-cache-scorer" "weight" 3) -}}
{{- $_ := set $files "default-plugins.yaml" (include "usher.plugins" (dict "root" . "scorers" $default)) -}}
{{- $latency := list (dict "type" "expected-latency-scorer" "weight" 1) -}}
{{- $_ := set $files "expected-latency.yaml" (include "usher.plugins" (dict "root" . "scorers" $latency)) -}}
{{- end -}}
{{- range $name, $text := $epp.pluginsCustomConfig -}}
{{- $_ := set $files $name $text -}}
{{- end -}}
{{- toYaml $files -}}
{{- end }}

{{/* A configuration with these scorers; what they need is made by the defaults of `usher serve`. */}}
{{- define "usher.plugins" -}}
{{- $values := .root.Values.router -}}
{{- $epp := $values.epp -}}
{{- $parsers := $epp.parsers -}}
{{- if and (not $parsers) (eq $values.modelServers.protocol "grpc") -}}
{{- $parsers = list "vllmgrpc-parser" -}}
{{- end -}}
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
{{- range .scorers }}
- type: {{ .type }}
{{- end }}
- type: metrics-data-source
  parameters:
    scheme: {{ $epp.metricsDataSource.scheme }}
    path: {{ $epp.metricsDataSource.path | quote }}
    insecureSkipVerify: {{ $epp.metricsDataSource.insecureSkipVerify }}
- type: core-metrics-extractor
  parameters:
    defaultEngine: {{ $values.modelServers.type }}
{{- range $parsers }}
- type: {{ . }}
{{- end }}
schedulingProfiles:
- name: default
  plugins:
  {{- range .scorers }}
  - pluginRef: {{ .type }}
    weight: {{ .weight }}
  {{- end }}
dataLayer:
  sources:
  - pluginRef: metrics-data-source
    extractors:
    - pluginRef: core-metrics-extractor
{{- with $parsers }}
requestHandler:
  parsers:
  {{- range . }}
  - pluginRef: {{ . }}
  {{- end }}
{{- end }}
{{- end }}
