#!/bin/bash
# Any command on machines that ssh reaches, one process on each, with all of its devices:
#
#   experiments/launch/hosts.sh "host1 host2 host3" \
#     train --config=configs/wmt14_en_de_base.py --workdir=/shared/runs/wmt14
#
# Run it in the repository, which every host has in the same folder, set up with `make setup`, on a
# file system that all hosts share. Where a process or a host is lost, the command starts again on
# the hosts that answer, fewer if need be, and continues from the last checkpoint: up to 10 times.
# For that any of these numbers of devices must divide the batch. SIGTERM saves and stops (75).
set -uo pipefail
if [ $# -lt 2 ]; then echo "usage: $0 \"HOST ...\" COMMAND [FLAG ...]" >&2; exit 2; fi
read -ra hosts <<< "$1"
shift
printf -v words '%q ' "$@"
printf -v folder '%q' "$PWD"
port=${PORT:-8476}
stopped=

on() { ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15 "$@"; }
pid=$folder/.venv/hosts.$port.pid  # of the process on the first host; SIGTERM to it stops all
trap 'stopped=yes; on "${alive[0]}" "kill -TERM \$(cat $pid)"' TERM INT

for _ in {0..10}; do
  alive=()
  for host in "${hosts[@]}"; do
    if on "$host" true; then alive+=("$host"); else echo "$host does not answer" >&2; fi
  done
  if [ ${#alive[@]} -eq 0 ]; then exit 255; fi

  running=()
  for i in "${!alive[@]}"; do
    job="--coordinator=${alive[0]}:$port --num_processes=${#alive[@]} --process_id=$i"
    note=$([ "$i" -eq 0 ] && echo "echo \$\$ > $pid;")
    on "${alive[$i]}" "cd $folder && { $note exec .venv/bin/python -m transformer_jax $words --distributed $job; }" &
    running+=($!)
  done

  worst=0
  for process in "${running[@]}"; do
    wait "$process"
    status=$?
    while kill -0 "$process" 2> /dev/null; do wait "$process"; status=$?; done  # a trap had ended it
    case $status in
      0) ;;
      1 | 2 | 130) exit "$status" ;;  # no other start would help
      *) worst=75 ;;
    esac
  done
  if [ "$worst" -eq 0 ] || [ -n "$stopped" ]; then exit "$worst"; fi
  echo "a process was lost; again, from the last checkpoint" >&2
done
exit 75
