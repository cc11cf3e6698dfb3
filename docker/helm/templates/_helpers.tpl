{{- define "covey.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "covey.selector" -}}
app.kubernetes.io/name: covey
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "covey.labels" -}}
{{ include "covey.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- /* star.servers of a profile: every drafter's server by its pod's own name, since drafters keep texts */ -}}
{{- define "covey.draftServers" -}}
{{- $servers := list }}
{{- range $index := until (int .Values.drafters.replicas) }}
{{- $pod := printf "%s-drafters-%d.%s-drafters" (include "covey.name" $) $index (include "covey.name" $) }}
{{- $servers = append $servers (printf "draft_remote=%s:8001/%s" $pod $.Values.drafters.model) }}
{{- end }}
{{- toJson $servers }}
{{- end }}

{{- define "covey.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch # else each start lets the group write to a server's private files
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "covey.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* The launcher, its tritonserver and its front. Takes root, role, component, container (its name). */ -}}
{{- define "covey.container" -}}
name: {{ .container }}
image: {{ .root.Values.image }}
imagePullPolicy: {{ .root.Values.imagePullPolicy }}
{{- if ne .component "drafter" }}
args: ["--host", "127.0.0.1"] # Triton's own ports are only for this pod
{{- end }}
env:
  - {name: COVEY_ADMIN_SECRET_FILE, value: /run/secrets/covey/admin}
  - {name: COVEY_PROFILE, value: {{ ternary (printf "/run/profiles/%s.toml" .role.profile) .role.profile (hasKey .root.Values.profiles .role.profile) | quote }}}
  - {name: COVEY_DRAIN_SECONDS, value: {{ .root.Values.drain.seconds | quote }}}
  - {name: COVEY_KEPT, value: /var/lib/covey/kept} # a folder of the server's user, unlike the volume's own
  {{- if eq .component "drafter" }}
  - {name: COVEY_HEALTH_MODEL, value: {{ .role.model }}}
  {{- end }}
  {{- if .models }}
  - {name: COVEY_TARGET_FOLDER, value: {{ .models }}}
  {{- end }}
  {{- with .role.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  - {name: http, containerPort: 8010}
  - {name: grpc, containerPort: 8011}
  {{- if eq .component "drafter" }}
  - {name: drafts, containerPort: 8001}
  {{- end }}
# Like the image's HEALTHCHECK. A server that is not ready for long ends itself; the liveness probe is there in case its
# watchdog has died.
startupProbe:
  exec: {command: [/opt/covey/healthcheck]}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 180
readinessProbe:
  exec: {command: [/opt/covey/healthcheck]}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 6
livenessProbe:
  exec: {command: [/opt/covey/healthcheck]}
  periodSeconds: 30
  timeoutSeconds: 5
  failureThreshold: 60
lifecycle:
  preStop:
    exec: {command: [sleep, {{ .root.Values.drain.preStopSeconds | quote }}]} # until callers stop sending to this pod
resources:
  {{- toYaml .role.resources | nindent 2 }}
securityContext:
  {{- include "covey.containerSecurity" . | nindent 2 }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  - {name: shm, mountPath: /dev/shm}
  - {name: state, mountPath: /var/lib/covey}
  - {name: admin, mountPath: /run/secrets/covey, readOnly: true}
  {{- if .role.private }}
  - {name: private, mountPath: /run/covey, readOnly: true}
  {{- end }}
  {{- if hasKey .root.Values.profiles .role.profile }}
  - {name: profiles, mountPath: /run/profiles, readOnly: true}
  {{- end }}
  {{- if .role.modelsClaim }}
  - {name: models, mountPath: /models, readOnly: true}
  {{- end }}
{{- end }}

{{- define "covey.volumes" -}}
- {name: tmp, emptyDir: {medium: Memory, sizeLimit: {{ .role.tmp }}}}
- {name: shm, emptyDir: {medium: Memory, sizeLimit: {{ .role.shm }}}}
{{- if not .role.state }}
- {name: state, emptyDir: {}}
{{- end }}
- name: admin
  secret:
    secretName: {{ required "admin.secretName: name a Secret; values.yaml says how to make one" .root.Values.admin.secretName }}
    items: [{key: {{ .root.Values.admin.key }}, path: admin}]
{{- if .role.private }}
- {name: private, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
{{- end }}
{{- range $index, $file := .role.private }}
- {name: given-{{ $index }}, secret: {secretName: {{ $file.secretName }}}}
{{- end }}
{{- if hasKey .root.Values.profiles .role.profile }}
- {name: profiles, configMap: {name: {{ include "covey.name" .root }}-profiles}}
{{- end }}
{{- if .role.modelsClaim }}
- {name: models, persistentVolumeClaim: {claimName: {{ .role.modelsClaim }}, readOnly: true}}
{{- end }}
{{- end }}

{{- /* A StatefulSet, since a replica has state of its own and, to a drafter, a name. Takes root, role, component, name, replicas. */ -}}
{{- define "covey.servers" -}}
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ .name }}
  labels:
    {{- include "covey.labels" . | nindent 4 }}
spec:
  serviceName: {{ .headless }}
  podManagementPolicy: Parallel
  {{- if not .autoscaled }}
  replicas: {{ .role.replicas }}
  {{- end }}
  selector:
    matchLabels:
      {{- include "covey.selector" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "covey.labels" . | nindent 8 }}
        {{- if eq .component "target" }}
        llm-d.ai/engine-type: vllm # the front also has gauges with vLLM's names
        {{- end }}
      annotations:
        prometheus.io/scrape: "true"
        prometheus.io/port: "8010"
        prometheus.io/path: /metrics
        covey/profiles: {{ toJson .root.Values.profiles | sha256sum }}
        {{- with .role.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      shareProcessNamespace: true # the pause process reaps what tritonserver leaves, and the launcher can be killed
      terminationGracePeriodSeconds: {{ add .root.Values.drain.preStopSeconds .root.Values.drain.seconds 35 }}
      securityContext:
        {{- include "covey.podSecurity" . | nindent 8 }}
      {{- with .root.Values.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .role.runtimeClassName }}
      runtimeClassName: {{ . }}
      {{- end }}
      {{- with .role.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .role.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      topologySpreadConstraints:
        {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
        - maxSkew: 1
          topologyKey: {{ $key }}
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              {{- include "covey.selector" $ | nindent 14 }}
        {{- end }}
      {{- if .role.private }}
      initContainers:
        - name: private # a Secret's files can be read by their group, which the server refuses
          image: {{ .root.Values.image }}
          imagePullPolicy: {{ .root.Values.imagePullPolicy }}
          env:
            - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
          command: [sh, -ec, 'while [ $# -gt 0 ]; do install -m 400 "$1" "$2"; shift 2; done', sh]
          args:
            {{- range $index, $file := .role.private }}
            - /run/given/{{ $index }}/{{ $file.key }}
            - /run/covey/{{ $file.file }}
            {{- end }}
          resources:
            requests: {cpu: 10m, memory: 16Mi}
            limits: {cpu: 100m, memory: 64Mi}
          securityContext:
            {{- include "covey.containerSecurity" . | nindent 12 }}
          volumeMounts:
            - {name: private, mountPath: /run/covey}
            {{- range $index, $file := .role.private }}
            - {name: given-{{ $index }}, mountPath: /run/given/{{ $index }}, readOnly: true}
            {{- end }}
      {{- end }}
      containers:
        -
          {{- include "covey.container" . | nindent 10 }}
      volumes:
        {{- include "covey.volumes" . | nindent 8 }}
  {{- with .role.state }}
  volumeClaimTemplates:
    - metadata:
        name: state
      spec:
        accessModes: [ReadWriteOnce]
        {{- with $.role.storageClassName }}
        storageClassName: {{ . }}
        {{- end }}
        resources: {requests: {storage: {{ . }}}}
  {{- end }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ .headless }}
  labels:
    {{- include "covey.labels" . | nindent 4 }}
spec:
  clusterIP: None
  {{- if eq .component "drafter" }}
  publishNotReadyAddresses: true # a target's server finds out by itself whether a drafter is ready
  {{- end }}
  selector:
    {{- include "covey.selector" . | nindent 4 }}
  ports:
    {{- if eq .component "drafter" }}
    - {name: drafts, port: 8001, targetPort: drafts}
    {{- else }}
    - {name: http, port: 8010, targetPort: http}
    {{- end }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  labels:
    {{- include "covey.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "covey.selector" . | nindent 6 }}
{{- end }}
