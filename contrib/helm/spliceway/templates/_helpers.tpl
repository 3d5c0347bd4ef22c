{{- define "spliceway.selector" -}}
app.kubernetes.io/name: spliceway
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "spliceway.labels" -}}
{{ include "spliceway.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
