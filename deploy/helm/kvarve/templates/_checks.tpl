{{/* What the schema cannot say, or only in riddles: sizes, and values that are right each and wrong together. */}}
{{- define "kvarve.checks" -}}
{{- include "kvarve.checkSizes" . -}}
{{- include "kvarve.checkConfig" . -}}
{{- include "kvarve.checkRpc" . -}}
{{- include "kvarve.checkPod" . -}}
{{- include "kvarve.checkUpdateStrategy" . -}}
{{- include "kvarve.checkNames" . -}}
{{- end }}

{{/* name, value, least. */}}
{{- define "kvarve.checkSize" -}}
{{- if not (regexMatch "^[0-9]+(\\.[0-9]+)?[KMGT]iB$" .value) -}}
{{- fail (printf "%s: %q is no size; write it like 512MiB, 1.5GiB or 2TiB" .name .value) -}}
{{- end -}}
{{- if lt (include "kvarve.bytes" .value | int64) (include "kvarve.bytes" .least | int64) -}}
{{- fail (printf "%s: %s is too small; use at least %s" .name .value .least) -}}
{{- end -}}
{{- end }}

{{- define "kvarve.checkSizes" -}}
{{- include "kvarve.checkSize" (dict "name" "capacity" "value" .Values.capacity "least" "32MiB") -}}
{{- include "kvarve.checkSize" (dict "name" "memory.overhead" "value" .Values.memory.overhead "least" "64MiB") -}}
{{- with .Values.nvme.size -}}
{{- include "kvarve.checkSize" (dict "name" "nvme.size" "value" . "least" "64MiB") -}}
{{- end -}}
{{- with .Values.memory.limit -}}
{{- include "kvarve.checkSize" (dict "name" "memory.limit" "value" . "least" "64MiB") -}}
{{- if lt (include "kvarve.bytes" . | int64) (mul (include "kvarve.memoryMiB" $ | int64) 1048576) -}}
{{- fail (printf "memory.limit: %s is too little for a capacity of %s: at least %sMi" . $.Values.capacity (include "kvarve.memoryMiB" $)) -}}
{{- end -}}
{{- end -}}
{{- with .Values.cpu.limit -}}
{{- if gt (include "kvarve.milliCpu" $.Values.cpu.request | int64) (include "kvarve.milliCpu" . | int64) -}}
{{- fail (printf "cpu.request: %v is more than cpu.limit, %v" $.Values.cpu.request .) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "kvarve.checkConfig" -}}
{{- $where := dict "socket.path" "socket.hostPath" "arena.capacity_bytes" "capacity" "arena.huge_pages" "memory.hugePages" "metrics.listen" "metrics.port" "nvme.devices" "nvme.size" "nvme.device_bytes" "nvme.size" "nvme.backend" "nvme.backend" "nvme.stop_timeout" "nvme.stopTimeout" "tenant.state_dir" "nvme.hostPath" "rpc.listen" "rpc.port" "rpc.tls_certificate_file" "rpc.tls" "rpc.tls_key_file" "rpc.tls" "rpc.tls_client_ca_file" "rpc.tls" "rpc.insecure_plaintext_off_loopback" "rpc.insecurePlaintext" "rpc.token_keys_file" "rpc.tokenKeys" "rpc.revocations_file" "rpc.revocations" -}}
{{- range $section, $settings := .Values.config -}}
{{- range $name, $value := $settings -}}
{{- $key := printf "%s.%s" $section $name -}}
{{- if hasKey $where $key -}}
{{- fail (printf "config.%s: the chart sets it; use the value %s" $key (get $where $key)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "kvarve.checkRpc" -}}
{{- $rpc := .Values.rpc -}}
{{- $tls := include "kvarve.tlsSecretName" . -}}
{{- if include "kvarve.rpcEnabled" . -}}
{{- if and (not $tls) (not $rpc.insecurePlaintext) -}}
{{- fail "rpc: gRPC needs TLS: set rpc.tls.secretName or rpc.tls.certManager.enabled (or, where everybody on the network may read prompts, rpc.insecurePlaintext)" -}}
{{- end -}}
{{- if and $tls $rpc.insecurePlaintext -}}
{{- fail "rpc.insecurePlaintext: contradicts rpc.tls; set one of them" -}}
{{- end -}}
{{- if and $rpc.insecurePlaintext (not $rpc.tokenKeys.secretName) -}}
{{- fail "rpc.tokenKeys.secretName: is needed with rpc.insecurePlaintext: callers without certificates show signed tokens (kvarve token)" -}}
{{- end -}}
{{- if eq (int $rpc.port) (int .Values.metrics.port) -}}
{{- fail (printf "rpc.port: %d is metrics.port, too; each needs its own" (int $rpc.port)) -}}
{{- end -}}
{{- end -}}
{{- with $rpc.tls.certManager -}}
{{- if and .enabled (not .issuerRef.name) -}}
{{- fail "rpc.tls.certManager.issuerRef.name: is needed: the Issuer that signs the certificate" -}}
{{- end -}}
{{- if le (include "kvarve.seconds" .duration | int64) (include "kvarve.seconds" .renewBefore | int64) -}}
{{- fail (printf "rpc.tls.certManager.renewBefore: %s is not less than the certificate's duration, %s" .renewBefore .duration) -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.mode "sidecar") $rpc.enabled -}}
{{- fail "rpc.enabled: a sidecar serves its own pod; use mode statefulset for engines of other nodes" -}}
{{- end -}}
{{- end }}

