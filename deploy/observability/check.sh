#!/usr/bin/env bash
# Check the rules as Prometheus reads them, and run them over scripted samples: what must fire does, and nothing else.
# Where promtool is not to be had it says so and exits 0, unless HEADWATER_NEED_PROMTOOL is set.
set -euo pipefail
cd "$(dirname "$0")"

if ! tools=$(./prometheus.sh); then
  echo "SKIPPED: the rules were not checked, since there is no promtool" >&2
  [[ -z ${HEADWATER_NEED_PROMTOOL:-} ]]
  exit
fi
"$tools/promtool" check rules rules/*.yml
"$tools/promtool" test rules tests/*.yml
