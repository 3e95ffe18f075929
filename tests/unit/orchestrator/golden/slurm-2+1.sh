# backend: slurm
# output:  /runs/a/logs/sbatch.log
mkdir -p /runs/a
mkdir -p /runs/a/launch
mkdir -p /runs/a/logs
printf %s '{
 "schema": 1,
 "name": "run-1-1",
 "run_dir": "/runs/a",
 "parts": [
  {
   "name": "",
   "processes": 2,
   "argv": [
    "/venv/bin/python",
    "-u",
    "-m",
    "torch.distributed.run",
    "--nnodes",
    "2",
    "--node-rank",
    "0",
    "--nproc-per-node",
    "2",
    "--max-restarts",
    "0",
    "--rdzv-backend",
    "static",
    "--master-addr",
    "{master_addr}",
    "--master-port",
    "{master_port}",
    "--rdzv-id",
    "run-1-1",
    "--rdzv-conf",
    "timeout=120",
    "--local-addr",
    "{local_addr}",
    "--role",
    "",
    "--log-dir",
    "/runs/a/logs/host0",
    "--redirects",
    "3",
    "--tee",
    "0:3",
    "-m",
    "orchestrator.train.worker",
    "/runs/a/plan.json"
   ],
   "env": {
    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${role_name}"
   }
  },
  {
   "name": "",
   "processes": 1,
   "argv": [
    "/venv/bin/python",
    "-u",
    "-m",
    "torch.distributed.run",
    "--nnodes",
    "2",
    "--node-rank",
    "1",
    "--nproc-per-node",
    "1",
    "--max-restarts",
    "0",
    "--rdzv-backend",
    "static",
    "--master-addr",
    "{master_addr}",
    "--master-port",
    "{master_port}",
    "--rdzv-id",
    "run-1-1",
    "--rdzv-conf",
    "timeout=120",
    "--local-addr",
    "{local_addr}",
    "--role",
    "",
    "--log-dir",
    "/runs/a/logs/host1",
    "--redirects",
    "3",
    "-m",
    "orchestrator.train.worker",
    "/runs/a/plan.json"
   ],
   "env": {
    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${role_name}"
   }
  }
 ],
 "env": {
  "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
  "HF_HUB_DISABLE_TELEMETRY": "1",
  "OMP_NUM_THREADS": "4",
  "PYTHONSAFEPATH": "1",
  "PYTHONUNBUFFERED": "1",
  "PYTORCH_ALLOC_CONF": "expandable_segments:True",
  "TOKENIZERS_PARALLELISM": "false",
  "TRAINMASTER_RUN_DIR": "/runs/a"
 },
 "ports": [],
 "must_see": [
  "/runs/a/plan.json"
 ],
 "packages": [
  "launch",
  "orchestrator",
  "topology"
 ],
 "interfaces": [],
 "join_seconds": 120,
 "uses_devices": true
}
' > /runs/a/launch/run-1-1.json
chmod 0644 /runs/a/launch/run-1-1.json
printf %s '#!/bin/bash
#SBATCH --job-name=run-1-1
#SBATCH --output=/runs/a/logs/slurm-%j.out
#SBATCH --open-mode=append
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus=3
#SBATCH --cpus-per-gpu=4
#SBATCH --requeue
# Written by trainmaster. Submit with: sbatch /runs/a/launch/job.sbatch

RUN_DIR=/runs/a
RESTARTS="${SLURM_RESTART_COUNT:-0}"
MAX_REQUEUES=20
JOB="$SLURM_JOB_ID"
# Each start of the ranks has a number, within a job, too.
ATTEMPT=$(($(find "$RUN_DIR" -maxdepth 1 -name '"'"'plan.[0-9]*.json'"'"' | wc -l) + 1))

# 1. USR1 comes before the time limit, and at preemption where the cluster sends it then. It asks the ranks, by a file, to
#    stop at the next step with a checkpoint. TERM at preemption goes to the ranks alone, which do the same.
SIGNAL=""
ask_to_stop() {
    SIGNAL="$1"
    echo "trainmaster: $1 received, stopping at the next step boundary with a checkpoint"
    : > "$RUN_DIR/stop"
}
trap '"'"'ask_to_stop USR1'"'"' USR1
trap '"'"'ask_to_stop TERM'"'"' TERM

# A step runs in the background, for a trap waits until a command in front has ended; `wait` ends with each trap.
step() {
    "$@" &
    local pid=$!
    wait "$pid"
    CODE=$?
    while kill -0 "$pid" 2>/dev/null; do
        wait "$pid"
        CODE=$?
    done
}
status() {
    sed -n '"'"'s/^ *"status": "\([a-z]*\)".*/\1/p'"'"' "$RUN_DIR/summary.json" 2>/dev/null | head -n 1
}
record() {
    printf '"'"'{"attempt": %d, "job": "%s", "restart": %d, "nodes": "%s", "what": "%s", "at": %d}\n'"'"' \
        "$ATTEMPT" "$JOB" "$RESTARTS" "$SLURM_JOB_NODELIST" "$1" "$(date +%s)" >> "$RUN_DIR/attempts.jsonl"
}