{{- define "kvarve.checkPod" -}}
{{- $engine := and (eq .Values.mode "sidecar") .Values.engine.enabled -}}
{{- if and $engine (eq (int .Values.metrics.port) (int .Values.engine.port)) -}}
{{- fail (printf "metrics.port: %d is engine.port, too, in the same pod; each needs its own" (int .Values.metrics.port)) -}}
{{- end -}}
{{- $socket := printf "%s/" .Values.socket.hostPath -}}
{{- $data := printf "%s/" .Values.nvme.hostPath -}}
{{- if or (hasPrefix $socket $data) (hasPrefix $data $socket) -}}
{{- fail (printf "nvme.hostPath: %s and socket.hostPath, %s: two folders, neither in the other; engines see the one of the socket" .Values.nvme.hostPath .Values.socket.hostPath) -}}
{{- end -}}
{{- if and (eq .Values.nvme.backend "io_uring") (ne .Values.seccomp.profile "io_uring") -}}
{{- fail "nvme.backend: io_uring needs seccomp.profile: io_uring; backend auto takes threads where io_uring is forbidden" -}}
{{- end -}}
{{- if and .Values.seccomp.operator (ne .Values.seccomp.profile "io_uring") -}}
{{- fail "seccomp.operator: has nothing to bring without seccomp.profile: io_uring" -}}
{{- end -}}
{{- $stop := 0 -}}
{{- if .Values.nvme.size -}}{{- $stop = include "kvarve.seconds" .Values.nvme.stopTimeout | int -}}{{- end -}}
{{- $needed := add $stop .Values.drainSeconds 5 -}}
{{- if gt (int $needed) (int .Values.terminationGracePeriodSeconds) -}}
{{- fail (printf "terminationGracePeriodSeconds: %d is less than the %d that drainSeconds, nvme.stopTimeout and five to spare come to" (int .Values.terminationGracePeriodSeconds) (int $needed)) -}}
{{- end -}}
{{- end }}

{{- define "kvarve.checkUpdateStrategy" -}}
{{- with .Values.updateStrategy -}}
{{- $types := ternary (list "RollingUpdate" "Recreate") (list "RollingUpdate" "OnDelete") (eq $.Values.mode "sidecar") -}}
{{- if not (has (default "RollingUpdate" .type) $types) -}}
{{- fail (printf "updateStrategy.type: %s is nothing for mode %s; use %s" .type $.Values.mode (join " or " $types)) -}}
{{- end -}}
{{- $rolling := default dict .rollingUpdate -}}
{{- if and $rolling (ne (default "RollingUpdate" .type) "RollingUpdate") -}}
{{- fail (printf "updateStrategy.rollingUpdate: contradicts type %s" .type) -}}
{{- end -}}
{{- $fields := dict "daemonset" (list "maxUnavailable") "statefulset" (list "maxUnavailable" "partition") "sidecar" (list "maxUnavailable" "maxSurge") -}}
{{- range $field, $value := $rolling -}}
{{- if not (has $field (get $fields $.Values.mode)) -}}
{{- fail (printf "updateStrategy.rollingUpdate.%s: mode %s cannot%s" $field $.Values.mode (ternary ": two daemons cannot share a node's socket and device, and the second would never be ready" "" (eq $.Values.mode "daemonset"))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Names that the chart gives already would be there twice. */}}
{{- define "kvarve.checkNames" -}}
{{- $taken := keys (include "kvarve.labels" (dict "Values" (omit .Values "commonLabels") "Chart" .Chart "Release" .Release) | fromYaml) -}}
{{- $metrics := .Values.metrics -}}
{{- $labels := dict "commonLabels" .Values.commonLabels "podLabels" .Values.podLabels "metrics.podMonitor.labels" $metrics.podMonitor.labels "metrics.rules.labels" $metrics.rules.labels "metrics.dashboards.labels" $metrics.dashboards.labels -}}
{{- range $value, $map := $labels -}}
{{- range $key, $_ := $map -}}
{{- if has $key $taken -}}
{{- fail (printf "%s: %s is the chart's own label" $value $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $key, $_ := .Values.podAnnotations -}}
{{- if has $key (list "kubectl.kubernetes.io/default-container" "checksum/config") -}}
{{- fail (printf "podAnnotations: %s is the chart's own annotation" $key) -}}
{{- end -}}
{{- end -}}
{{- range $value, $volumes := dict "extraVolumes" .Values.extraVolumes "engine.volumes" .Values.engine.volumes -}}
{{- range $volumes -}}
{{- if has .name (list "config" "socket" "data" "tls" "token-keys" "revocations" "tmp" "shm") -}}
{{- fail (printf "%s: %s is a volume of the chart's own; take another name" $value .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
