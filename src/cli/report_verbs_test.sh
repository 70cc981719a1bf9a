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
expect 0 '90 % interval' simulate "$dir/job" --draws 5
expect 0 'without the what-ifs' simulate "$dir/job" --what-if rank:1=1.5 --what-if kernel:forward=0.5
expect 1 'is nothing that can be changed' simulate "$dir/job" --what-if gpu:1=2
expect 1 'there is no rank 9' simulate "$dir/job" --what-if rank:9=2
expect 1 'nothing is known of the links' simulate "$dir/job" --what-if port:1=2
expect 1 '--draws 0 is out of range' simulate "$dir/job" --jitter 0.1 --draws 0
expect 1 'out of range' simulate "$dir/job" --timeline-ranks 0
expect 0 'step time' simulate "$dir/job" --target H200X8
expect 1 '--timeline FILE` writes it elsewhere' simulate "$dir/job" --timeline "$dir/none/t.pftrace.gz"
expect 1 'hint: PATH is a job directory' inspect "$dir/none"

cat > "$dir/net.json" <<'JSON'
{"schema": "prism.netprofile", "schema_version": 1, "machine": {"gpu": "NVIDIA H200"}, "settings": {}, "entries": [
{"operation": "AllGather", "ranks": 8, "nodes": 1, "bytes": 1024, "isolated": false, "median_ns": 9000, "p10_ns": 9000, "p90_ns": 9000, "n": 1}]}
JSON
for verb in simulate report; do
  expect 0 'profile of NVIDIA H200 (calls in a row); of ' $verb "$dir/job" --target h200x8 --network "$dir/net.json"
done
expect 1 "there is no file $dir/none.json" simulate "$dir/job" --network "$dir/none.json"
sed -i 's/"median_ns": 9000/"median_ns": -1/' "$dir/net.json"
expect 1 'net.json: entry 0: median_ns is -1' report "$dir/job" --network "$dir/net.json"
expect 125 'entry 0: median_ns is -1' run --network "$dir/net.json" --job "$dir/run" -- true
[ ! -e "$dir/run" ] || { echo 'run captured although its profile is bad'; failures=$((failures + 1)); }

# Rank 1 is the last to come, by 1 ms.
"$synthetic" "$dir/recorded" recorded 2 8 || exit 2
expect 0 'mostly measured' simulate "$dir/recorded" --target h200x8
expect 0 'training steps (odd)' simulate "$dir/recorded" --target h200x8 --samples odd
expect 0 'steps are taken from 3 training steps (even-steps)' simulate "$dir/recorded" --target h200x8 --samples even-steps
expect 0 'what if rank 1 had 5 ms more' simulate "$dir/recorded" --target h200x8 --delay 1:5ms --delay 0:100us
expect 1 'there is no rank 2' simulate "$dir/recorded" --target h200x8 --delay 2:5ms
expect 1 'has no unit' simulate "$dir/recorded" --target h200x8 --delay 1:5
expect 1 'is no RANK:TIME' simulate "$dir/recorded" --target h200x8 --delay 5ms
expect 1 '--samples odds is unknown' simulate "$dir/recorded" --target h200x8 --samples odds
"$synthetic" "$dir/short" recorded 2 4 || exit 2
expect 1 'has 3 training steps' simulate "$dir/short" --target h200x8 --samples odd

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

# A report of what cannot be read is shown where there is a job, and is no success.
printf '{"schema": "prism.job", "schema_version": 1, "state": "complete", "world": 8, "device": "host"}' > "$dir/job.json"
for damage in missing torn empty; do
  cp "$dir/job.json" "$dir/$damage"
  expect 1 'prediction   none' report "$dir/$damage" --target h200x8
done
printf '{"schema": "prism.job", "schema_version": 1, "state": "complete", "world": 8, "device": "none"}' > "$dir/empty/job.json"
expect 0 'prediction   none' report "$dir/empty" --target h200x8
expect 0 '1 torn' inspect "$dir/torn"

cp -r "$dir/job" "$dir/state"
cp "$dir/job.json" "$dir/state"
expect 0 'state: complete' inspect "$dir/state"
expect 0 '1 communicator of 8 ranks' inspect "$dir/state"
expect 1 'hint: PATH is a job directory' inspect "$dir/state/job.json"
sed -i 's/"world": 8/"world": 16/' "$dir/state/job.json"
expect 1 'job.json says 16 ranks, the traces are of 8' check "$dir/state"
printf '{' > "$dir/state/job.json"
expect 0 'unknown: ' inspect "$dir/state"

# Figures of one rank that are damaged, or missing beside others'.
cp -r "$dir/job" "$dir/memory"
cp "$dir/job.json" "$dir/memory"
printf '{"schema": "prism.matching", "schema_version": 1, "communicators": []}' > "$dir/memory/matching.json"
for rank in 0 1 2 3 4 5 6 7; do
  mkdir -p "$dir/memory/ranks/0000$rank"
  printf '{"schema": "prism.rank-memory", "devices": []}' > "$dir/memory/ranks/0000$rank/memory.json"
done
printf '{"schema": "prism.rank-memory"' > "$dir/memory/ranks/00001/memory.json"
rm "$dir/memory/ranks/00002/memory.json"
expect 1 'rank 1: ranks/00001/memory.json is damaged' check "$dir/memory"
expect 1 'rank 2: ranks/00002/memory.json is not there' check "$dir/memory"

cp -r "$dir/job" "$dir/later"
printf '\002' | dd of="$dir/later/trace/rank-00000.prt" bs=1 seek=8 conv=notrunc 2>/dev/null
expect 1 'damaged' inspect "$dir/later/trace/rank-00000.prt"

[ $failures -eq 0 ] && echo 'report verbs: ok'
exit $failures
