{{/* The container of Envoy, as a sidecar or in a pod of its own; without its dash. */}}
{{- define "usher.envoyContainer" -}}
{{- $proxy := .Values.router.proxy -}}
name: envoy-proxy
image: {{ include "usher.image" (dict "image" $proxy.image "tag" "") | quote }}
imagePullPolicy: {{ if kindIs "string" $proxy.image }}IfNotPresent{{ else }}{{ $proxy.image.pullPolicy }}{{ end }}
args:
- --config-path
- /etc/envoy/envoy.yaml
# Restarting in place needs shared memory, and a new pod needs no old one.
- --disable-hot-restart
- --cpuset-threads
- --log-level
- warn
ports:
- name: http
  containerPort: {{ $proxy.port }}
- name: envoy-metrics
  containerPort: {{ $proxy.readyPort }}
readinessProbe:
  httpGet:
    path: /ready
    port: envoy-metrics
  periodSeconds: 2
  failureThreshold: 2
{{- if include "usher.hasProxy" . }}
# Envoy ends at once when it is told to, with all that is open. Until then its Service
# and its clients have time to go elsewhere.
lifecycle:
  preStop:
    sleep:
      seconds: {{ $proxy.drainSeconds }}
{{- end }}
{{- with $proxy.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.router.epp.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
volumeMounts:
- name: proxy-config
  mountPath: /etc/envoy
  readOnly: true
{{- end }}
