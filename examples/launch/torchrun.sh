#!/usr/bin/env bash
# Several processes of one host, each with a replica of the model. PROCESSES says how many.
set -euo pipefail
processes=${PROCESSES:-2}
# A core each: more threads than cores make every one of them slow.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
torchrun --standalone --nproc-per-node "$processes" \
  -m gossamer train "${RECIPE:-train-gpt}" --data "${DATA:-zoo:text}" -o "${OUT:-trained}" \
  --set "stages.0.train.mesh={data: $processes}" "$@"
