{{/* The name of all that a release has: the release's own, with the chart's unless it is in there. */}}
{{- define "latebind.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* By which the release's pods are found; it may not change during a release's life. */}}
{{- define "latebind.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "latebind.labels" -}}
{{ include "latebind.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}

{{/* The share of requests that had little slack when they came, 0 where none came. */}}
{{- define "latebind.little-slack" -}}
{{- $pods := printf "namespace=%q,pod=~\"%s-[a-z0-9]+-[a-z0-9]{5}\"" .Release.Namespace (include "latebind.name" .) -}}
{{- $name := "latebind_admission_slack_seconds" -}}
sum(rate({{ $name }}_bucket{ {{- $pods }},le="{{ .Values.autoscaling.slack }}"}[1m])) / (sum(rate({{ $name }}_count{ {{- $pods }}}[1m])) > 0) or vector(0)
{{- end -}}
