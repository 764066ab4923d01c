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
{{ include "kvarve.labelsWith" (tuple . dict) }}
{{- end }}

{{/* (context, labels of this object alone): of two with the same name the object's counts. */}}
{{- define "kvarve.labelsWith" -}}
{{- $context := first . -}}
{{ include "kvarve.selectorLabels" $context }}
app.kubernetes.io/version: {{ $context.Chart.AppVersion | quote }}
app.kubernetes.io/component: {{ $context.Values.mode }}
app.kubernetes.io/managed-by: {{ $context.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $context.Chart.Name $context.Chart.Version | replace "+" "_" }}
{{- with merge (dict) (default dict (last .)) (default dict $context.Values.commonLabels) }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Labels by which what watches sidecars finds them: those of the chart's Deployment, or what another chart's pods take. */}}
{{- define "kvarve.watchedLabels" -}}
{{- if and (eq .Values.mode "sidecar") (not .Values.engine.enabled) -}}
{{ include "kvarve.sidecar.labels" . }}
{{- else -}}
{{ include "kvarve.selectorLabels" . }}
{{- end -}}
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

{{/*
MiB that the container needs. The daemon gives blocks at most 80 % of its limit; blocks in huge pages are not part of
the limit: those are accounted by themselves.
*/}}
{{- define "kvarve.memoryMiB" -}}
{{- $capacity := include "kvarve.bytes" .Values.capacity | int64 -}}
{{- $overhead := include "kvarve.bytes" .Values.memory.overhead | int64 -}}
{{- $needed := max (div (mul $capacity 5) 4) (add $capacity $overhead) -}}
{{- if .Values.memory.hugePages -}}{{- $needed = $overhead -}}{{- end -}}
{{- div (add $needed 1048575) 1048576 -}}
{{- end }}

{{/* MiB of huge pages for the capacity: whole ones, of 2 MiB. Kubernetes refuses other quantities. */}}
{{- define "kvarve.hugePagesMiB" -}}
{{- mul 2 (div (add (include "kvarve.bytes" .Values.capacity | int64) 2097151) 2097152) -}}
{{- end }}

{{/* Thousandths of a processor of "500m", "1.5" or 2. */}}
{{- define "kvarve.milliCpu" -}}
{{- $text := printf "%v" . -}}
{{- if hasSuffix "m" $text -}}{{ trimSuffix "m" $text }}{{- else -}}{{ mulf (float64 $text) 1000 | ceil | int64 }}{{- end -}}
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
