#!/usr/bin/env bash
# The benchmark on a GPU machine without network: Python 3.12 with PyTorch and Triton there, everything else brought along.
#
#   tools/bench_device.sh stage DIR...     unpack what the folders hold: site.tar.xz, wheels, fi.part.00 and fi.part.01
#   tools/bench_device.sh run DATE [ARGS]  `qlagen bench run ARGS`; rows of benchmarks/results/nvidia-h200-DATE.jsonl
#                                          are taken over, and the file goes to $OUT (benchmarks/results without it)
#   tools/bench_device.sh save             what was compiled, as $OUT/cache.part.*: compiling takes longer than measuring
# Parts of the FlashInfer archive may come in several calls of `stage`; they are unpacked when the last has come. A
# folder with all parts of a saved cache may be staged too.
set -euo pipefail
root=${BENCH_ROOT:-/tmp/qlagen-bench}
parts=2 # of the FlashInfer archive

unpack() { # xz archive on standard input, folder
  xz -dc -T8 | tar -C "$1" -xf -
}

stage() {
  mkdir -p "$root/site" "$root/fi" "$root/parts"
  for folder in "$@"; do
    [ -e "$folder/site.tar.xz" ] && unpack "$root/site" <"$folder/site.tar.xz"
    for wheel in "$folder"/*.whl; do
      [ -e "$wheel" ] && python3 -m zipfile -e "$wheel" "$root/site"
    done
    if [ -e "$folder/cache.part.00" ]; then
      cat "$folder"/cache.part.* | unpack "$root"
    fi
    for part in "$folder"/fi.part.*; do
      [ -e "$part" ] && cp "$part" "$root/parts/"
    done
  done
  if [ "$(find "$root/parts" -name 'fi.part.*' | wc -l)" -eq "$parts" ]; then
    cat "$root"/parts/fi.part.* | unpack "$root/fi"
    rm "$root"/parts/fi.part.*
  fi
  du -sh "$root"/*
}

run() {
  local file="nvidia-h200-$1.jsonl" out=${OUT:-benchmarks/results}
  shift
  export PYTHONPATH=$PWD:$PWD/generated/qla_ops/src:$root/site:$root/fi:$root/fi/nvidia_cutlass_dsl/dsl_packages
  export PYTHONUNBUFFERED=1 TILELANG_CACHE_DIR=$root/cache/tilelang TRITON_CACHE_DIR=$root/cache/triton
  export FLASHINFER_WORKSPACE_BASE=$root/cache/flashinfer QLA_OPS_CACHE=$root/cache/qla_ops
  mkdir -p "$out" "$root/cache"
  # What an earlier run of the same command left there goes on.
  if [ "$out" != benchmarks/results ] && [ -e "benchmarks/results/$file" ] && [ ! -e "$out/$file" ]; then
    cp "benchmarks/results/$file" "$out/$file"
  fi
  local status=0
  python3 -m qlagen.bench run --results "$out/$file" --log "$out/bench.log" "$@" || status=$?
  python3 -m qlagen.bench report "$out/$file" | cut -c1-170 | tail -n 70 || true
  return $status
}

save() {
  tar -C "$root" --exclude cache/qla_ops -cf - cache |
    xz -T0 -4 | split -d -b 15M - "${OUT:?a folder}/cache.part."
  du -sh "$root"/cache/* "$OUT"
}

command=${1:?stage, run or save}
shift
case $command in
  stage | run | save) "$command" "$@" ;;
  *) echo "unknown: $command" >&2; exit 2 ;;
esac
