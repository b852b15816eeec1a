#!/bin/sh
# One mail per job: `leasehold work mail -- examples/send.sh`. The payload is the address. The folder outbox
# stands for the mail server; the server is down when the folder does not exist.

read -r to
case $to in
*@*) ;;
*)
    echo "no address: $to" >&2
    exit 65 # the data are wrong, so no retry helps
    ;;
esac
if [ ! -d outbox ]; then
    exit 75 # not the job's fault: run it later, and refund the attempt
fi
# The name has the job and not the attempt, so a second run of the job sends nothing twice.
echo "hello" > "outbox/$to.job-$LEASEHOLD_JOB_ID" || exit 1
echo "{\"sent_to\":\"$to\",\"attempt\":$LEASEHOLD_ATTEMPT}"
