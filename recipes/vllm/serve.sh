#!/usr/bin/env bash
# serve.sh PORT MODEL [SPECULATIVE-CONFIG-JSON]: start vLLM 0.32.0 (CPU) on the loopback, in the foreground.
# SPS_LIVE_VLLM names the folder of install.sh (work/vllm); MENDED=1 loads the mended CPU shim (vLLM #55005), without
# which sampled speculation is not lossless; SERVED and DTYPE name the model and its numbers; PREFIX_CACHE=off turns the
# prefix cache off; HEAD=nano-medusa exports that head by SPS (.venv/bin/sps) and puts its folder for @HEAD@ in the JSON.
# ADDITIONAL is the JSON of --additional-config, FAULT a fault of plant_fault.py; this checkout can be imported there.
# A start takes minutes on two cores, the first request half a minute.
set -eu
folder=$(cd "${SPS_LIVE_VLLM:-work/vllm}" && pwd)
port=$1 model=$2 config=${3:-}
if [ -n "${HEAD:-}" ]; then
  export_to=$folder/heads/$HEAD
  [ -d "$export_to" ] || "${SPS:-.venv/bin/sps}" models export "$HEAD" --for vllm --verifier "$model" --out "$export_to"
  config=${config//@HEAD@/$export_to}
fi
export PYTHONPATH="$folder/site${MENDED:+:$folder/mend_expand}${FAULT:+:$folder/plant_fault}:$(cd "$(dirname "$0")/../.." && pwd)"
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1
export VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1
exec "$folder/venv/bin/vllm" serve "$model" --host 127.0.0.1 --port "$port" --served-model-name "${SERVED:-nano}" \
  --dtype "${DTYPE:-float32}" --enforce-eager --max-model-len 2048 --max-num-seqs 16 \
  ${PREFIX_CACHE:+--no-enable-prefix-caching} \
  ${ADDITIONAL:+--additional-config "$ADDITIONAL"} \
  ${config:+--per-request-spec-decode-metrics detailed --speculative-config "$config"}  # refused by a plain server
