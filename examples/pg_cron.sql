-- Recovery and maintenance twice a minute, for stores without a program of ours that runs all the time.
-- pg_cron starts a job at most once a minute, so the second entry waits for half a minute. A failure is a
-- warning in the server's log; the next run tries again.
SELECT cron.schedule('leasehold', '* * * * *', $cron$
    DO $do$
    BEGIN
        PERFORM leasehold.maintain();
    EXCEPTION WHEN OTHERS THEN
        RAISE WARNING 'leasehold.maintain() failed: %', SQLERRM;
    END $do$
$cron$);

SELECT cron.schedule('leasehold, half a minute later', '* * * * *', $cron$
    SELECT pg_sleep(30);
    DO $do$
    BEGIN
        PERFORM leasehold.maintain();
    EXCEPTION WHEN OTHERS THEN
        RAISE WARNING 'leasehold.maintain() failed: %', SQLERRM;
    END $do$
$cron$);
