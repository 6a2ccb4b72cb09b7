#!/usr/bin/env bash
# The evidence on SmolLM2-135M, 8k -> 32k, in order of importance. A run that was stopped goes on at the next call.
#
#     benchmarks/smollm2.sh TRAIN EVAL [FOLDER]    folders of text to train on, and to measure on: EVAL/books, EVAL/reports
#     RUNS="pose-yarn-0 no_skip-yarn-0" benchmarks/smollm2.sh ...    these runs only
#     STEPS=60 DOCUMENTS=1 TRIALS=10 LENGTHS=32k benchmarks/smollm2.sh ...    less than the recipe's 200 steps, 2 documents
#                                                                  of each text, and 20 prompts of 8k, 16k and 32k
#     MICRO=8 benchmarks/smollm2.sh ...    windows at a time, for a GPU; the recipe's 2 suit a CPU
#     TARGET=128k LENGTHS=32k,64k,128k RUNS="pose-fit-0 no_skip-fit-0" benchmarks/smollm2.sh ...    another target
#
# A run is SCHEME-INTERPOLATION-SEED; the interpolation fit is what `skipwise fit` recommends, once for all runs. The first
# run also measures the original and no training; `skipwise report FOLDER/*` compares all. docs/results.md has the results.
set -euo pipefail
train=$(realpath "${1:?a folder of text to train on}") eval=$(realpath "${2:?a folder with books/ and reports/}")
folder=${3:-runs/smollm2} target=${TARGET:-32k}
skipwise=${SKIPWISE:-skipwise}
mkdir -p "$folder"

runs='pose-yarn-0 no_skip-yarn-0 pose-yarn-1 no_skip-yarn-1 cream-yarn-0 full_length-yarn-0 pose-linear-0
no_skip-linear-0'
first=
for run in ${RUNS:-$runs}; do
    IFS=- read -r scheme interpolation seed <<<"$run"
    if [ "$interpolation" = fit ]; then
        interpolation=$folder/fit/fit.json
        [ -e "$interpolation" ] || $skipwise fit smollm2 --target "$target" --data "$train" --out "$folder/fit"
    fi
    arms='[trained]' resume=() steps=${STEPS:-200} batch=8 micro=${MICRO:-2} warmup=10 checkpointing=false
    [ "$scheme" != full_length ] || steps=$((steps / 4)) batch=1 micro=1 warmup=3 checkpointing=true # windows of 32k, as many tokens
    [ "$first" ] || arms='[trained, untrained, original]' first=$run
    [ "$run" != pose-linear-0 ] || arms='[trained, untrained]'
    [ ! -e "$folder/$run/run.json" ] || resume=(--resume)
    $skipwise extend --recipe smollm2-32k --target "$target" --data "$train" --interpolation "$interpolation" --seed "$seed" \
        --set positions.scheme="$scheme" --set evaluation.models="$arms" --set training.max_steps="$steps" \
        --set training.global_batch_size="$batch" --set training.per_device_train_batch_size="$micro" \
        --set training.warmup_steps=$warmup --set training.gradient_checkpointing=$checkpointing \
        --set evaluation.tasks='[passkey, keys]' \
        --set evaluation.source="[$eval/books, $eval/reports]" --set evaluation.documents="${DOCUMENTS:-2}" \
        --set evaluation.num_prompts="${TRIALS:-20}" --set evaluation.prompt_lengths="[${LENGTHS:-8k, 16k, 32k}]" \
        --set evaluation.tokens_per_document="$target" --out "$folder/$run" "${resume[@]}" 2>&1 | tee -a "$folder/$run.log"
done
