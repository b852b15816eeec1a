#!/bin/sh
# One mail per job: `leasehold work mail -- examples/send.sh`. The payload is the address. Sending is a
# stand-in here: the folder outbox is the mail server, and away when it does not exist.

read -r to
case $to in
*@*) ;;
*)
    echo "no address: $to" >&2
    exit 65 # nor will it be one next time: failed for good
    ;;
esac
if [ ! -d outbox ]; then
    exit 75 # not the job's fault: later, and no attempt is spent
fi
# Named by the job and not by the attempt: a second run of the same job sends nothing twice.
echo "hello" > "outbox/$to.job-$LEASEHOLD_JOB_ID" || exit 1
echo "{\"sent_to\":\"$to\",\"attempt\":$LEASEHOLD_ATTEMPT}"
