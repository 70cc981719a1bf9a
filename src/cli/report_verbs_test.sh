#!/bin/sh
# The verbs that read job directories, on good and bad ones: exit codes, messages, files. $1: prism, $2: write_synthetic_job.
prism=$1
synthetic=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failures=0

# expect CODE TEXT ARGUMENTS...: the exit code, and that the output contains TEXT.
expect() {
  code=$1 text=$2
  shift 2
  output=$("$prism" "$@" 2>&1)
  got=$?
  if [ $got -ne "$code" ]; then
    echo "prism $*: exit code $got, expected $code: $output"
    failures=$((failures + 1))
  elif ! printf '%s' "$output" | grep -qF -- "$text"; then
    echo "prism $*: no '$text' in: $output"
    failures=$((failures + 1))
  fi
}

"$synthetic" "$dir/job" sharded 8 4 || exit 2
expect 0 'step time' simulate "$dir/job" --target h200x8
[ -s "$dir/job/simulate.json" ] && [ -s "$dir/job/timeline.pftrace.gz" ] || { echo 'simulate wrote no files'; failures=$((failures + 1)); }
expect 0 '"schema": "prism.simulate"' simulate "$dir/job" --target h200x8 --json
expect 0 'AllGather' report "$dir/job"
expect 0 '"schema": "prism.report"' report "$dir/job" --json
expect 0 '8 traces (8 sealed)' inspect "$dir/job"
expect 0 'PrismTrace 1 of rank 3 of 8, sealed' inspect "$dir/job/trace/rank-00003.prt"
expect 0 'kernels, hash' inspect "$dir/job/trace/rank-00003.prt" --nodes
expect 0 'p10' simulate "$dir/job" --target h200x8 --jitter 0.02 --draws 10

expect 1 'no job directory' simulate "$dir/none"
expect 1 'no job directory' report "$dir/none"
expect 1 'No such file' inspect "$dir/none"
mkdir "$dir/empty"
expect 1 'holds no traces' simulate "$dir/empty"
expect 1 'holds no traces' inspect "$dir/empty"
expect 1 'did you mean "h200"' simulate "$dir/job" --target h20x8
expect 1 'has 4 GPUs' simulate "$dir/job" --target h200x4
expect 1 'no steps found' simulate "$dir/job" --target h200x8 --step-mark nothing
expect 1 '--jitter' simulate "$dir/job" --draws 5
expect 1 'out of range' simulate "$dir/job" --timeline-ranks 0

printf 'PRISMTR1' > "$dir/short.prt"
expect 1 'only 8 bytes' inspect "$dir/short.prt"
printf 'something else that is long enough to have had a header of 64 bytes in it' > "$dir/other.prt"
expect 1 'not a PrismTrace' inspect "$dir/other.prt"

cp -r "$dir/job" "$dir/missing"
rm "$dir/missing/trace/rank-00002.prt"
expect 1 '1 of 8 ranks have no trace: 2' simulate "$dir/missing"
expect 0 'have no trace' simulate "$dir/missing" --target h200x8 --allow-incomplete

cp -r "$dir/job" "$dir/torn"
head -c 1000 "$dir/job/trace/rank-00001.prt" > "$dir/torn/trace/rank-00001.prt"
expect 1 'readable:' simulate "$dir/torn"
expect 0 '1 torn' inspect "$dir/torn"

cp -r "$dir/job" "$dir/later"
printf '\002' | dd of="$dir/later/trace/rank-00000.prt" bs=1 seek=8 conv=notrunc 2>/dev/null
expect 1 'damaged' inspect "$dir/later/trace/rank-00000.prt"

[ $failures -eq 0 ] && echo 'report verbs: ok'
exit $failures
