# backend: deepspeed
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
    "deepspeed.launcher.launch",
    "--world_info=eyIwOmJpZyI6WyJHUFUtMDAwMDAwMDAtMDAwMC0wMDAwLTAwMDAtMDAwMDAwMDAwMDAwIiwiR1BVLTAwMDAwMDAxLTAwMDAtMDAwMC0wMDAwLTAwMDAwMDAwMDAwMCJdLCIxOnNtYWxsIjpbIkdQVS0wMDAwMDAwMC0wMDAwLTAwMDAtMDAwMC0wMDAwMDAwMDAwMDEiXX0=",
    "--node_rank=0",
    "--master_addr={master_addr}",
    "--master_port={master_port}",
    "--module",
    "--no_local_rank",
    "--log_level=warning",
    "orchestrator.train.worker",
    "/runs/a/plan.json"
   ],
   "env": {
    "CUDA_VISIBLE_DEVICES": "GPU-00000000-0000-0000-0000-000000000000,GPU-00000001-0000-0000-0000-000000000000",
    "LOCAL_WORLD_SIZE": "2",
    "OMP_NUM_THREADS": "8"
   }
  },
  {
   "name": "small",
   "processes": 1,
   "argv": [
    "/venv/bin/python",
    "-u",
    "-m",
    "deepspeed.launcher.launch",
    "--world_info=eyIwOmJpZyI6WyJHUFUtMDAwMDAwMDAtMDAwMC0wMDAwLTAwMDAtMDAwMDAwMDAwMDAwIiwiR1BVLTAwMDAwMDAxLTAwMDAtMDAwMC0wMDAwLTAwMDAwMDAwMDAwMCJdLCIxOnNtYWxsIjpbIkdQVS0wMDAwMDAwMC0wMDAwLTAwMDAtMDAwMC0wMDAwMDAwMDAwMDEiXX0=",
    "--node_rank=1",
    "--master_addr={master_addr}",
    "--master_port={master_port}",
    "--module",
    "--no_local_rank",
    "--log_level=warning",
    "orchestrator.train.worker",
    "/runs/a/plan.json"
   ],
   "env": {
    "CUDA_VISIBLE_DEVICES": "GPU-00000000-0000-0000-0000-000000000001",
    "LOCAL_WORLD_SIZE": "1",
    "OMP_NUM_THREADS": "4"
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
