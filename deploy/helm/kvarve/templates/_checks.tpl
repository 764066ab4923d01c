{{/* What the schema cannot say: values that are right each, and wrong together. */}}
{{- define "kvarve.checks" -}}
{{- $own := include "kvarve.ownSettings" . | fromYaml -}}
{{- $where := dict "socket.path" "socket.hostPath" "arena.capacity_bytes" "capacity" "arena.huge_pages" "memory.hugePages" "metrics.listen" "metrics.port" "nvme.devices" "nvme.size" "nvme.device_bytes" "nvme.size" "nvme.backend" "nvme.backend" "nvme.stop_timeout" "nvme.stopTimeout" "tenant.state_dir" "nvme.hostPath" "rpc.listen" "rpc.port" "rpc.tls_certificate_file" "rpc.tls" "rpc.tls_key_file" "rpc.tls" "rpc.tls_client_ca_file" "rpc.tls" "rpc.insecure_plaintext_off_loopback" "rpc.insecurePlaintext" "rpc.token_keys_file" "rpc.tokenKeys" "rpc.revocations_file" "rpc.revocations" -}}
{{- range $section, $settings := .Values.config -}}
{{- range $name, $value := $settings -}}
{{- $key := printf "%s.%s" $section $name -}}
{{- if hasKey $where $key -}}
{{- fail (printf "config.%s: the chart sets it; use the value %s" $key (get $where $key)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $tls := include "kvarve.tlsSecretName" . -}}
{{- if include "kvarve.rpcEnabled" . -}}
{{- if and (not $tls) (not .Values.rpc.insecurePlaintext) -}}
{{- fail "rpc: gRPC needs TLS: set rpc.tls.secretName or rpc.tls.certManager.enabled (or, where everybody on the network may read prompts, rpc.insecurePlaintext)" -}}
{{- end -}}
{{- if and $tls .Values.rpc.insecurePlaintext -}}
{{- fail "rpc.insecurePlaintext: contradicts rpc.tls; set one of them" -}}
{{- end -}}
{{- if and .Values.rpc.insecurePlaintext (not .Values.rpc.tokenKeys.secretName) -}}
{{- fail "rpc.tokenKeys.secretName: is needed with rpc.insecurePlaintext: callers without certificates show signed tokens (kvarve token)" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.rpc.tls.certManager.enabled (not .Values.rpc.tls.certManager.issuerRef.name) -}}
{{- fail "rpc.tls.certManager.issuerRef.name: is needed: the Issuer that signs the certificate" -}}
{{- end -}}
{{- if and (eq .Values.mode "sidecar") .Values.rpc.enabled -}}
{{- fail "rpc.enabled: a sidecar serves its own pod; use mode statefulset for engines of other nodes" -}}
{{- end -}}
{{- if and (eq .Values.nvme.backend "io_uring") (ne .Values.seccomp.profile "io_uring") -}}
{{- fail "nvme.backend: io_uring needs seccomp.profile: io_uring; backend auto takes threads where io_uring is forbidden" -}}
{{- end -}}
{{- $stop := 0 -}}
{{- if .Values.nvme.size -}}{{- $stop = include "kvarve.seconds" .Values.nvme.stopTimeout | int -}}{{- end -}}
{{- $needed := add $stop .Values.drainSeconds 5 -}}
{{- if gt (int $needed) (int .Values.terminationGracePeriodSeconds) -}}
{{- fail (printf "terminationGracePeriodSeconds: %d is less than the %d that drainSeconds, nvme.stopTimeout and five to spare come to" (int .Values.terminationGracePeriodSeconds) (int $needed)) -}}
{{- end -}}
{{- with .Values.memory.limit -}}
{{- if lt (include "kvarve.bytes" . | int64) (mul (include "kvarve.memoryMiB" $ | int64) 1048576) -}}
{{- fail (printf "memory.limit: %s is too little for a capacity of %s: at least %sMi" . $.Values.capacity (include "kvarve.memoryMiB" $)) -}}
{{- end -}}
{{- end -}}
{{- end }}
