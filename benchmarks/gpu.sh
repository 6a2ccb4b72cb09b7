#!/usr/bin/env bash
# The measurements that need a GPU, in parts of at most ten minutes each. A part goes on from what lies in FOLDER.
#
#     benchmarks/gpu.sh rate  [FOLDER]    operations a second of a large bf16 matrix product: seconds
#     benchmarks/gpu.sh smollm2 [FOLDER]  SmolLM2-135M to 32k and 128k under the fitted interpolation, PoSE and its no-skip
#                                         control, three seeds; TEXT and EVAL are folders, EVAL/books and EVAL/reports
#     benchmarks/gpu.sh plan  [FOLDER]    memory and speed at LLaMA-7B's shape, beside what `skipwise plan` says
#     benchmarks/gpu.sh base  [FOLDER]    a Llama of 102 million parameters, window 2k, trained from nothing
#     benchmarks/gpu.sh arms  [FOLDER]    PoSE, its no-skip control and full-length from that base to 16k, three seeds
#     benchmarks/gpu.sh table [FOLDER]    the tables of what is there; every other part prints them too, last
#
# It needs the checkout, a Python with skipwise's packages (PYTHON=python3) and a GPU. TEXT is what is trained on: a file or
# folder, by default the standard library of that Python. EVAL are texts to measure on, separated by spaces; by default
# the documents of TEXT that are held out. BASE_STEPS=1200, STEPS=120 and WINDOWS=64 are the base's steps, the arms', and the
# windows of 2k tokens in a step; DOCUMENTS=4 how many of each text are read. TINY=1 runs every part but smollm2 in small on a CPU.
set -euo pipefail

part=${1:?rate, smollm2, plan, base, arms or table}
folder=$(realpath -m "${2:-runs/gpu}")
python=${PYTHON:-python3}
text=${TEXT:-stdlib}
limit=${LIMIT:-570} # seconds of a part; what runs longer is stopped, and goes on at the next call
cd "$(dirname "$0")/.."
export PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH} HF_HUB_OFFLINE=1
mkdir -p "$folder"

size=(--steps "${BASE_STEPS:-1200}") steps=${STEPS:-120} batch=${WINDOWS:-64} micro=8 rate=2e-4
measured=(--set evaluation.documents="${DOCUMENTS:-4}" --set evaluation.tokens_per_document=20k
    --set evaluation.num_prompts=10 --set evaluation.prompt_lengths="[8k, 16k]")
if [ "${TINY:-}" ]; then
    size=(--window 256 --width 64 --layers 2 --steps 4 --tokens 1024) steps=2 batch=8 micro=8
    measured=(--set evaluation.documents=1 --set evaluation.tokens_per_document=4k --set evaluation.num_prompts=0)
fi

bounded() { # run a command for what is left of the part's time; a stop at its end is no failure: the next call goes on
    local left=$((limit - SECONDS)) status=0
    [ "$left" -le 0 ] || timeout --kill-after=30 "$left" "$@" || status=$?
    [[ $status =~ ^(0|124|137)$ ]] # 137: it did not end in 30 s, and was killed
}

rate() {
    "$python" - <<'PYTHON' | tee "$folder/rate.txt"
import time
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
size = 8192 if device == "cuda" else 512
a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
wait = torch.cuda.synchronize if device == "cuda" else lambda: None
for _ in range(3):
    a @ b
wait()
began = time.perf_counter()
for _ in range(10):
    a @ b
wait()
name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
print(f"{2 * 10 * size**3 / (time.perf_counter() - began) / 1e12:.1f} TFLOP/s in bf16 products of {size}^3 on {name}, torch {torch.__version__}")
PYTHON
}

smollm2() {
    local runs='pose-fit-0 no_skip-fit-0 pose-fit-1 no_skip-fit-1 pose-fit-2 no_skip-fit-2'
    for target in 32k 128k; do
        bounded env TARGET=$target LENGTHS=8k,$target MICRO=$micro RUNS="${RUNS:-$runs}" SKIPWISE="$python -m skipwise" \
            benchmarks/smollm2.sh "$text" "${EVAL:?a folder with books/ and reports/}" "$folder/smollm2-$target"
    done
}

plan() {
    [ -e "$folder/rate.txt" ] || rate
    bounded "$python" -m benchmarks.plan_accuracy --tflops "$(cut -d' ' -f1 "$folder/rate.txt")" --out "$folder/plan.jsonl" >/dev/null
}

base() {
    bounded "$python" -m benchmarks.hundred_million base "$folder/base" --text "$text" "${size[@]}"
}

compare() { # OUT WINDOWS ARM...: three seeds of arms under YaRN x8 from the base, WINDOWS of 2k tokens a step
    local out=$1 windows=$2 arms=() texts=()
    shift 2
    for arm in "$@"; do arms+=(--arm "$arm"); done
    for one in ${EVAL:-}; do texts+=(--text "$one"); done
    mkdir -p "$out"
    bounded "$python" -m reproduction passkey --setting "yarn, 8x" "${arms[@]}" --seeds 3 --out "$out" "${texts[@]}" \
        --set model="$folder/base/model" --set data.source="$text" --set training.max_steps="$steps" \
        --set training.global_batch_size="$windows" --set training.per_device_train_batch_size="$micro" \
        --set training.learning_rate="$rate" --set training.optim=adamw_torch_fused "${measured[@]}" >"$out/log" 2>&1 ||
        { tail -5 "$out/log"; return 1; }
}

arms() {
    [ -e "$folder/base/model/config.json" ] || { echo "no base yet: run benchmarks/gpu.sh base $folder"; exit 1; }
    compare "$folder/equal-windows" "$batch" full_length pose no_skip original untrained
    compare "$folder/equal-tokens" $((batch / 8)) full_length
}

table() {
    [ ! -e "$folder/rate.txt" ] || cat "$folder/rate.txt"
    [ ! -e "$folder/plan.jsonl" ] || "$python" -m benchmarks.plan_accuracy --table --tflops "$(cut -d' ' -f1 "$folder/rate.txt")" --out "$folder/plan.jsonl"
    local found=("$folder"/equal-*/)
    [ ! -e "${found[0]}" ] || "$python" -m benchmarks.hundred_million table "${found[@]}"
}

case $part in
rate | smollm2 | plan | base | arms) "$part" ;;
table) ;;
*) echo "no part $part: rate, smollm2, plan, base, arms or table" && exit 2 ;;
esac
table
