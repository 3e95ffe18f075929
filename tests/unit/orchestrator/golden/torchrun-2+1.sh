# backend: torchrun
# output:  /runs/a/logs/run-1-1.log
mkdir -p /runs/a
mkdir -p /runs/a/launch
mkdir -p /runs/a/logs
printf %s '{
 "schema": 1,
 "name": "run-1-1",
 "run_dir": "/runs/a",
 "parts": [
  {
   "name": "big",
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
    "CUDA_VISIBLE_DEVICES": "GPU-00000000-0000-0000-0000-000000000000,GPU-00000001-0000-0000-0000-000000000000",
    "OMP_NUM_THREADS": "8",
    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${role_name}"
   }
  },
  {
   "name": "small",
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
    "CUDA_VISIBLE_DEVICES": "GPU-00000000-0000-0000-0000-000000000001",
    "OMP_NUM_THREADS": "4",
    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${role_name}"
   }
  }
 ],
 "env": {
  "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
  "HF_HUB_DISABLE_TELEMETRY": "1",
  "PYTHONSAFEPATH": "1",
  "PYTHONUNBUFFERED": "1",
  "PYTORCH_ALLOC_CONF": "expandable_segments:True",
  "TOKENIZERS_PARALLELISM": "false",
  "TRAINMASTER_ATTEMPT": "1",
  "TRAINMASTER_RUN_DIR": "/runs/a"
 },
 "ports": [
  25653,
  26662,
  27671,
  28680,
  29689,
  20698,
  21707,
  22716
 ],
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
printf %s 'big slots=2
small slots=1
' > /runs/a/launch/hostfile
chmod 0644 /runs/a/launch/hostfile
cd /runs/a
env \
    CUDA_DEVICE_ORDER=PCI_BUS_ID \
    HF_HUB_DISABLE_TELEMETRY=1 \
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1 \
    PYTORCH_ALLOC_CONF=expandable_segments:True \
    TOKENIZERS_PARALLELISM=false \
    TRAINMASTER_ATTEMPT=1 \
    TRAINMASTER_RUN_DIR=/runs/a \
    /venv/bin/python -P -u -m launch.fan_out /runs/a/launch/run-1-1.json /venv/bin/python ssh -o BatchMode=yes -o ConnectTimeout=15 -o ServerAliveInterval=15
