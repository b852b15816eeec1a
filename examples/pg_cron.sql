-- Recovery and upkeep twice a minute, where no program of ours runs all the time. pg_cron starts
-- nothing more often than once a minute: the second one waits for half of it. A failure is a warning
-- in the server's log; the next try comes by itself.
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
