{{- define "kvarve.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "kvarve.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (include "kvarve.name" .) .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "kvarve.name" .) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "kvarve.selectorLabels" -}}
app.kubernetes.io/name: {{ include "kvarve.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kvarve.labels" -}}
{{ include "kvarve.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: {{ .Values.mode }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "kvarve.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default .Chart.AppVersion $image.tag }}
{{- end -}}
{{- end }}

{{- define "kvarve.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "kvarve.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.serviceAccount.name }}
{{- end -}}
{{- end }}

{{- define "kvarve.tlsSecretName" -}}
{{- if .Values.rpc.tls.secretName -}}
{{ .Values.rpc.tls.secretName }}
{{- else if .Values.rpc.tls.certManager.enabled -}}
{{ include "kvarve.fullname" . }}-tls
{{- end -}}
{{- end }}

{{/*
The daemon wants a folder that not everybody may write in. An emptyDir lets everybody: there it makes one of its own.
*/}}
{{- define "kvarve.socketPath" -}}
{{- if eq .Values.mode "daemonset" -}}
/run/kvarve/kvarved.sock
{{- else -}}
/run/kvarve/pod/kvarved.sock
{{- end -}}
{{- end }}

{{/* "true" or nothing. */}}
{{- define "kvarve.rpcEnabled" -}}
{{- if or .Values.rpc.enabled (eq .Values.mode "statefulset") -}}true{{- end -}}
{{- end }}

{{/* Bytes of "16GiB". */}}
{{- define "kvarve.bytes" -}}
{{- $number := regexFind "^[0-9.]+" . | float64 -}}
{{- $unit := get (dict "K" 1024 "M" 1048576 "G" 1073741824 "T" 1099511627776) (regexFind "[KMGT]" .) -}}
{{- mulf $number $unit | int64 -}}
{{- end }}

{{/* MiB that the container needs: the daemon gives blocks at most 80 % of its limit. */}}
{{- define "kvarve.memoryMiB" -}}
{{- $capacity := include "kvarve.bytes" .Values.capacity | int64 -}}
{{- $overhead := include "kvarve.bytes" .Values.memory.overhead | int64 -}}
{{- $needed := max (div (mul $capacity 5) 4) (add $capacity $overhead) -}}
{{- div (add $needed 1048575) 1048576 -}}
{{- end }}

{{/* Seconds of "1m", "20s" or "500ms", rounded up. */}}
{{- define "kvarve.seconds" -}}
{{- $number := regexFind "^[0-9.]+" . | float64 -}}
{{- $unit := regexFind "[a-z]+$" . -}}
{{- if eq $unit "h" }}{{ mulf $number 3600 | ceil | int64 }}
{{- else if eq $unit "m" }}{{ mulf $number 60 | ceil | int64 }}
{{- else if eq $unit "s" }}{{ ceil $number | int64 }}
{{- else }}{{ ternary 0 1 (eq $number 0.0) }}
{{- end -}}
{{- end }}
