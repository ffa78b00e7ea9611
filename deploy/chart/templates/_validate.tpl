{{/* What a schema can't say, or not as clearly. Every template that makes objects asks this. */}}
{{- define "usher.validate" -}}
{{- range $old, $new := dict "inferenceExtension" "router.epp (image, flags, …), router.monitoring and router.tracing" "inferencePool" "router.inferencePool and router.modelServers" "experimentalHttpRoute" "httpRoute (enabled is now create)" "inferenceObjectives" "router.inferenceObjectives" }}
{{- if hasKey $.Values $old }}
{{- fail (printf "%s%s is not read any more: move it to %s" $old (ternary "" ".*" (eq $old "inferenceObjectives")) $new) }}
{{- end }}
{{- end }}
{{- $router := .Values.router }}
{{- /* Of llm-d-router's charts, whose users run Envoy as they write it. */}}
{{- $elsewhere := dict "imagePullPolicy" "router.proxy.image.pullPolicy" "terminationGracePeriodSeconds" "router.proxy.drainSeconds" "securityContext" "router.epp.securityContext" "ports" "router.proxy.port and router.proxy.readyPort" }}
{{- range $name := list "args" "command" "configMap" "configMapData" "env" "imagePullPolicy" "livenessProbe" "name" "ports" "presets" "readinessProbe" "securityContext" "startupProbe" "terminationGracePeriodSeconds" "volumeMounts" "volumes" }}
{{- if index $router.proxy $name }}
{{- fail (printf "router.proxy.%s is not read: the chart writes Envoy's container and configuration itself; %s" $name (hasKey $elsewhere $name | ternary (printf "write %s" (index $elsewhere $name)) "for another one run an Envoy of your own (docs/guide/gateways.md)")) }}
{{- end }}
{{- end }}
{{- if ($router.proxy.autoscaling | default dict).enabled }}
{{- fail "router.proxy.autoscaling.enabled: this chart does not have it; set router.proxy.replicas" }}
{{- end }}
{{- if $router.modelServers.targetPortNumber }}
{{- fail "router.modelServers.targetPortNumber is not read: write router.modelServers.targetPorts" }}
{{- end }}
{{- if $router.metricsPort }}
{{- fail "router.metricsPort is not read: write router.epp.metricsPort" }}
{{- end }}
{{- if ($router.priorityRouting | default dict).enabled }}
{{- fail "router.priorityRouting.enabled: this chart does not have it; set it to false" }}
{{- end }}
{{- if and $router.monitoring.prometheus.enabled (index $router.epp.flags "client-ca-path") }}
{{- fail "router.epp.flags.client-ca-path: the metrics port asks for a client certificate as well, and the monitors of this chart show none; set router.monitoring.prometheus.enabled to false and write a monitor of your own" }}
{{- end }}
{{- if and $router.monitoring.alerts.enabled (ne (include "usher.monitoringProvider" .) "prometheusoperator") }}
{{- fail "router.monitoring.alerts.enabled makes a PrometheusRule, which Google's managed Prometheus does not read: set it to false and write deploy/observability/rules.yaml as Rules" }}
{{- end }}
{{- if and $router.epp.pluginsConfig (hasKey $router.epp.pluginsCustomConfig $router.epp.pluginsConfigFile) }}
{{- fail (printf "%s is in both router.epp.pluginsConfig and router.epp.pluginsCustomConfig" $router.epp.pluginsConfigFile) }}
{{- end }}
{{- range $name := list "tokenizer" "latencyPredictor" }}
{{- $part := index $router $name | default dict }}
{{- if $part.enabled }}
{{- fail (printf "router.%s.enabled: this chart does not run it; set it to false" $name) }}
{{- end }}
{{- end }}
{{- $autoscaling := $router.epp.autoscaling | default dict }}
{{- if $autoscaling.enabled }}
{{- fail "router.epp.autoscaling.enabled: this chart does not have it; set router.epp.replicas" }}
{{- end }}
{{- $store := $router.stateStore }}
{{- if and $store.address $store.valkey.enabled }}
{{- fail "router.stateStore.address and router.stateStore.valkey.enabled are both set: keep one of the two" }}
{{- end }}
{{- range $name := list "state-store" "state-store-password-file" "state-store-ca-file" "state-store-client-cert-file" "state-store-client-key-file" }}
{{- if and (index $router.epp.flags $name) (include "usher.stateStore" $) }}
{{- fail (printf "router.epp.flags.%s and router.stateStore both name a store: keep one of the two" $name) }}
{{- end }}
{{- end }}
{{- $syncer := include "usher.syncer" . }}
{{- if and $syncer (or (include "usher.stateStore" .) (index $router.epp.flags "state-store")) }}
{{- $other := ternary "router.stateStore" "router.epp.flags.state-store" (ne (include "usher.stateStore" .) "") }}
{{- fail (printf "%s and the plugin %s of %s, to which its dataLayer refers, both say how replicas share state: keep one of the two" $other $syncer $router.epp.pluginsConfigFile) }}
{{- end }}
{{- if and (or $store.user $store.passwordSecret.name $store.ca.secretName $store.ca.configMapName $store.clientCertSecret.name) (not $store.address) (not $store.valkey.enabled) }}
{{- fail "router.stateStore names a user, a password, a CA or a certificate of no store: give its address" }}
{{- end }}
{{- if and $store.user (not $store.passwordSecret.name) }}
{{- fail "router.stateStore.user needs a password: router.stateStore.passwordSecret.name (any does for a user with nopass)" }}
{{- end }}
{{- if and $store.user $store.valkey.enabled }}
{{- fail "router.stateStore.user: the Valkey of the release has none; leave it out" }}
{{- end }}
{{- if and $store.ca.secretName $store.ca.configMapName }}
{{- fail "router.stateStore.ca names a Secret and a ConfigMap: keep one of the two" }}
{{- end }}
{{- if and (or $store.ca.secretName $store.ca.configMapName) (not (hasPrefix "rediss://" $store.address)) }}
{{- fail "router.stateStore.ca is for TLS: let router.stateStore.address begin with rediss://, or leave it out" }}
{{- end }}
{{- if and $store.clientCertSecret.name (not (hasPrefix "rediss://" $store.address)) }}
{{- fail "router.stateStore.clientCertSecret is for TLS: let router.stateStore.address begin with rediss://, or leave it out" }}
{{- end }}
{{- if and $router.epp.capacityPolicies.clusterTopologies (not $router.epp.capacityPolicies.enabled) }}
{{- fail "router.epp.capacityPolicies.clusterTopologies needs router.epp.capacityPolicies.enabled" }}
{{- end }}
{{- $isSingle := eq (toString (index $router.epp.flags "capacity-single-replica")) "true" }}
{{- if and $router.epp.capacityPolicies.apply.enabled (not (include "usher.elects" .)) (not $isSingle) }}
{{- fail "router.epp.capacityPolicies.apply.enabled needs a leader, as two replicas could write at once: leave out router.epp.flags.ha-enable-leader-election" }}
{{- end }}
{{- $strategy := $router.epp.deploymentStrategy | default dict }}
{{- if and $isSingle (or (gt (int $router.epp.replicas) 1) (ne (toString $strategy.type) "Recreate")) }}
{{- fail "router.epp.flags.capacity-single-replica says that there is never more than one replica: set router.epp.replicas to 1 and router.epp.deploymentStrategy to {type: Recreate}, or leave the flag out" }}
{{- end }}
{{- $keda := $router.epp.capacityPolicies.keda }}
{{- if and $keda.enabled (not $router.epp.capacityPolicies.enabled) (not (index $router.epp.flags "capacity-policy")) }}
{{- fail "router.epp.capacityPolicies.keda.enabled needs policies: router.epp.capacityPolicies.enabled, or the flag capacity-policy with a file" }}
{{- end }}
{{- if and $keda.scaledObjects (not $keda.enabled) }}
{{- fail "router.epp.capacityPolicies.keda.scaledObjects ask a port that router.epp.capacityPolicies.keda.enabled opens" }}
{{- end }}
{{- $preferred := .Values.provider.gke.preferredBackends | default dict }}
{{- if $preferred.enabled }}
{{- fail "provider.gke.preferredBackends.enabled: this chart does not have it; set it to false" }}
{{- end }}
{{- $pool := $router.inferencePool }}
{{- if and (not $router.modelServers.matchLabels) (or (include "usher.createsPool" .) (not $pool.name)) }}
{{- fail "router.modelServers.matchLabels is required: the labels of the model servers' pods, for example {app: vllm}; or name an InferencePool that exists in router.inferencePool.name, with router.inferencePool.create false" }}
{{- end }}
{{- if and $router.proxy.enabled $router.proxy.failOpen (not $router.modelServers.matchLabels) }}
{{- fail "router.proxy.failOpen needs router.modelServers.matchLabels: where requests go while Usher is away; give them, or set router.proxy.failOpen to false" }}
{{- end }}
{{- if and $router.proxy.enabled .Values.httpRoute.create }}
{{- fail "httpRoute.create is for gateway mode; with router.proxy.enabled clients connect to Envoy itself" }}
{{- end }}
{{- if and .Values.httpRoute.create (not (include "usher.hasPool" .)) }}
{{- fail "httpRoute.create needs an InferencePool: router.inferencePool.create or its name; without one see deploy/envoy-gateway" }}
{{- end }}
{{- if and (ne .Values.provider.name "none") (not (include "usher.hasPool" .)) }}
{{- fail (printf "provider.name %s needs an InferencePool: router.inferencePool.create or its name" .Values.provider.name) }}
{{- end }}
{{- if and $router.inferenceObjectives (not (include "usher.hasPool" .)) }}
{{- fail "router.inferenceObjectives needs an InferencePool: router.inferencePool.create or its name" }}
{{- end }}
{{- if not (hasKey (include "usher.files" . | fromYaml) $router.epp.pluginsConfigFile) }}
{{- fail (printf "router.epp.pluginsConfigFile: %s is in neither pluginsCustomConfig nor pluginsConfig" $router.epp.pluginsConfigFile) }}
{{- end }}
{{- end }}
