{{/* What the chart itself sets in kvarved.yaml, by section; the same names as `kvarved --print-schema` knows. */}}
{{- define "kvarve.ownSettings" -}}
socket:
  path: {{ include "kvarve.socketPath" . }}
  {{- if not (hasKey (default dict (default dict .Values.config).socket) "allow_gids") }}
  allow_gids: [{{ .Values.user.gid }}]
  {{- end }}
arena:
  capacity_bytes: {{ .Values.capacity }}
  huge_pages: "{{ .Values.memory.hugePages }}"
metrics:
  listen: "{{ .Values.bindAddress }}:{{ .Values.metrics.port }}"
{{- if .Values.nvme.size }}
nvme:
  devices: [/var/lib/kvarve/nvme0]
  device_bytes: {{ .Values.nvme.size }}
  backend: {{ .Values.nvme.backend }}
  stop_timeout: {{ .Values.nvme.stopTimeout }}
{{- end }}
tenant:
  state_dir: /var/lib/kvarve
{{- if include "kvarve.rpcEnabled" . }}
rpc:
  listen: "{{ .Values.bindAddress }}:{{ .Values.rpc.port }}"
  {{- if include "kvarve.tlsSecretName" . }}
  tls_certificate_file: /etc/kvarve/tls/tls.crt
  tls_key_file: /etc/kvarve/tls/tls.key
  tls_client_ca_file: /etc/kvarve/tls/ca.crt
  {{- end }}
  {{- if .Values.rpc.insecurePlaintext }}
  insecure_plaintext_off_loopback: "true"
  {{- end }}
  {{- if .Values.rpc.tokenKeys.secretName }}
  token_keys_file: /etc/kvarve/token-keys/{{ .Values.rpc.tokenKeys.key }}
  {{- end }}
  {{- if .Values.rpc.revocations.secretName }}
  revocations_file: /etc/kvarve/revocations/{{ .Values.rpc.revocations.key }}
  {{- end }}
{{- end }}
{{- end }}

{{/* A value as kvarved reads it. Numbers of values are floating point: large ones would get an exponent. */}}
{{- define "kvarve.scalar" -}}
{{- if kindIs "float64" . -}}
{{- if eq (floor .) . }}{{ printf "%.0f" . }}{{ else }}{{ printf "%v" . }}{{ end -}}
{{- else if kindIs "string" . -}}
{{ quote . }}
{{- else -}}
{{ . }}
{{- end -}}
{{- end }}

{{- define "kvarve.config" -}}
{{- $all := mergeOverwrite (deepCopy (default dict .Values.config)) (include "kvarve.ownSettings" . | fromYaml) -}}
{{- range $section, $settings := $all }}
{{ $section }}:
  {{- range $name, $value := $settings }}
  {{- if kindIs "slice" $value }}
  {{ $name }}:
    {{- range $value }}
    - {{ include "kvarve.scalar" . }}
    {{- end }}
  {{- else }}
  {{ $name }}: {{ include "kvarve.scalar" $value }}
  {{- end }}
  {{- end }}
{{- end }}
{{- end }}
