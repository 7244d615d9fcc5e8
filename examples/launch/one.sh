#!/usr/bin/env bash
# One process. RECIPE, DATA and OUT may be set outside; further words go to gossamer.
set -euo pipefail
gossamer train "${RECIPE:-train-gpt}" --data "${DATA:-zoo:text}" -o "${OUT:-trained}" "$@"
