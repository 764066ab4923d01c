{{/*
kvarved beside an engine of your own chart. With this chart as a dependency (mode: sidecar, engine.enabled: false):

  initContainers:
    {{- include "kvarve.sidecar.container" .Subcharts.kvarve | nindent 8 }}
  volumes:
    {{- include "kvarve.sidecar.volumes" .Subcharts.kvarve | nindent 8 }}

and in the engine's container:

  env:
    {{- include "kvarve.sidecar.engineEnv" .Subcharts.kvarve | nindent 12 }}
  volumeMounts:
    {{- include "kvarve.sidecar.engineVolumeMounts" .Subcharts.kvarve | nindent 12 }}

The pod needs `securityContext.supplementalGroups: [<user.gid>]` unless the engine is root, and for the PodMonitor these labels:

  labels:
    {{- include "kvarve.sidecar.labels" .Subcharts.kvarve | nindent 4 }}
*/}}

{{- define "kvarve.sidecar.labels" -}}
kvarve/sidecar: {{ include "kvarve.fullname" . }}
{{- end }}

{{/*
An init container that goes on running: up before the engine starts, ended after it. It has no readiness probe: that would
count for the pod, and a cache that drains would take the engine out of its Service.
*/}}
{{- define "kvarve.sidecar.container" -}}
- restartPolicy: Always
  {{- include "kvarve.container" . | nindent 2 }}
{{- end }}

{{- define "kvarve.sidecar.volumes" -}}
{{ include "kvarve.volumes" . }}
- name: socket
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
- name: data
  emptyDir:
    sizeLimit: {{ include "kvarve.sidecar.dataMiB" . }}Mi
{{- end }}

{{/* The file of the NVMe tier, and room for the catalogue and the salts. */}}
{{- define "kvarve.sidecar.dataMiB" -}}
{{- if .Values.nvme.size -}}
{{ div (include "kvarve.bytes" .Values.nvme.size | int64) 1048576 | add 1024 }}
{{- else -}}
64
{{- end -}}
{{- end }}

{{- define "kvarve.sidecar.engineEnv" -}}
- {name: KVARVE, value: "1"}
- {name: KVARVE_ENDPOINT, value: "unix://{{ include "kvarve.socketPath" . }}"}
{{- end }}

{{- define "kvarve.sidecar.engineVolumeMounts" -}}
- {name: socket, mountPath: /run/kvarve, readOnly: true}
{{- end }}
