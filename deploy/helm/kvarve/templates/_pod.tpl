{{/* Parts of a pod that runs kvarved. Each takes the chart's context. */}}

{{- define "kvarve.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: {{ .Values.user.uid }}
runAsGroup: {{ .Values.user.gid }}
fsGroup: {{ .Values.user.gid }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- with .Values.seLinuxOptions }}
seLinuxOptions: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "kvarve.containerSecurityContext" -}}
runAsNonRoot: true
runAsUser: {{ .Values.user.uid }}
runAsGroup: {{ .Values.user.gid }}
allowPrivilegeEscalation: false
privileged: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  {{- if .Values.ipcLock }}
  add: [IPC_LOCK]
  {{- end }}
seccompProfile:
  {{- if eq .Values.seccomp.profile "io_uring" }}
  type: Localhost
  {{- if .Values.seccomp.operator }}
  localhostProfile: operator/{{ include "kvarve.fullname" . }}.json
  {{- else }}
  localhostProfile: {{ .Values.seccomp.localhostProfile }}
  {{- end }}
  {{- else }}
  type: RuntimeDefault
  {{- end }}
{{- end }}

{{- define "kvarve.resources" -}}
{{- $memory := printf "%sMi" (include "kvarve.memoryMiB" .) -}}
{{- with .Values.memory.limit }}{{- $memory = printf "%dMi" (div (include "kvarve.bytes" . | int64) 1048576) }}{{- end -}}
requests:
  cpu: {{ .Values.cpu.request | quote }}
  memory: {{ $memory }}
  {{- if and (eq .Values.mode "sidecar") .Values.nvme.size }}
  ephemeral-storage: {{ include "kvarve.sidecar.dataMiB" . }}Mi
  {{- end }}
limits:
  {{- with .Values.cpu.limit }}
  cpu: {{ . | quote }}
  {{- end }}
  memory: {{ $memory }}
  {{- if .Values.memory.hugePages }}
  hugepages-2Mi: {{ include "kvarve.hugePagesMiB" . }}Mi
  {{- end }}
{{- end }}

{{/* For pods that serve by being reached: whether this container is ready decides whether the pod is. */}}
{{- define "kvarve.servingContainer" -}}
{{ include "kvarve.container" . }}
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 2
{{- end }}

{{- define "kvarve.container" -}}
name: kvarved
image: {{ include "kvarve.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args: [--config=/etc/kvarve/kvarved.yaml]
env:
  - name: KVARVE_ENDPOINT
    value: unix://{{ include "kvarve.socketPath" . }}
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  - name: metrics
    containerPort: {{ .Values.metrics.port }}
  {{- if include "kvarve.rpcEnabled" . }}
  - name: grpc
    containerPort: {{ .Values.rpc.port }}
  {{- end }}
startupProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 300
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
lifecycle:
  preStop:
    # Not ready any more, and no new blocks; then SIGTERM.
    exec:
      command: [/bin/sh, -c, "kvarve drain; exec sleep {{ .Values.drainSeconds }}"]
resources: {{- include "kvarve.resources" . | nindent 2 }}
securityContext: {{- include "kvarve.containerSecurityContext" . | nindent 2 }}
volumeMounts:
  - {name: config, mountPath: /etc/kvarve/kvarved.yaml, subPath: kvarved.yaml, readOnly: true}
  - {name: socket, mountPath: /run/kvarve}
  - {name: data, mountPath: /var/lib/kvarve}
  {{- if include "kvarve.rpcEnabled" . }}
  {{- if include "kvarve.tlsSecretName" . }}
  - {name: tls, mountPath: /etc/kvarve/tls, readOnly: true}
  {{- end }}
  {{- if .Values.rpc.tokenKeys.secretName }}
  - {name: token-keys, mountPath: /etc/kvarve/token-keys, readOnly: true}
  {{- end }}
  {{- if .Values.rpc.revocations.secretName }}
  - {name: revocations, mountPath: /etc/kvarve/revocations, readOnly: true}
  {{- end }}
  {{- end }}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* Volumes but socket and data, which each mode has of its own. */}}
{{- define "kvarve.volumes" -}}
- name: config
  configMap:
    name: {{ include "kvarve.fullname" . }}
{{- if include "kvarve.rpcEnabled" . }}
{{- with include "kvarve.tlsSecretName" . }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 0400}
{{- end }}
{{- with .Values.rpc.tokenKeys.secretName }}
- name: token-keys
  secret: {secretName: {{ . }}, defaultMode: 0400}
{{- end }}
{{- with .Values.rpc.revocations.secretName }}
- name: revocations
  secret: {secretName: {{ . }}, defaultMode: 0400, optional: true}
{{- end }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* No versions in labels: a chart that renders the same pods leaves those that run, and their warm caches, alone. */}}
{{- define "kvarve.podMetadata" -}}
labels: {{- include "kvarve.selectorLabels" . | nindent 2 }}
  app.kubernetes.io/component: {{ .Values.mode }}
  {{- with merge (dict) (default dict .Values.podLabels) (default dict .Values.commonLabels) }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  kubectl.kubernetes.io/default-container: kvarved
  checksum/config: {{ include "kvarve.config" . | sha256sum }}
  {{- with .Values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* What every pod has beside containers and volumes. */}}
{{- define "kvarve.podCommon" -}}
serviceAccountName: {{ include "kvarve.serviceAccountName" . }}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "kvarve.topologySpread" -}}
{{- if .Values.topologySpread -}}
topologySpreadConstraints:
  {{- range tuple "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "kvarve.selectorLabels" $ | nindent 8 }}
  {{- end }}
{{- end -}}
{{- end }}

{{/* Gives the folders of the host to the daemon's user; the one container that is root. */}}
{{- define "kvarve.prepareContainer" -}}
name: prepare-host-paths
image: {{ include "kvarve.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
command:
  - install
  - --directory
  - --mode=0750
  - --owner={{ .Values.user.uid }}
  - --group={{ .Values.user.gid }}
  - /run/kvarve
  - /var/lib/kvarve
resources:
  requests: {cpu: 10m, memory: 16Mi}
  limits: {cpu: 100m, memory: 64Mi}
securityContext:
  runAsNonRoot: false
  runAsUser: 0
  runAsGroup: 0
  allowPrivilegeEscalation: false
  privileged: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
    add: [CHOWN, FOWNER]
  seccompProfile:
    type: RuntimeDefault
volumeMounts:
  - {name: socket, mountPath: /run/kvarve}
  - {name: data, mountPath: /var/lib/kvarve}
{{- end }}