# 2. this attempt
cd "$RUN_DIR" || { echo "trainmaster: node $(hostname) does not see $RUN_DIR" >&2; exit 1; }
if [ "$(status)" = done ] || [ -e cancelled ]; then
    echo "trainmaster: nothing to do in $RUN_DIR"
    exit 0
fi
rm -f stop summary.json
cp -n plan.json "plan.$ATTEMPT.json"
record start
echo "trainmaster: attempt $ATTEMPT, job $JOB, restart $RESTARTS, nodes $SLURM_JOB_NODELIST"
CODE=0

# 3. each node looks at itself; on the first one the plan is compared with what was found, and made anew where asked for
step srun --ntasks-per-node=1 --nodes=2 /venv/bin/python -P -u -m orchestrator.slurm_node /runs/a "$ATTEMPT"
if [ -z "$SIGNAL" ]; then
    step srun --ntasks-per-node=1 --nodes=1 --ntasks=1 --gres=none /venv/bin/python -P -u -m orchestrator.slurm_check /runs/a /runs/a/launch/run-1-1.json "$ATTEMPT"
fi

# 4. rows are tokenised once; then one agent per node starts the ranks
. /runs/a/launch/exports.sh
export TRAINMASTER_ATTEMPT="$ATTEMPT"
if [ "$CODE" -eq 0 ] && [ -z "$SIGNAL" ]; then
    step srun --ntasks-per-node=1 --nodes=1 --ntasks=1 --gres=none /venv/bin/python -P -u -m orchestrator.train.prepare /runs/a/plan.json
fi
if [ "$CODE" -eq 0 ] && [ -z "$SIGNAL" ]; then
    step /venv/bin/python -P -u -m orchestrator.slurm_supervise /runs/a /runs/a/launch/run-1-1.json -- srun --ntasks-per-node=1 --nodes=2 --kill-on-bad-exit=1 --unbuffered /venv/bin/python -P -u -m launch.on_host /runs/a/launch/run-1-1.json
fi

# 5. what came of it
RESULT="$(status)"
# A preempted job that ends before its grace time is not put back by SLURM.
if [ -z "$SIGNAL" ] && [ "$RESULT" != done ] && scontrol show job "$JOB" | grep -q '"'"'PreemptTime=[0-9]'"'"'; then
    SIGNAL=preemption
fi
record "${RESULT:-ended with code $CODE}"
if [ "$RESULT" = done ]; then
    exit 0
fi
if [ -z "$SIGNAL" ] && [ "$RESULT" != stopped ]; then
    echo "trainmaster: the run failed with code $CODE; the ranks'"'"' own logs are in $RUN_DIR/logs" >&2
    exit "$((CODE ? CODE : 1))"
fi
echo "trainmaster: stopped, resumable"
# Only what the cluster stopped goes on by itself, not what a user did. A job that is not running any more was cancelled,
# or SLURM has put it back itself.
if [ -n "$SIGNAL" ] && [ ! -e cancelled ] && scontrol show job "$JOB" | grep -q JobState=RUNNING; then
    if [ "$RESTARTS" -lt "$MAX_REQUEUES" ]; then
        record requeue
        scontrol requeue "$JOB"
    else
        echo "trainmaster: not requeued: launch.max_requeues=$MAX_REQUEUES is reached" >&2
    fi
fi
exit 75
' > /runs/a/launch/job.sbatch
chmod 0755 /runs/a/launch/job.sbatch
printf %s 'export CUDA_DEVICE_ORDER=PCI_BUS_ID
[ -n "${HF_HUB_DISABLE_TELEMETRY+set}" ] || export HF_HUB_DISABLE_TELEMETRY=1
[ -n "${OMP_NUM_THREADS+set}" ] || export OMP_NUM_THREADS=4
[ -n "${PYTHONSAFEPATH+set}" ] || export PYTHONSAFEPATH=1
[ -n "${PYTHONUNBUFFERED+set}" ] || export PYTHONUNBUFFERED=1
[ -n "${PYTORCH_ALLOC_CONF+set}" ] || export PYTORCH_ALLOC_CONF=expandable_segments:True
[ -n "${TOKENIZERS_PARALLELISM+set}" ] || export TOKENIZERS_PARALLELISM=false
export TRAINMASTER_RUN_DIR=/runs/a
' > /runs/a/launch/exports.sh
chmod 0644 /runs/a/launch/exports.sh
cd /runs/a
env \
    sbatch --parsable /runs/a/launch/job.sbatch
