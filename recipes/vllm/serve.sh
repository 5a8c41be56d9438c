#!/usr/bin/env bash
# serve.sh PORT MODEL [SPECULATIVE-CONFIG-JSON]: start vLLM 0.32.0 (CPU) on the loopback, in the foreground.
# SPS_LIVE_VLLM names the folder of install.sh (work/vllm); MENDED=1 loads the mended CPU shim (vLLM #55005), without
# which sampled speculation is not lossless; SERVED and DTYPE name the model and its numbers.
# A start takes minutes on two cores, the first request half a minute.
set -eu
folder=$(cd "${SPS_LIVE_VLLM:-work/vllm}" && pwd)
port=$1 model=$2 config=${3:-}
export PYTHONPATH="$folder/site${MENDED:+:$folder/mended}"
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1
export VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1
exec "$folder/venv/bin/vllm" serve "$model" --host 127.0.0.1 --port "$port" --served-model-name "${SERVED:-nano}" \
  --dtype "${DTYPE:-float32}" --enforce-eager --max-model-len 2048 --max-num-seqs 16 \
  --per-request-spec-decode-metrics detailed ${config:+--speculative-config "$config"}
